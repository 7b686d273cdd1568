"""Which of several searches the next kernels are worth most in. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.state import SessionState
from engine.domain.strategy.choice import decided
from engine.domain.strategy.evidence import evidence
from engine.domain.strategy.regression import expected_improvement
from engine.domain.strategy.steps import NextStep, improvement, new_idea_gain

LONGEST_WAIT = 4
"""In every fourth turn the search with the fewest kernels is next, whatever is expected of it: an expectation may be wrong."""
_STALLED = 6.0
"""Ideas without an improvement of the best after which a search counts half."""


def worth(state: SessionState) -> float:
    """What the next kernel is expected to add to the logarithm of the session's best speedup: infinite before the naive port.

    The posterior is the adaptive strategy's, for sessions of every strategy. Ideas tried in vain lower it, and no kernel can
    gain more than the speed of light leaves.
    """
    if not state.kernels:
        return math.inf
    found = evidence(state) if state.opened is not None else None
    if found is None or not found.kernels:
        return 0.0
    step = decided(found, None, may_ask=True)
    return min(next_gain(step) / (1.0 + step.belief.stalled / _STALLED), _room(state))


def next_gain(step: NextStep) -> float:
    """The expected improvement of the best kernel by the next one: a new idea, or the one that the decision takes."""
    belief = step.belief
    top = belief.parents[belief.best].value
    gain = belief.newly * expected_improvement(new_idea_gain(belief), belief.posterior.noise)
    if step.pair is not None:
        gain = max(gain, improvement(belief, step.pair, top))
    return gain


def _room(state: SessionState) -> float:
    """The logarithm of what the speed of light leaves to gain."""
    best = queries.incumbent(state)
    sol = best.measurement.light if best is not None and best.measurement is not None else None
    return max(0.0, -math.log(sol.fraction)) if sol is not None and sol.fraction > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one of several searches stands."""

    name: str
    kernels: int
    worth: float
    ended: str = ""
    """Why it gets no more kernels; empty while it may."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """Which search is next, by its position, and why."""

    position: int
    reason: str


def next_turn(standings: Sequence[Standing], number: int) -> NextTurn | None:
    """The search that is next in turn ``number``: each once, then the one that is worth most; ``None`` if all have ended."""
    searching = [(at, one) for at, one in enumerate(standings) if not one.ended]
    if not searching:
        return None
    for at, one in searching:
        if math.isinf(one.worth):
            return NextTurn(at, "its first kernels")
    if number % LONGEST_WAIT == LONGEST_WAIT - 1:
        at, one = min(searching, key=lambda pair: pair[1].kernels)
        return NextTurn(at, f"it has the fewest kernels, {one.kernels}; every fourth turn goes by that")
    at, one = max(searching, key=lambda pair: pair[1].worth)
    others = [other.worth for place, other in searching if place != at]
    than = f", the next best {math.exp(max(others)):.3f}×" if others else ""
    return NextTurn(at, f"its next kernel is expected to gain {math.exp(one.worth):.3f}×{than}")
