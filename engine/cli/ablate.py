"""``espalier ablate``: a winning lineage taken apart on this machine, idea by idea. The journal is only read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.ending import DONE, FAILED, end
from engine.cli.kernels import kernel_of, source_of
from engine.cli.machine import checked_device
from engine.cli.output import show, show_json
from engine.cli.reading import state_of
from engine.cli.running import Teller, drive, typed
from engine.domain import queries
from engine.domain.errors import SourceError
from engine.domain.model import Device, Interval
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.report import ablation as words
from engine.report.text import Span, Tone, fields, line, times
from engine.report.tree import gate_words, sandbox_words
from engine.session import ablation, assembly
from engine.session.single import table as set_table
from engine.trial.bench import Source


@dataclass(frozen=True, slots=True)
class _Result:
    found: ablation.Ablation
    here: Device
    same: Interval
    gate: Span
    sandbox: str


@click.command()
@click.argument("session")
@click.option("--kernel", metavar="K", help="The lineage of this kernel; default: of the best one.")
@click.option("--device", metavar="cpu|cuda:N", help="Where; default: the kind of device it was recorded on.")
@o.accept_option
@o.json_option
def ablate(session: str, kernel: str | None, device: str | None, accept_unverifiable: bool, as_json: bool) -> None:
    """Take the winning lineage of SESSION apart: each kernel against its parent, measured again here, idea by idea.

    A gain whose interval holds 1.0, or that is no larger than what the baseline shows against itself, is not shown. Exit
    status: 0 when every step was measured, 1 when a kernel failed.
    """
    folder = store.resolve(session)
    state = state_of(folder)
    chosen = _chosen(state, folder, kernel)
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = checked_device(device or (state.device.label if state.device else opened.device))
    lineage = [ablation.Rung(k.id, _source(folder, k, label)) for k in queries.lineage(state, chosen.id)]
    assignment = assembly.assignment(opened, label)
    accept = accept_unverifiable or opened.settings.accept_unverifiable
    teller = Teller()

    async def work() -> _Result:
        async with set_table(assignment, teller.say, accept_unverifiable=accept) as bench:
            found = await ablation.ablate(bench.bench, lineage, assignment.baseline, teller.say)
            prepared = bench.preparation
            return _Result(found, bench.device, prepared.same, gate_words(prepared), prepared.sandbox)

    try:
        result = drive(work)
    finally:
        teller.moment.clear()
    rows = words.worths(state, result.found.steps, result.same)
    if as_json:
        show_json(_object(state, folder, result, rows))
    else:
        _print(state, result, rows)
    end(FAILED if any(row.trouble for row in rows) else DONE)


def _chosen(state: SessionState, folder: Path, name: str | None) -> Kernel:
    found = kernel_of(state, name, folder) if name is not None else queries.incumbent(state)
    if found is None:
        advice = f"`espalier open {typed(folder)}` goes on with it"
        raise SourceError(f"session {folder.name} has no verified kernel whose lineage could be taken apart: {advice}")
    return found


def _source(folder: Path, kernel: Kernel, label: str) -> Source:
    found = source_of(folder, kernel)
    assembly.check_dialect(found, label)
    return Source(found.name, found.text, found.dialect, found.contract, kernel.tunables)


def _object(state: SessionState, folder: Path, result: _Result, rows: tuple[words.Worth, ...]) -> dict[str, object]:
    problem, workload = queries.settings_of(state)
    return {
        "session": str(folder.absolute()),
        "problem": problem,
        "workload": workload,
        "baseline": queries.ranking_baseline(state),
        "device": {"name": result.here.name, "arch": result.here.arch},
        "sandbox": result.sandbox,
        "baseline_against_itself": result.same,
        "first_over_baseline": result.found.first,
        "steps": rows,
        "total": result.found.total,
    }


def _print(state: SessionState, result: _Result, rows: tuple[words.Worth, ...]) -> None:
    problem, workload = queries.settings_of(state)
    base = queries.ranking_baseline(state)
    head = line(Span(f"{problem}, {workload}: ", Tone.STRONG), f"the lineage of {rows[-1].kernel} on {result.here.name}")
    show([head, "", *words.lines(state, rows, result.found.first, result.found.total, base), ""])
    floor = (
        f"{base} against itself shows {times(result.same)} here: nothing smaller is claimed; 95% intervals over process pairs"
    )
    show(fields([("noise", floor), ("gate", result.gate), ("sandbox", sandbox_words(result.sandbox))]))
