"""The ideas of a round as cards of a few lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.domain import queries
from engine.domain.state import Idea, IdeaStatus, SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut, cut_cells, flat, joined, line, width, wrapped
from tui.viewmodel.kernels import Outcome

_STATUS: Mapping[IdeaStatus, Outcome] = {
    IdeaStatus.PROPOSED: Outcome("◇", "to decide", Ink.WARN),
    IdeaStatus.SELECTED: Outcome("◆", "selected", Ink.GOOD),
    IdeaStatus.REJECTED: Outcome("✗", "rejected", Ink.FAILED),
    IdeaStatus.PARKED: Outcome("‖", "parked", Ink.CANCELLED),
}
_WRITING = Outcome("✎", "being written", Ink.BUILD)


def status(state: SessionState, idea: Idea) -> Outcome:
    """What became of the idea, or what it waits for."""
    if idea.status is IdeaStatus.SELECTED and f"implement:{idea.id}" in state.started:
        return _WRITING
    return _STATUS[idea.status]


def shown_round(state: SessionState, wanted: int | None) -> int:
    """The round asked for; without one the open round, or else the last."""
    if wanted is not None:
        return wanted
    opened = queries.open_round(state)
    return opened.number if opened is not None else queries.last_round(state)


def shown(state: SessionState, wanted: int | None, order: Sequence[str] = ()) -> tuple[Idea, ...]:
    """The round's ideas, those that wait first; ``order`` names ids that come before all others, in that order.

    With the open round come ideas of earlier rounds that still wait or are parked.
    """
    number = shown_round(state, wanted)
    found = [i for i in state.ideas.values() if i.round == number or (wanted is None and _open(i))]
    places = {name: place for place, name in enumerate(order)}
    ranks = {IdeaStatus.PROPOSED: 0, IdeaStatus.SELECTED: 1, IdeaStatus.PARKED: 2, IdeaStatus.REJECTED: 3}
    found.sort(key=lambda i: (places.get(i.id, len(places)), ranks[i.status], i.rank, -i.round))
    return tuple(found)


def _open(idea: Idea) -> bool:
    return idea.status in (IdeaStatus.PROPOSED, IdeaStatus.PARKED)


def card(state: SessionState, idea: Idea, room: int, rationale_lines: int = 2) -> tuple[Line, ...]:
    """Title and status, then where it aims and what it promises, then as much of the rationale as there are lines."""
    settled = idea.status in (IdeaStatus.REJECTED, IdeaStatus.PARKED)
    became = status(state, idea)
    ink = Ink.FAINT if settled else Ink.TITLE
    lead = (Cell(f"{became.glyph} ", became.ink), Cell(f"{idea.id} ", Ink.FAINT if settled else Ink.STRONG))
    left = room - width(lead[0].text) - width(lead[1].text) - width(became.word) - 2
    title = cut(flat(idea.text.title), max(8, left))
    gap = " " * max(1, left - width(title) + 2)
    lines = [line(*lead, Cell(title, ink), Cell(gap), Cell(became.word, became.ink)), _facts(state, idea, room)]
    words = f"rejected: {idea.reason}" if idea.status is IdeaStatus.REJECTED and idea.reason else idea.text.rationale
    reasons = wrapped(words, min(room - 4, 96))
    for place, part in enumerate(reasons[:rationale_lines]):
        more = place == rationale_lines - 1 and len(reasons) > rationale_lines
        lines.append(line(Cell(f"    {cut(part + ' …', room - 4) if more else part}", Ink.FAINT)))
    return tuple(lines)


def _facts(state: SessionState, idea: Idea, room: int) -> Line:
    predicted = fmt.ratio(idea.text.predicted) if idea.text.predicted is not None else ""
    parts: list[Sequence[Cell]] = [
        (Cell("predicted ", Ink.LABEL), Cell(predicted, Ink.ACCENT)) if predicted else (),
        (Cell("on ", Ink.LABEL), *kernels.described(state, idea.parent)) if idea.parent else (),
        _kernels(state, idea),
        (Cell(kernels.author(idea.author.name), Ink.ACCENT if idea.author.is_engineer else Ink.PLAIN),)
        if idea.author.name
        else (),
        (Cell("edited", Ink.WARN),) if idea.edited else (),
        (Cell("beside it ", Ink.LABEL), Cell(", ".join(idea.materials), Ink.STRONG)) if idea.materials else (),
        (Cell("written by ", Ink.LABEL), Cell(kernels.author(idea.writer), Ink.ACCENT)) if idea.writer else (),
        (Cell(flat(idea.text.category), Ink.LABEL),) if idea.text.category else (),
    ]
    return line(*cut_cells((Cell("    "), *joined(parts, Cell(" · ", Ink.RULE))), room))


def _kernels(state: SessionState, idea: Idea) -> tuple[Cell, ...]:
    """How many implementations are wanted, or what came of those that are there."""
    there = [state.kernels[k] for k in idea.kernels if k in state.kernels]
    if not there:
        return (Cell(fmt.counted(idea.branch, "kernel")),)
    ratios = [r for r in (queries.speedup(state, k) for k in there) if r is not None]
    count = Cell(fmt.counted(len(there), "kernel"))
    return (count, Cell(", best "), fmt.speedup(max(ratios, key=lambda r: r.low))) if ratios else (count,)
