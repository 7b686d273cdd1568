"""What happened, line by line, in the engine's own words (``engine.report.progress``). Pure, and fast in a large session.

The engine's lines ask for the incumbent before and after every entry, which counts all kernels; here each entry is told over a
state that holds only the kernels it speaks of, and the leader is followed from one entry to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.domain import events as e
from engine.domain import queries
from engine.domain.state import SessionState, advance
from engine.report import progress
from tui.viewmodel import fmt
from tui.viewmodel.cells import Cell, Ink, Line, from_report, line

INDENT = 14
"""Where the words of a line begin: what is broken goes on there."""
TOLD_AT_ONCE = 1000
"""Of a long past only so many of the last entries are told."""


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """How far the story is told."""

    state: SessionState
    leader: str
    day: str = ""
    """Of what was told last; lines show the time alone."""


BEGINNING = Story(SessionState(), "")


def after(state: SessionState | None) -> Story:
    """The story of a session that is at this state already; what led there is not told."""
    if state is None or state.opened is None:
        return BEGINNING
    best = queries.incumbent(state)
    return Story(state, best.id if best else "", fmt.day(state.at))


def told(story: Story, entries: Sequence[e.Entry]) -> tuple[Story, list[Line]]:
    """The story with these entries, and their lines."""
    lines: list[Line] = []
    skipped = entries[:-TOLD_AT_ONCE] if len(entries) > TOLD_AT_ONCE else ()
    if skipped:
        state = advance(story.state, skipped)
        best = queries.incumbent(state)
        story = Story(state, best.id if best else "", fmt.day(state.at))
        lines.append(line(Cell(f" ⋯ {len(skipped)} earlier events", Ink.RULE)))
    for entry in entries[len(skipped) :]:
        state, day = advance(story.state, (entry,)), fmt.day(entry.at)
        if story.day and day != story.day:
            lines.append(line(Cell(f" ── {day} ──", Ink.RULE)))
        lines += [_stamped(entry, said) for said in _said(state, entry)]
        leader = _leader(story, state, entry.event)
        if leader and leader != story.leader:
            lines.append(_stamped(entry, _leads(state, leader)))
        story = Story(state, leader, day)
    return story, lines


def _stamped(entry: e.Entry, said: Line) -> Line:
    by = Cell("you ", Ink.ACCENT) if entry.by == "engineer" else Cell("    ")
    return Line((Cell(f" {fmt.clock(entry.at)} ", Ink.RULE), by, *said.cells))


def _said(state: SessionState, entry: e.Entry) -> Iterable[Line]:
    """The engine's own lines for the entry, told over as few kernels as they need."""
    small = _only(state, _spoken_of(state, entry.event))
    return [from_report(said) for said in progress.lines(small, entry, small)]


def _spoken_of(state: SessionState, event: e.Event) -> Iterable[str]:
    if isinstance(event, e.RoundClosed):
        return [k.id for k in queries.kernels_of(state, event.round)]
    kernel = getattr(event, "kernel", None)
    return [kernel] if isinstance(kernel, str) else ()


def _only(state: SessionState, kernels: Iterable[str]) -> SessionState:
    return replace(state, kernels={name: state.kernels[name] for name in kernels if name in state.kernels})


def _leader(story: Story, state: SessionState, event: e.Event) -> str:
    """The incumbent after the event: counted anew only where the present one may have lost its place."""
    match event:
        case e.SessionPrepared():
            best = queries.incumbent(state)
        case e.KernelVerified(kernel=kernel) | e.KernelMeasured(kernel=kernel) if kernel != story.leader:
            best = queries.incumbent(_only(state, (story.leader, kernel)))
        case e.KernelVerified() | e.KernelMeasured():
            best = queries.incumbent(state)
        case e.IncumbentChanged(kernel=kernel):
            return kernel
        case e.KernelReopened(kernel=kernel) | e.KernelFailed(kernel=kernel) | e.KernelCancelled(kernel=kernel):
            if kernel != story.leader:
                return story.leader
            best = queries.incumbent(state)
        case _:
            return story.leader
    return best.id if best is not None else ""


def _leads(state: SessionState, leader: str) -> Line:
    ratio = queries.speedup(state, state.kernels[leader])
    words = f" leads now: {fmt.times(ratio)} {queries.ranking_baseline(state)}" if ratio else " leads now"
    return line(Cell("★ ", Ink.BEST), Cell(leader, Ink.BEST), Cell(words, Ink.GOOD))
