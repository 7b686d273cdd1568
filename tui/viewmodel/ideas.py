"""The ideas of a round as cards of a few lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.domain import bottleneck, corroboration, queries
from engine.domain.model import PLAYBOOK
from engine.domain.state import Idea, IdeaStatus, SessionState
from engine.domain.work import Implement
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut, join_fitting, line, one_line, width, wrap
from tui.viewmodel.kernels import Outcome

_STATUS: Mapping[IdeaStatus, Outcome] = {
    IdeaStatus.PROPOSED: Outcome("◇", "to approve", Ink.WARN),
    IdeaStatus.SELECTED: Outcome("◆", "approved", Ink.GOOD),
    IdeaStatus.REJECTED: Outcome("✗", "rejected", Ink.FAILED),
    IdeaStatus.PARKED: Outcome("‖", "parked", Ink.CANCELLED),
}
_SURPLUS = Outcome("‖", "surplus", Ink.CANCELLED)
"""Its round was full; it may be proposed again."""
_WRITING = Outcome("✎", "being written", Ink.BUILD)
LEGEND = (*_STATUS.values(), _WRITING)
"""The status of an idea, one of each, for the legend."""
_RATIONALE_LINES = 2


def awaiting_approval(ideas: int) -> str:
    """``3 ideas await approval``."""
    return f"{fmt.counted(ideas, 'idea')} await{'s' if ideas == 1 else ''} approval"


def status(state: SessionState, idea: Idea) -> Outcome:
    """The idea's status."""
    if idea.status is IdeaStatus.SELECTED and Implement(idea.id).key in state.running:
        return _WRITING
    return _SURPLUS if queries.is_surplus(idea) else _STATUS[idea.status]


def round_number(state: SessionState, number: int | None) -> int:
    """The given round, or else the open round, or else the last."""
    if number is not None:
        return number
    opened = queries.open_round(state)
    return opened.number if opened is not None else queries.last_round(state)


def ideas_in_order(state: SessionState, number: int | None, order: Sequence[str] = ()) -> tuple[Idea, ...]:
    """The round's ideas: those in ``order`` first, then those that await approval.

    Without a round, open and parked ideas of earlier rounds are included.
    """
    chosen = round_number(state, number)
    found = [i for i in state.ideas.values() if i.round == chosen or (number is None and _open(i))]
    places = {name: place for place, name in enumerate(order)}
    ranks = {IdeaStatus.PROPOSED: 0, IdeaStatus.SELECTED: 1, IdeaStatus.PARKED: 2, IdeaStatus.REJECTED: 3}
    found.sort(key=lambda i: (places.get(i.id, len(places)), ranks[i.status], i.rank, -i.round))
    return tuple(found)


def _open(idea: Idea) -> bool:
    return idea.status in (IdeaStatus.PROPOSED, IdeaStatus.PARKED)


def card(state: SessionState, idea: Idea, room: int) -> tuple[Line, ...]:
    """Title and status; parent and prediction; the beginning of the rationale."""
    settled = idea.status in (IdeaStatus.REJECTED, IdeaStatus.PARKED)
    became = status(state, idea)
    ink = Ink.FAINT if settled else Ink.TITLE
    lead = (Cell(f"{became.glyph} ", became.ink), Cell(f"{idea.id} ", Ink.FAINT if settled else Ink.STRONG))
    left = room - width(lead[0].text) - width(lead[1].text) - width(became.word) - 2
    title = cut(one_line(idea.text.title), max(8, left))
    gap = " " * max(1, left - width(title) + 2)
    lines = [line(*lead, Cell(title, ink), Cell(gap), Cell(became.word, became.ink)), _facts(state, idea, room)]
    words = f"rejected: {idea.reason}" if idea.status is IdeaStatus.REJECTED and idea.reason else idea.text.rationale
    reasons = wrap(one_line(words), min(room - 4, 96))
    for place, part in enumerate(reasons[:_RATIONALE_LINES]):
        more = place == _RATIONALE_LINES - 1 and len(reasons) > _RATIONALE_LINES
        lines.append(line(Cell(f"    {cut(part + ' …', room - 4) if more else part}", Ink.FAINT)))
    return tuple(lines)


def _facts(state: SessionState, idea: Idea, room: int) -> Line:
    predicted = fmt.ratio(idea.text.predicted) if idea.text.predicted is not None else ""
    parts: list[Sequence[Cell]] = [
        (Cell("predicted ", Ink.LABEL), Cell(predicted, Ink.ACCENT)) if predicted else (),
        (Cell("on ", Ink.LABEL), *kernels.label(state, idea.parent)) if idea.parent else (),
        *_kernels(state, idea),
        (Cell("nobody writes it", Ink.WARN),) if nobody_writes(state, idea) else (),
        (Cell(kernels.author(idea.author.name), Ink.ACCENT if idea.author.is_engineer else Ink.PLAIN),)
        if idea.author.name
        else (),
        (Cell("edited", Ink.WARN),) if idea.edited else (),
        (Cell("attached ", Ink.LABEL), Cell(", ".join(idea.materials), Ink.STRONG)) if idea.materials else (),
        (Cell("writer ", Ink.LABEL), Cell(kernels.author(idea.writer), Ink.ACCENT)) if idea.writer else (),
        (Cell(one_line(idea.text.category), Ink.LABEL),) if idea.text.category else (),
    ]
    return line(Cell("    "), *join_fitting(parts, Cell(" · ", Ink.RULE), room - 4))


def nobody_writes(state: SessionState, idea: Idea) -> bool:
    """Whether no writer of the session can write the idea's code: the playbook has none for an idea in words."""
    writer = idea.writer or state.models.writer or state.models.source
    in_words = not idea.text.key and not idea.author.is_agent
    return in_words and not idea.implemented and idea.status is not IdeaStatus.REJECTED and writer == PLAYBOOK


def idea_facts(state: SessionState, idea: Idea, advice: str = "") -> tuple[tuple[str, str], ...]:
    """(name, words) of everything known of an idea, besides its title and rationale.

    ``advice``: what the adaptive strategy expects of it now.
    """
    text = idea.text
    parent = "".join(cell.text for cell in kernels.label(state, idea.parent))
    writer = "nobody: the playbook has no code for an idea in words. Write it yourself, or choose a writer."
    rows = (
        ("category", text.category),
        ("parent", parent),
        ("evidence", parent_evidence(state, idea)),
        ("predicted", f"{fmt.ratio(text.predicted)} over its parent" if text.predicted is not None else "none"),
        ("expected", text.expected),
        ("risks", text.risks),
        ("kernels", f"{idea.branch} requested" + (f": {', '.join(idea.kernels)}" if idea.kernels else "")),
        ("author", kernels.author(idea.author.name) + (", edited" if idea.edited else "")),
        ("repeats", idea.repeats),
        ("attached", ", ".join(idea.materials)),
        ("writer", writer if nobody_writes(state, idea) else idea.writer),
        ("status", _status_words(state, idea)),
        ("strategy", advice or idea.advice),
        ("note", idea.note),
        *(("note", note.text) for note in state.notes if note.target == idea.id),
    )
    return tuple((name, words) for name, words in rows if words)


def _status_words(state: SessionState, idea: Idea) -> str:
    """The status, with its reason. That an idea awaits approval stands beside its title."""
    if queries.is_surplus(idea):
        return "surplus: its round was full; approve it, or it may be proposed again"
    word = status(state, idea).word
    return f"{word}: {idea.reason}" if idea.reason else "" if idea.status is IdeaStatus.PROPOSED else word


def parent_evidence(state: SessionState, idea: Idea) -> str:
    """What was measured of the parent: time, share of the speed of light, errors, what its counters say."""
    parent = state.kernels.get(idea.parent) if idea.parent else None
    measured = parent.measurement if parent is not None else None
    if parent is None or measured is None:
        return ""
    moved = state.preparation.bytes_moved if state.preparation is not None else 0
    parts = (
        fmt.duration(measured.time_us.value),
        fmt.sol(measured.light.fraction) if measured.light is not None else "",
        f"{parent.verification.precision_class.value} class" if parent.verification is not None else "",
        bottleneck.summary(parent.profile, moved) if parent.profile is not None else "",
    )
    return " · ".join(filter(None, parts))


def _kernels(state: SessionState, idea: Idea) -> tuple[Sequence[Cell], ...]:
    """The number of kernels, and the speedup of the one with the highest lower bound."""
    made = [state.kernels[k] for k in idea.kernels if k in state.kernels]
    if not made:
        return ((Cell(fmt.counted(idea.branch, "kernel")),),)
    ratios = [r for r in (queries.speedup(state, k) for k in made if not corroboration.is_doubted(k)) if r is not None]
    count = (Cell(fmt.counted(len(made), "kernel")),)
    return (count, (Cell("fastest "), fmt.speedup(max(ratios, key=lambda r: r.low)))) if ratios else (count,)
