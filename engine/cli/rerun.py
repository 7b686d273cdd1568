"""``espalier rerun`` and ``ablate``: a session's kernels measured on this machine. The journal is only read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from engine.cli import options as o
from engine.cli.drive import ProgressPrinter, drive
from engine.cli.exit_codes import DONE, DOUBTED, FAILED, end
from engine.cli.output import show, show_json
from engine.cli.session_access import read_state, session_argument
from engine.cli.verbosity import verbosity
from engine.domain import queries, regimes
from engine.domain.corroboration import MEASURED
from engine.domain.errors import KernelCodeError
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.report.text import ablation as ablation_text
from engine.report.text import comparison
from engine.report.text.lines import Line, Span, Tone, fields, line, times
from engine.report.text.shell import shell_name
from engine.report.text.tree import correctness_words, sandbox_words
from engine.session import ablation, factory
from engine.session.seeds import device_for, kernel_of, recorded_spec
from engine.session.workbench import Workbench, open_workbench

T = TypeVar("T")
_DEFAULT_COUNT = 3


@click.command()
@session_argument
@click.option("--kernels", metavar="K,...", help="The kernels to measure. Default: the best three and the naive port.")
@click.option("--all", "everything", is_flag=True, help="Every measured kernel.")
@o.recorded_device_option
@o.recorded_regime_option
@o.fresh_option
@o.accept_option
@o.json_option
@verbosity
def rerun(
    session: str,
    kernels: str | None,
    everything: bool,
    device: str | None,
    regime: str | None,
    fresh_baselines: bool,
    accept_unverifiable: bool,
    as_json: bool,
) -> None:
    """Verify and measure kernels of SESSION on this machine, and compare with the recording.

    On a GPU the incumbent is also timed back to back; with --regime sustained, every kernel is, on any device.

    Exit status: 0 when every kernel was measured, 1 when one failed, 4 when the time of one is not corroborated or it is
    quarantined.
    """
    folder = store.resolve(session)
    state = read_state(folder)
    selected = _selected_kernels(state, folder, kernels, everything)
    label = device_for(selected, device or queries.device_label(state))
    sources = [(kernel, recorded_spec(folder, kernel, label)) for kernel in selected]
    setting = regime or (state.opened.settings.regime if state.opened else "") or regimes.AUTO

    async def measure_again(bench: Workbench) -> tuple[comparison.Rerun, ...]:
        reruns = []
        for kernel, source in sources:
            bench.say(f"measuring {kernel.id}")
            tried = await bench.attempt(source)
            if _wants_sustained(regime, setting, bench, leads=kernel.id == state.incumbent):
                tried = await bench.sustain(source, tried)
            deciding = regimes.deciding(setting, bench.preparation.bound, bench.device.kind)
            reruns.append(comparison.compare(state, kernel, tried.final, deciding))
        return tuple(reruns)

    reruns, bench = _on_workbench(folder, state, label, measure_again, fresh=fresh_baselines, accept=accept_unverifiable)
    if as_json:
        recorded = state.device
        recorded_on = {"name": recorded.name, "arch": recorded.arch} if recorded else None
        head = {**_session_fields(state, folder), "recorded_on": recorded_on, **_bench_fields(bench)}
        show_json({**head, "kernels": reruns})
    else:
        _print_rerun(state, reruns, bench)
    doubted = any(one.doubted for one in reruns)
    end(FAILED if any(one.status != MEASURED and not one.doubted for one in reruns) else DOUBTED if doubted else DONE)


@click.command()
@session_argument
@click.option("--kernel", type=o.KERNEL, metavar="K", help="The last kernel of the lineage. Default: the incumbent.")
@o.recorded_device_option
@o.accept_option
@o.json_option
@verbosity
def ablate(session: str, kernel: str | None, device: str | None, accept_unverifiable: bool, as_json: bool) -> None:
    """Measure each kernel of the winning lineage of SESSION against its parent, on this machine: the gain of each idea.

    No gain is claimed if its interval contains 1, or if it is within what the baseline shows against itself. Exit status: 0
    when every step was measured, 1 when a kernel failed, 4 when the time of one is not corroborated.
    """
    folder = store.resolve(session)
    state = read_state(folder)
    last = kernel_of(state, kernel, folder) if kernel is not None else queries.incumbent(state)
    if last is None:
        advice = f"`espalier open {shell_name(folder)}` resumes it"
        raise KernelCodeError(f"session {folder.name} has no verified kernel to ablate: {advice}")
    steps = queries.lineage(state, last.id)
    label = device_for(steps, device or queries.device_label(state))
    lineage = [ablation.LineageKernel(k.id, recorded_spec(folder, k, label)) for k in steps]
    baseline = queries.ranking_baseline(state)

    async def measure_lineage(bench: Workbench) -> ablation.Ablation:
        return await ablation.ablate(bench.bench, lineage, baseline, bench.say)

    measured, bench = _on_workbench(folder, state, label, measure_lineage, accept=accept_unverifiable)
    same = bench.preparation.same
    rows = ablation_text.step_gains(state, measured.steps, same)
    if as_json:
        head = {**_session_fields(state, folder), **_bench_fields(bench), "baseline_against_itself": same}
        show_json(
            {**head, "first_over_baseline": measured.first, "steps": rows, "total": measured.total, "doubts": measured.doubts}
        )
    else:
        _print_ablation(state, measured, rows, bench)
    doubted = measured.doubts or any(row.doubts for row in rows)
    end(FAILED if any(row.trouble for row in rows) else DOUBTED if doubted else DONE)


def _wants_sustained(asked: str | None, setting: str, bench: Workbench, *, leads: bool) -> bool:
    """Whether a kernel is timed back to back too: every one, none, or the incumbent, as asked or as the session has it."""
    if asked in (Regime.SINGLE, Regime.SUSTAINED):
        return asked == Regime.SUSTAINED
    return leads and regimes.wants_sustained(setting, bench.device.kind)


def _selected_kernels(state: SessionState, folder: Path, names: str | None, everything: bool) -> list[Kernel]:
    """The kernels of a comma-separated list, each once; else all measured ones, or the best and the naive port."""
    if names is not None:
        given = dict.fromkeys(name.strip() for name in names.split(","))
        if not any(given):
            advice = f"`espalier kernel list {shell_name(folder)}` lists them"
            raise KernelCodeError(f"--kernels names no kernel: give ids such as k1,k3; {advice}")
        return [kernel_of(state, name, folder) for name in given if name]
    measured = [k for k in state.kernels.values() if k.measurement is not None and k.verification is not None]
    if not measured:
        advice = f"`espalier open {shell_name(folder)}` resumes it"
        raise KernelCodeError(f"session {folder.name} has no measured kernel: {advice}")
    if everything:
        return measured
    best = list(queries.ranked(state))[:_DEFAULT_COUNT] or measured[:_DEFAULT_COUNT]
    return list({k.id: k for k in (*best, measured[0])}.values())


def _on_workbench(
    folder: Path,
    state: SessionState,
    label: str,
    measure: Callable[[Workbench], Awaitable[T]],
    *,
    fresh: bool = False,
    accept: bool,
) -> tuple[T, Workbench]:
    """Measure on a bench for the session's problem; the result, and the closed bench with its device and preparation."""
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    assignment = replace(factory.assignment(folder, state, label), fresh=fresh)

    async def work(printer: ProgressPrinter) -> tuple[T, Workbench]:
        accepted = accept or opened.settings.accept_unverifiable
        async with open_workbench(assignment, printer.show, accept_unverifiable=accepted) as bench:
            return await measure(bench), bench

    return drive(work)


def _session_fields(state: SessionState, folder: Path) -> dict[str, object]:
    problem, workload = queries.problem_and_workload(state)
    return {
        "session": str(folder.absolute()),
        "problem": problem,
        "workload": workload,
        "baseline": queries.ranking_baseline(state),
    }


def _bench_fields(bench: Workbench) -> dict[str, object]:
    device = {"name": bench.device.name, "arch": bench.device.arch}
    return {"device": device, "sandbox": bench.preparation.sandbox}


def _print_rerun(state: SessionState, reruns: tuple[comparison.Rerun, ...], bench: Workbench) -> None:
    recorded = state.device.name if state.device else "an unknown device"
    same = state.device is not None and queries.same_device(state.device, bench.device)
    where = f"recorded on {recorded}, here on {bench.device.name}{' (the same device)' if same else ''}"
    show([_heading(state, where), "", *comparison.lines(state, reruns), ""])
    base = f"{queries.ranking_baseline(state)}, measured here in the same interleaved run; 95% intervals over process pairs"
    _print_conditions(("baseline", base), bench)


def _print_ablation(
    state: SessionState, measured: ablation.Ablation, rows: tuple[ablation_text.StepGain, ...], bench: Workbench
) -> None:
    base = queries.ranking_baseline(state)
    head = _heading(state, f"the lineage of {rows[-1].kernel} on {bench.device.name}")
    show([head, "", *ablation_text.lines(state, rows, measured.first, measured.total, base), ""])
    same = times(bench.preparation.same)
    floor = f"{base} against itself: {same} here, no smaller gain is claimed; 95% intervals over process pairs"
    doubts = dict.fromkeys((*measured.doubts, *(doubt for row in rows for doubt in row.doubts)))
    show(fields(("doubt", Span(doubt, Tone.WARN)) for doubt in doubts))
    _print_conditions(("noise", floor), bench)


def _heading(state: SessionState, text: str) -> Line:
    problem, workload = queries.problem_and_workload(state)
    return line(Span(f"{problem}, {workload}: ", Tone.STRONG), text)


def _print_conditions(first: tuple[str, str], bench: Workbench) -> None:
    prepared = bench.preparation
    show(fields([first, ("correct", correctness_words(prepared)), ("sandbox", sandbox_words(prepared.sandbox))]))
