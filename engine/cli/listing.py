"""``espalier problems``, ``sessions`` and ``bank``: what there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from engine.cli import options as o
from engine.cli.output import show, show_json
from engine.cli.running import handle
from engine.domain.model import Dialect, Number, Problem
from engine.ideas.playbook import available
from engine.journal import bank as banks
from engine.journal import store
from engine.problem import catalog
from engine.report.text import Span, Tone, counted, table, times, tunables


@click.command()
@o.json_option
def problems(as_json: bool) -> None:
    """The problems that ship. A folder with a reference.py, or any KernelBench-format file, is one too."""
    found = [_problem(problem) for problem in catalog.shipped()]
    if as_json:
        show_json({"problems": found})
        return
    rows = [
        [
            Span(one.name, Tone.STRONG), Span(one.title), Span(", ".join(one.workloads), Tone.FAINT),
            Span(", ".join(f"{name}: {counted(n, 'idea')}" for name, n in one.ideas.items()), Tone.FAINT),
        ]
        for one in found
    ]  # fmt: skip
    show(table(rows))


@dataclass(frozen=True, slots=True)
class Shipped:
    """One problem in a list."""

    name: str
    title: str
    workloads: Mapping[str, Mapping[str, Number]]
    ideas: Mapping[str, int]
    """Dialect → ideas of the playbook with an implementation in it."""


def _problem(problem: Problem) -> Shipped:
    folder = catalog.folder(problem)
    counts = {d.value: available(folder, d).ideas if folder else 0 for d in (Dialect.CPP, Dialect.CUDA)}
    return Shipped(problem.name, problem.title, {w.name: w.settings for w in problem.workloads}, counts)


@click.command()
@o.json_option
def sessions(as_json: bool) -> None:
    """All sessions, the latest activity first."""
    found = store.summaries()
    if as_json:
        show_json({"sessions": [_session(one) for one in found]})
        return
    nothing = f"no session yet in {store.sessions_root()}: `espalier run softmax` begins one"
    show(table([_row(one) for one in found]) or [nothing])


def _session(one: store.SessionSummary) -> Mapping[str, object]:
    return {
        "session": str(one.folder), "name": one.name, "status": one.status, "reason": one.reason, "problem": one.problem,
        "workload": one.workload, "device": one.device, "rounds": one.rounds, "kernels": one.kernels,
        "verified": one.verified, "awaiting": one.awaiting, "last_activity": one.last_activity,
        "best": None if one.best is None else {
            "kernel": one.incumbent,
            "speedup": {"value": one.best.value, "low": one.best.low, "high": one.best.high, "baseline": one.baseline},
        },
    }  # fmt: skip


def _row(one: store.SessionSummary) -> list[Span]:
    when = f"{datetime.fromtimestamp(one.last_activity, UTC).astimezone():%Y-%m-%d %H:%M}"
    name = Span(handle(one.folder), Tone.STRONG)
    if one.status == "unreadable":
        return [name, Span(when, Tone.FAINT), Span("unreadable", Tone.BAD), Span(one.reason, Tone.BAD)]
    status = f"{one.awaiting} awaiting" if one.awaiting and one.status == "open" else one.status
    best = f"{one.incumbent} {times(one.best)} {one.baseline}" if one.best else "nothing verified"
    size = f"{counted(one.rounds, 'round')}, {one.verified} of {counted(one.kernels, 'kernel')} verified"
    where = f"{one.problem} {one.workload} on {one.device}"
    tone = Tone.GOOD if one.best and one.best.low > 1.0 else Tone.PLAIN
    return [name, Span(when, Tone.FAINT), Span(status), Span(where), Span(size, Tone.FAINT), Span(best, tone)]


@click.command()
@click.option("--problem", "name", help="Only those of this problem.")
@o.json_option
def bank(name: str | None, as_json: bool) -> None:
    """Verified, precisely measured kernels of all sessions, best first; `seed` and `run --seed-kernel` take SESSION:K."""
    known = banks.bank()
    found = [entry for entry in known if name is None or entry.problem == name]
    if as_json:
        show_json({"kernels": [{**_plain(entry), "seed": f"{handle(entry.session)}:{entry.kernel}"} for entry in found]})
        return
    show(table([_banked(entry) for entry in found]) or [_nothing(name, {entry.problem for entry in known})])


def _nothing(name: str | None, problems: set[str]) -> str:
    if name is None or not problems:
        return "no verified kernel yet: `espalier run softmax` grows some"
    return f"no verified kernel of {name!r} yet: there are some of {', '.join(sorted(problems))}"


def _plain(entry: banks.BankEntry) -> dict[str, object]:
    return {field: getattr(entry, field) for field in entry.__dataclass_fields__}


def _banked(entry: banks.BankEntry) -> list[Span]:
    return [
        Span(f"{handle(entry.session)}:{entry.kernel}", Tone.STRONG),
        Span(f"{entry.problem} {entry.workload}"),
        Span(f"{times(entry.speedup)} {entry.baseline}", Tone.GOOD if entry.speedup.low > 1.0 else Tone.PLAIN),
        Span(f"{entry.dialect.value}, {entry.contract.value}", Tone.FAINT),
        Span(f"{entry.idea} {tunables(entry.tunables)}".strip()),
        Span(entry.device, Tone.FAINT),
    ]
