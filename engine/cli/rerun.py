"""``espalier rerun``: a session's kernels, verified and measured again on this machine. The journal is only read."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from engine.domain.model import Device
from engine.domain.state import Kernel, SessionState
from engine.journal import store
from engine.report import comparison
from engine.report.text import Span, Tone, fields, line
from engine.report.tree import gate_words, sandbox_words
from engine.session import assembly
from engine.session.single import Table
from engine.session.single import table as set_table
from engine.trial.bench import Source

_USUAL = 3


@dataclass(frozen=True, slots=True)
class _Result:
    found: tuple[comparison.Rerun, ...]
    here: Device
    gate: Span
    sandbox: str


@click.command()
@click.argument("session")
@click.option("--kernels", metavar="K,...", help="These kernels.")
@click.option("--all", "everything", is_flag=True, help="Every kernel that was measured.")
@click.option("--device", metavar="cpu|cuda:N", help="Where; default: the kind of device it was recorded on.")
@o.fresh_option
@o.accept_option
@o.json_option
def rerun(
    session: str,
    kernels: str | None,
    everything: bool,
    device: str | None,
    fresh_baselines: bool,
    accept_unverifiable: bool,
    as_json: bool,
) -> None:
    """Verify and measure kernels of SESSION again here: recorded beside here. Default: the best three and the first port.

    Exit status: 0 when every kernel was measured, 1 when one failed.
    """
    folder = store.resolve(session)
    state = state_of(folder)
    chosen = _chosen(state, folder, kernels, everything)
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    label = checked_device(device or (state.device.label if state.device else opened.device))
    sources = [(k, _source(folder, k)) for k in chosen]
    for kernel, _ in sources:
        assembly.check_dialect(source_of(folder, kernel), label)
    assignment = replace(assembly.assignment(opened, label), fresh=fresh_baselines)
    accept = accept_unverifiable or opened.settings.accept_unverifiable
    teller = Teller()

    async def work() -> _Result:
        async with set_table(assignment, teller.say, accept_unverifiable=accept) as bench:
            found = tuple([await _again(state, kernel, source, bench) for kernel, source in sources])
            return _Result(found, bench.device, gate_words(bench.preparation), bench.preparation.sandbox)

    try:
        result = drive(work)
    finally:
        teller.moment.clear()
    if as_json:
        show_json(_object(state, folder, result))
    else:
        _print(state, result)
    end(DONE if all(one.status == "measured" for one in result.found) else FAILED)


def _chosen(state: SessionState, folder: Path, names: str | None, everything: bool) -> list[Kernel]:
    measured = [k for k in state.kernels.values() if k.measurement is not None and k.verification is not None]
    if names is not None:
        return _named(state, folder, names)
    if not measured:
        advice = f"`espalier open {typed(folder)}` goes on with it"
        raise SourceError(f"session {folder.name} has no measured kernel to run again: {advice}")
    if everything:
        return measured
    best = list(queries.ranked(state))[:_USUAL] or measured[:_USUAL]
    return list({k.id: k for k in (*best, measured[0])}.values())


def _named(state: SessionState, folder: Path, names: str) -> list[Kernel]:
    """The kernels of a comma separated list, each once."""
    wanted = dict.fromkeys(name.strip() for name in names.split(","))
    if not any(wanted):
        advice = f"`espalier replay {typed(folder)} --headless` lists them"
        raise SourceError(f"--kernels names no kernel: name some of the session's as in k1,k3; {advice}")
    return [kernel_of(state, name, folder) for name in wanted if name]


def _source(folder: Path, kernel: Kernel) -> Source:
    found = source_of(folder, kernel)
    return Source(found.name, found.text, found.dialect, found.contract, kernel.tunables)


async def _again(state: SessionState, kernel: Kernel, source: Source, bench: Table) -> comparison.Rerun:
    bench.say(f"{kernel.id} again")
    tried = await bench.attempt(source)
    return comparison.compare(state, kernel, tried.final)


def _object(state: SessionState, folder: Path, result: _Result) -> dict[str, object]:
    problem, workload = queries.settings_of(state)
    recorded = state.device
    return {
        "session": str(folder.absolute()),
        "problem": problem,
        "workload": workload,
        "baseline": queries.ranking_baseline(state),
        "recorded_on": {"name": recorded.name, "arch": recorded.arch} if recorded else None,
        "device": {"name": result.here.name, "arch": result.here.arch},
        "sandbox": result.sandbox,
        "kernels": result.found,
    }


def _print(state: SessionState, result: _Result) -> None:
    problem, workload = queries.settings_of(state)
    recorded = state.device.name if state.device else "an unknown device"
    same = state.device is not None and queries.same_device(state.device, result.here)
    where = f"recorded on {recorded}, here on {result.here.name}{' (the same device)' if same else ''}"
    show([line(Span(f"{problem}, {workload}: ", Tone.STRONG), where), "", *comparison.lines(state, result.found), ""])
    base = f"{queries.ranking_baseline(state)}, measured here in the same interleaved run; 95% intervals over process pairs"
    show(fields([("baseline", base), ("gate", result.gate), ("sandbox", sandbox_words(result.sandbox))]))
