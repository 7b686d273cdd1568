"""The log of a session: the lines of ``engine.report.text.progress``, fast in a large session. Pure.

Those lines look the incumbent up before and after every entry, which visits all kernels. Here each entry is rendered over a
state with only the kernels it names, and the incumbent is followed from entry to entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.domain import events as e
from engine.domain import queries
from engine.domain.state import SessionState, advance
from engine.report.text import progress
from tui.viewmodel import fmt
from tui.viewmodel.cells import Cell, Ink, Line, from_report, line

INDENT = 14
"""The column where a line's words begin; wrapped lines continue there."""
MOST_ENTRIES = 1000
"""Of a long journal only the last entries are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """The log up to some entry."""

    state: SessionState
    incumbent: str
    day: str = ""
    """Of the last line; lines show the time alone."""


BEGINNING = Story(SessionState(), "")


def story_at(state: SessionState | None) -> Story:
    """The log of a session that is at this state already, without the lines that led there."""
    if state is None or state.opened is None:
        return BEGINNING
    best = queries.incumbent(state)
    return Story(state, best.id if best else "", fmt.day(state.at))


def tell(story: Story, entries: Sequence[e.Entry]) -> tuple[Story, list[Line]]:
    """The log with these entries, and their lines."""
    lines: list[Line] = []
    skipped = entries[:-MOST_ENTRIES] if len(entries) > MOST_ENTRIES else ()
    if skipped:
        state = advance(story.state, skipped)
        best = queries.incumbent(state)
        story = Story(state, best.id if best else "", fmt.day(state.at))
        lines.append(line(Cell(f" ⋯ {len(skipped)} earlier events", Ink.RULE)))
    for entry in entries[len(skipped) :]:
        state, day = advance(story.state, (entry,)), fmt.day(entry.at)
        if story.day and day != story.day:
            lines.append(line(Cell(f" ── {day} ──", Ink.RULE)))
        lines += [_stamped(entry, words) for words in _engine_lines(state, entry)]
        incumbent = _incumbent_after(story, state, entry.event)
        if incumbent and incumbent != story.incumbent:
            lines.append(_stamped(entry, _lead_line(state, incumbent)))
        story = Story(state, incumbent, day)
    return story, lines


def _stamped(entry: e.Entry, words: Line) -> Line:
    by = Cell("you ", Ink.ACCENT) if entry.by.is_engineer else Cell("    ")
    return Line((Cell(f" {fmt.clock(entry.at)} ", Ink.RULE), by, *words.cells))


def _engine_lines(state: SessionState, entry: e.Entry) -> Iterable[Line]:
    """The engine's lines for the entry, over a state with only the kernels they need."""
    small = _restricted(state, _kernels_named(state, entry.event))
    return [from_report(spans) for spans in progress.lines(small, entry, small)]


def _kernels_named(state: SessionState, event: e.Event) -> Iterable[str]:
    if isinstance(event, e.RoundClosed):
        return [k.id for k in queries.kernels_of(state, event.round)]
    kernel = getattr(event, "kernel", None)
    return [kernel] if isinstance(kernel, str) else ()


def _restricted(state: SessionState, kernels: Iterable[str]) -> SessionState:
    return replace(state, kernels={name: state.kernels[name] for name in kernels if name in state.kernels})


def _incumbent_after(story: Story, state: SessionState, event: e.Event) -> str:
    """The incumbent after the event: looked up only where the present one may have lost the lead."""
    match event:
        case e.SessionPrepared():
            best = queries.incumbent(state)
        case e.KernelVerified(kernel=kernel) | e.KernelMeasured(kernel=kernel) if kernel != story.incumbent:
            best = queries.incumbent(_restricted(state, (story.incumbent, kernel)))
        case e.KernelVerified() | e.KernelMeasured():
            best = queries.incumbent(state)
        case e.IncumbentChanged(kernel=kernel):
            return kernel
        case e.KernelReopened(kernel=kernel) | e.KernelFailed(kernel=kernel) | e.KernelCancelled(kernel=kernel):
            if kernel != story.incumbent:
                return story.incumbent
            best = queries.incumbent(state)
        case _:
            return story.incumbent
    return best.id if best is not None else ""


def _lead_line(state: SessionState, incumbent: str) -> Line:
    ratio = queries.speedup(state, state.kernels[incumbent])
    words = f" leads now: {fmt.times(ratio)} {queries.ranking_baseline(state)}" if ratio else " leads now"
    return line(Cell("★ ", Ink.BEST), Cell(incumbent, Ink.BEST), Cell(words, Ink.GOOD))
