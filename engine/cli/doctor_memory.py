"""``espalier doctor PROBLEM``: what judging a problem needs in memory, and how the judge fits itself to what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engine.cli.drive import ProgressPrinter, drive
from engine.cli.output import show, show_json
from engine.domain.memory_plan import WorkloadMemory
from engine.domain.memory_text import plan_facts, refusal, size
from engine.domain.model import Device, Problem
from engine.problem import catalog
from engine.report.text.lines import Line, Span, Tone, counted, line, table
from engine.session import trust
from engine.session.devices import checked_device, default_workload
from engine.session.requirements import check_torch
from engine.trial.bench import Assignment, TrialBench


def show_memory(name: str, device: str | None, workload: str | None, baselines: tuple[str, ...], *, as_json: bool) -> bool:
    """Print the memory plan of a problem's workload; whether it fits. Raises EspalierError if the problem cannot be read."""
    problem = catalog.find(name)
    trust.require_problem(problem)
    where = checked_device(device)
    chosen = catalog.workload_for(problem, workload or default_workload(where))
    check_torch()

    async def work(printer: ProgressPrinter) -> tuple[Device, tuple[WorkloadMemory, ...]]:
        bench = TrialBench(
            Assignment(problem, chosen, where, baseline=baselines[0], further_baselines=baselines[1:]), lambda _: ""
        )
        try:
            printer.show("loading torch and the problem")
            described, _ = await bench.describe(printer.show)
            return described, await bench.memory()
        finally:
            await bench.close()

    found_device, (first, *others) = drive(work)
    if as_json:
        workloads = [_as_data(one) for one in (first, *others)]
        about = {"ok": first.fits, "problem": problem.name, "device": found_device}
        show_json({**about, "workloads": workloads, "suites": problem.suites})
    else:
        lines = _lines(problem.name, found_device, first, others)
        show([*lines, *table([*_unknown_rows(problem, (first, *others)), *_suite_rows(problem, (first, *others))])])
    return first.fits


def _as_data(found: WorkloadMemory) -> dict[str, Any]:
    needs = found.needs
    return {
        "workload": found.workload,
        "fits": found.fits,
        "free_bytes": found.room.device,
        "free_host_bytes": found.room.host,
        "limited": found.room.limited,
        "operand_bytes": needs.operands,
        "needs": asdict(needs),
        "plan": asdict(found.plan),
    }


def _lines(problem: str, device: Device, first: WorkloadMemory, others: list[WorkloadMemory]) -> list[Line]:
    needs, room, plan = first.needs, first.room, first.plan
    limit = " (ESPALIER_MEMORY_GB)" if room.limited else ""
    parts = f"inputs {size(needs.inputs)}, weights {size(needs.weights)}, outputs {size(needs.outputs)}"
    rows = [
        ("problem", f"{problem}, workload {first.workload}"),
        ("device", f"{device.label}, {device.name}: {size(room.device)} to plan with{limit}"),
        ("operands", f"{size(needs.operands)}: {parts}"),
        ("eager", f"allocates {size(needs.own)} beside them; in float64 {size(needs.exact)}"),
    ]  # fmt: skip
    if first.fits:
        host = f", {size(plan.host_bytes)} on the host" if plan.host_bytes else ""
        rows += [
            ("plan", f"{size(plan.device_bytes)}{host}, most in the {plan.phase} phase"),
            ("", "; ".join(plan_facts(plan))),
        ]
    lines = table([(Span(name, Tone.STRONG), Span(text)) for name, text in rows])
    if not first.fits:
        assert not isinstance(first.found, tuple)
        lines.append(line(Span(refusal(problem, first.workload, first.found, others), Tone.BAD)))
        return lines
    return [*lines, *table([_other_row(one) for one in others])]


def _unknown_rows(problem: Problem, found: Sequence[WorkloadMemory]) -> list[Line]:
    """The workloads without a plan."""
    planned = {one.workload for one in found}
    words = "not planned: its reference has to run for that, or is slow to trace"
    return [(Span(f"workload {w.name}", Tone.STRONG), Span(words)) for w in problem.workloads if w.name not in planned]


def _suite_rows(problem: Problem, found: Sequence[WorkloadMemory]) -> list[Line]:
    """The suites: how many of their workloads fit."""
    fits = {one.workload: one.fits for one in found}
    rows: list[Line] = []
    for name, members in problem.suites.items():
        left = [member for member in members if not fits.get(member, True)]
        unknown = sum(member not in fits for member in members)
        facts = [f"{len(left)} do not fit ({', '.join(left)})"] if left else []
        facts += [f"{unknown} not planned"] if unknown else []
        words = f"{counted(len(members), 'workload')}: {', '.join(facts) or 'all fit'}"
        rows.append((Span(f"suite {name}", Tone.STRONG), Span(words, Tone.WARN if left else Tone.PLAIN)))
    return rows


def _other_row(found: WorkloadMemory) -> Line:
    fits = f"fits, {size(found.plan.device_bytes)}" if found.fits else f"does not fit, needs {size(found.plan.device_bytes)}"
    return (Span(f"workload {found.workload}", Tone.STRONG), Span(fits, Tone.PLAIN if found.fits else Tone.WARN))
