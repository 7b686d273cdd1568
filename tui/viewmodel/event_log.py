"""The event log of a session: the lines of ``engine.report.text.progress``, fast in a large session. Pure.

Those lines look up the incumbent before and after every entry, which visits all kernels. Here each entry is rendered over a
state that holds only the kernels it names, and the incumbent is tracked from entry to entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.domain import events as e
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.report.text import progress
from tui.viewmodel import fmt
from tui.viewmodel.cells import Cell, Ink, Line, from_report, line

_INDENT = 14
"""The column where a line's text begins."""
_NARROW = 48
MOST_ENTRIES = 1000
"""How many of the last entries are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class EventLog:
    """The position in the log: the state after its last entry."""

    state: SessionState
    incumbent: str
    day: str = ""
    """Of the last line; lines show only the time of day."""


def indent(room: int) -> int:
    """The column where a wrapped line continues: below its text, or where there is little room below its time."""
    return _INDENT if room >= _NARROW else 2


EMPTY = EventLog(SessionState(), "")


def log_at(state: SessionState | None) -> EventLog:
    """The log at this state, without the lines that led to it."""
    if state is None or state.opened is None:
        return EMPTY
    best = queries.incumbent(state)
    return EventLog(state, best.id if best else "", fmt.day(state.at))


def append(log: EventLog, entries: Sequence[e.Entry]) -> tuple[EventLog, list[Line]]:
    """The log after these entries, and their lines."""
    lines: list[Line] = []
    skipped = entries[:-MOST_ENTRIES] if len(entries) > MOST_ENTRIES else ()
    if skipped:
        state = advance(log.state, skipped)
        best = queries.incumbent(state)
        log = EventLog(state, best.id if best else "", fmt.day(state.at))
        lines.append(line(Cell(f" ⋯ {len(skipped)} earlier events", Ink.RULE)))
    for entry in entries[len(skipped) :]:
        state, day = advance(log.state, (entry,)), fmt.day(entry.at)
        if log.day and day != log.day:
            lines.append(line(Cell(f" ── {day} ──", Ink.RULE)))
        lines += [_stamped(entry, text) for text in _engine_lines(state, entry)]
        incumbent = _incumbent_after(log, state, entry.event)
        if incumbent and incumbent != log.incumbent:
            lines.append(_stamped(entry, _incumbent_line(state, incumbent)))
        log = EventLog(state, incumbent, day)
    return log, lines


def _stamped(entry: e.Entry, text: Line) -> Line:
    by = Cell("you ", Ink.ACCENT) if entry.by.is_engineer else Cell("    ")
    return Line((Cell(f" {fmt.clock(entry.at)} ", Ink.RULE), by, *text.cells))


def _engine_lines(state: SessionState, entry: e.Entry) -> Iterable[Line]:
    """The engine's lines for the entry, over a state that holds only the kernels they need."""
    small = _restricted(state, _kernels_named(state, entry.event))
    return [from_report(spans) for spans in progress.lines(small, entry, small)]


def _kernels_named(state: SessionState, event: e.Event) -> Iterable[str]:
    if isinstance(event, e.RoundClosed):
        return [k.id for k in queries.kernels_of(state, event.round)]
    kernel = getattr(event, "kernel", None)
    return [kernel] if isinstance(kernel, str) else ()


def _restricted(state: SessionState, kernels: Iterable[str]) -> SessionState:
    return replace(state, kernels={name: state.kernels[name] for name in kernels if name in state.kernels})


def _incumbent_after(log: EventLog, state: SessionState, event: e.Event) -> str:
    """The incumbent after the event; looked up only if the event may have changed it."""
    match event:
        case e.SessionPrepared():
            best = queries.incumbent(state)
        case e.KernelVerified(kernel=kernel) | e.KernelMeasured(kernel=kernel) if kernel != log.incumbent:
            best = queries.incumbent(_restricted(state, (log.incumbent, kernel)))
        case e.KernelVerified() | e.KernelMeasured():
            best = queries.incumbent(state)
        case e.IncumbentChanged(kernel=kernel):
            return kernel
        case e.KernelReopened(kernel=kernel) | e.KernelFailed(kernel=kernel) | e.KernelCancelled(kernel=kernel):
            if kernel != log.incumbent:
                return log.incumbent
            best = queries.incumbent(state)
        case _:
            return log.incumbent
    return best.id if best is not None else ""


def _incumbent_line(state: SessionState, incumbent: str) -> Line:
    ratio = queries.speedup(state, state.kernels[incumbent])
    text = f" is the incumbent: {fmt.times(ratio)} over {queries.ranking_baseline(state)}" if ratio else " is the incumbent"
    return line(Cell("★ ", Ink.BEST), Cell(incumbent, Ink.BEST), Cell(text, Ink.GOOD))
