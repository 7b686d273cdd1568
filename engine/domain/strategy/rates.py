"""What the ideas of each category gained over their parents, counted over sessions: for priors and for prompts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.domain import predictions
from engine.domain.round_plan import CategoryRate
from engine.domain.state import Idea, SessionState
from engine.domain.stats import significant
from engine.domain.strategy.evidence import TUNE, bottleneck, combines


def rates(states: Iterable[SessionState]) -> tuple[CategoryRate, ...]:
    """Category × bottleneck → what its ideas gained, without the naive port, and without ideas that only tune or
    combine kernels."""
    found: dict[tuple[str, str], list[tuple[bool, float | None]]] = {}
    for state in states:
        for idea in state.ideas.values():
            if (outcome := _outcome(state, idea)) is not None:
                found.setdefault((idea.text.category, bottleneck(state)), []).append(outcome)
    return tuple(_rate(category, bound, own) for (category, bound), own in sorted(found.items()))


def _outcome(state: SessionState, idea: Idea) -> tuple[bool, float | None] | None:
    """Whether an idea beat its parent, and the logarithm of its gain if it was measured; ``None`` while that is open."""
    if idea.round == 0 or not idea.implemented or combines(idea) or idea.text.key.startswith(f"{TUNE}:"):
        return None
    gain = predictions.best_gain(state, idea)
    if gain is None:
        return (False, None) if predictions.is_dead(state, idea) else None
    return significant(gain) == "faster", math.log(gain.value)


def _rate(category: str, bound: str, own: list[tuple[bool, float | None]]) -> CategoryRate:
    gains = [gain for _, gain in own if gain is not None]
    mean = sum(gains) / len(gains) if gains else 0.0
    return CategoryRate(category, len(own), sum(faster for faster, _ in own), mean, bound)
