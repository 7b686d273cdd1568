"""What home shows of the highlighted session or problem before it is opened. Reads recorded facts; runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.events import Entry
from engine.domain.model import Dialect, Problem, Workload
from engine.domain.state import SessionState
from engine.report.text import progress
from engine.report.text.rounds import counted_rounds
from tui.viewmodel import code, fmt, kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut_cells, fold_line, from_report, line, one_line
from tui.viewmodel.heading import without_incumbent

DECISIONS = 6
"""How many of the last decisions are shown."""
_LATEST = 20
_REFERENCE_LINES = 40


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session as its journal has it."""

    name: str
    state: SessionState
    lines: tuple[Line, ...]
    """Its incumbent, its progress and its last decisions, as long as they are."""
    decisions: int
    """How many of the lines are decisions."""


def session_facts(name: str, entries: Sequence[Entry], state: SessionState) -> SessionFacts:
    """The facts of a journal; ``state``: what it folds to. Takes a while for a large session."""
    decided = [entry for entry in entries[1:] if entry.by.decides or entry.by.is_agent]
    heading, shown = ("Last decisions", decided[-DECISIONS:]) if decided else ("Last events", entries[-_LATEST:])
    told = [from_report(spans) for entry in shown for spans in progress.lines(state, entry, state)]
    lines = [*_incumbent(state), _progress(state), line(Cell(f" {heading}", Ink.LABEL))]
    last = told[-DECISIONS:]
    return SessionFacts(name, state, (*lines, *map(_indented, last)), len(last))


def session_lines(facts: SessionFacts, room: int) -> tuple[Line, ...]:
    """Incumbent, progress and last decisions of a session: the first wrapped, the decisions a line each."""
    before = len(facts.lines) - facts.decisions
    about = [part for one in facts.lines[:before] for part in fold_line(one, room, 3)]
    return _fitted([*about, *facts.lines[before:]], room)


def problem_lines(problem: Problem, sessions: Sequence[str], latest: SessionFacts | None, room: int) -> tuple[Line, ...]:
    """A problem's sessions, what its baselines take, its workloads and its reference.

    ``latest``: the newest of its sessions, from which the baselines are.
    """
    lines = [_sessions(sessions), *_baselines(latest), line(), line(Cell(" Workloads", Ink.LABEL))]
    lines += [_workload(one) for one in problem.workloads[:6]]
    lines += [line(), line(Cell(" Reference", Ink.LABEL))]
    lines += map(_indented, code.highlight(problem.reference, Dialect.PYTHON)[:_REFERENCE_LINES])
    return _fitted(lines, room)


def _incumbent(state: SessionState) -> list[Line]:
    best = kernels.incumbent(state)
    ratio = queries.speedup(state, best) if best is not None else None
    if best is None or ratio is None or best.measurement is None:
        return [line(Cell(f" {without_incumbent(state)}", Ink.FAINT))]
    sol = best.measurement.light
    time = f"{fmt.duration(best.measurement.time_us.value)}{f' · {fmt.sol(sol.fraction)}' if sol else ''}"
    figure = f" {queries.ranking_baseline(state)} {fmt.interval_ends(ratio)}"
    title, author = kernels.title(state, best), kernels.author(best.author.name)
    return [
        line(Cell(f" {kernels.INCUMBENT} {best.id} ", Ink.BEST), kernels.speedup(best, ratio), Cell(figure)),
        line(f"   {time}", Cell(f" · {title} · {author}", Ink.FAINT)),
    ]


def _progress(state: SessionState) -> Line:
    verified = f"{len(queries.verified(state))} of {fmt.counted(len(state.kernels), 'kernel')} verified"
    dollars, unpriced = queries.total_usd(state)
    cost = f"{fmt.dollars(dollars)}{'+?' if unpriced else ''}" if dollars else ""
    strategy = state.opened.settings.strategy if state.opened is not None else ""
    rounds = counted_rounds(max(0, queries.last_round(state)), strategy)
    words = (rounds, verified, f"active {fmt.elapsed(state.active_seconds)}", cost)
    return line(Cell(f"   {' · '.join(filter(None, words))}", Ink.FAINT))


def _sessions(names: Sequence[str]) -> Line:
    if not names:
        return line(Cell(" No session yet.", Ink.FAINT))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return line(Cell(" Sessions ", Ink.LABEL), f"{', '.join(map(one_line, names[:3]))}{more}")


def _baselines(latest: SessionFacts | None) -> list[Line]:
    """What PyTorch takes, as the newest session measured it."""
    preparation = latest.state.preparation if latest is not None else None
    if latest is None or preparation is None:
        return [line(Cell(" PyTorch was not measured on it yet.", Ink.FAINT))]
    times = " · ".join(f"{name} {fmt.duration(one.time_us.value)}" for name, one in preparation.baselines.items())
    device = latest.state.device.name if latest.state.device is not None else ""
    where = f" on {queries.problem_and_workload(latest.state)[1]}, {one_line(device)} ({one_line(latest.name)})"
    return [line(Cell(" PyTorch  ", Ink.LABEL), times, Cell(where, Ink.FAINT))]


def _workload(one: Workload) -> Line:
    shapes = ", ".join(f"{name} {value}" for name, value in one.settings.items())
    return line(f"   {one_line(one.name)}", Cell(f"  {one_line(shapes)}", Ink.FAINT))


def _indented(shown: Line) -> Line:
    return Line((Cell("   "), *shown.cells), shown.ground)


def _fitted(lines: Sequence[Line], room: int) -> tuple[Line, ...]:
    return tuple(Line(cut_cells(one.cells, room), one.ground) for one in lines)
