"""Earlier ideas with their outcomes, notes and prediction records as text for the next prompt. Pure."""

from __future__ import annotations

from collections import Counter

from engine.domain import corroboration, predictions, queries
from engine.domain.model import Author
from engine.domain.predictions import PredictionRecord
from engine.domain.state import Idea, IdeaStatus, Kernel, SessionState, Stage
from engine.ideas.prompts.context import NOTHING, factor, without_holdouts

_MAX_REASON = 240
_MAX_NOTES = 40


def outcomes(state: SessionState) -> str:
    """All ideas of the session, oldest first: one line each, plus one for each reason why kernels failed."""
    lines = [line for idea in state.ideas.values() for line in _lines(state, idea)]
    return "\n".join(lines) or NOTHING


def _lines(state: SessionState, idea: Idea) -> list[str]:
    parent = f" on {idea.parent}" if idea.parent else ""
    predicted = f"; predicted {idea.text.predicted:.3g}x" if idea.text.predicted is not None else ""
    about = f"round {idea.round}{parent}, {idea.author.name}{predicted}"
    head = f'- {idea.id} [{idea.text.category}] "{_line(idea.text.title)}" ({about})'
    return [f"{head}: {_outcome(state, idea)}", *(f"  - {line}" for line in _failures(state, idea))]


def _outcome(state: SessionState, idea: Idea) -> str:
    match idea.status:
        case IdeaStatus.REJECTED:
            return f"rejected by the engineer: {_line(idea.reason)}" if idea.reason else "rejected by the engineer"
        case IdeaStatus.PARKED:
            return "parked, not tried"
        case IdeaStatus.PROPOSED:
            return "awaiting approval"
    if not idea.kernels:
        return f"no kernel: {_line(idea.note) or 'none was written'}" if idea.implemented else "being implemented"
    dead = "DEAD: " if predictions.is_dead(state, idea) else ""
    best = predictions.best_kernel(state, idea)
    if best is not None:
        return dead + _measured(state, best, len(idea.kernels))
    settled = all(state.kernels[k].stage.settled for k in idea.kernels)
    return f"{dead}none of its {len(idea.kernels)} kernels was verified" if settled else "in progress"


def _measured(state: SessionState, best: Kernel, count: int) -> str:
    gain = predictions.gain(state, best)
    over_baseline = queries.speedup(state, best)
    gains = []
    if gain is not None:
        gains.append(f"{factor(gain)} over its parent {best.parent}")
    if over_baseline is not None and not corroboration.is_doubted(best):
        gains.append(f"{over_baseline.value:.3g}x over {queries.ranking_baseline(state)}")
    values = ", ".join(f"{name} = {value}" for name, value in best.tunables.items())
    tuned = f" with {values}" if values else ""
    found = "correct, but its time is not corroborated" if corroboration.is_doubted(best) else "measured"
    which = f"best of {count} kernels is {best.id}" if count > 1 else best.id
    return f"{which}{tuned}: " + (", ".join(gains) or found)


def _failures(state: SessionState, idea: Idea) -> list[str]:
    """Why its kernels failed or were quarantined, each reason once."""
    ended = [state.kernels[k] for k in idea.kernels if k in state.kernels]
    reasons = Counter(
        f"{k.failure.kind.value}: {_line(without_holdouts(k.failure.reason))}"
        for k in ended
        if k.failure is not None and k.stage in (Stage.FAILED, Stage.REPAIR)
    )
    quarantined = Counter(_line(without_holdouts("; ".join(k.evidence))) for k in ended if k.stage is Stage.QUARANTINED)
    count = len(idea.kernels)
    return [
        *(f"{times} of {count} failed, {reason}" for reason, times in reasons.items()),
        *(f"{times} of {count} quarantined: {reason}" for reason, times in quarantined.items()),
    ]


def notes(state: SessionState) -> str:
    """The engineer's notes, newest last."""
    kept = state.notes[-_MAX_NOTES:]
    return "\n".join(f"- {note.target + ': ' if note.target else ''}{_line(note.text)}" for note in kept) or NOTHING


def record(state: SessionState, author: Author) -> str:
    """The author's predictions compared with the measurements, in one sentence."""
    recorded = predictions.record_of(state, author.name)
    return _sentence(recorded) if recorded is not None else "None of your predictions has been measured yet."


def _sentence(past: PredictionRecord) -> str:
    """A prediction record as one sentence to its author."""
    fruitless = f"{past.fruitless} of your ideas gave no verified kernel" if past.fruitless else ""
    if not past.count:
        return f"{fruitless}; no prediction could be scored."
    bias = "no bias"
    if past.bias > 1.02:
        bias = f"{past.bias:.2f}x too high in the median"
    elif past.bias < 0.98:
        bias = f"{1 / past.bias:.2f}x too low in the median"
    return (
        f"{past.count} scored: median error a factor of {past.error:.2f}, {bias}, right direction in "
        f"{past.hits} of {past.count}{'; ' + fruitless if fruitless else ''}."
    )


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 1] + "…"
