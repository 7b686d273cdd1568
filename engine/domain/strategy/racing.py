"""When another race is worth more than another kernel. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.domain import queries, races
from engine.domain.model import RaceOutcome
from engine.domain.state import SessionState
from engine.domain.strategy.belief import Belief
from engine.domain.strategy.regression import expected_improvement

COST = 0.5
"""What a race costs, in kernels: it needs no model, no build and no verification, but the device."""
MOST = 0.5
"""Seconds of races for each second of other work on kernels, from which the strategy requests no more. On a noisy processor the
kernels of one idea differ by less than their intervals, and races between them would take most of a session."""
_LEAST = 0.003
"""The least expected improvement for which a race is run."""


@dataclass(frozen=True, slots=True)
class RaceWorth:
    """A race that may replace the incumbent."""

    kernel: str
    against: str
    ahead: float
    """The expected logarithm of the speedup of ``kernel`` over the incumbent."""
    deviation: float
    improvement: float
    """What the incumbent is expected to gain by it."""


def is_spent(state: SessionState) -> bool:
    """Whether races have taken their share of the time."""
    raced = sum(race.seconds for race in state.races)
    return raced > MOST * (sum(kernel.seconds for kernel in state.kernels.values()) - raced)


def race_worth(state: SessionState, belief: Belief) -> RaceWorth | None:
    """The race against the incumbent that is worth most; ``None`` if no race is worth its time.

    A kernel may be faster than the incumbent although it was measured as slower: the better of two is chosen after a race, so
    its worth is the expected improvement over the incumbent. Of two kernels whose race was undecided, only a difference counts
    that the next one could tell. Those whose races stayed undecided do not race again.
    """
    incumbent = queries.incumbent(state)
    if incumbent is None or incumbent.id not in belief.parents or not races.may_race(state, incumbent):
        return None
    known = belief.evidence.kernels
    lead = belief.parents[incumbent.id]
    found: RaceWorth | None = None
    for name, record in belief.parents.items():
        if name == incumbent.id or known[name].copy:
            continue
        deviation = math.sqrt(record.variance + lead.variance)
        least = _least_shown(state, name, incumbent.id)
        improvement = expected_improvement(record.value - lead.value, deviation, least)
        if improvement <= (found.improvement if found is not None else _LEAST):
            continue
        kernel = state.kernels[name]
        if queries.may_lead(state, kernel) and races.may_race(state, kernel) and _is_open(state, name, incumbent.id):
            found = RaceWorth(name, incumbent.id, record.value - lead.value, deviation, improvement)
    return found


def _least_shown(state: SessionState, kernel: str, incumbent: str) -> float:
    """The logarithm of the least speedup that the next race of the two could show; 0 if they have not raced.

    It has twice the process pairs of the latest one.
    """
    last = races.latest_race(state, kernel, incumbent)
    if last is None or last.ratio is None or not 0 < last.ratio.low < last.ratio.high < math.inf:
        return 0.0
    return math.log(last.ratio.high / last.ratio.low) / 2 / math.sqrt(2)


def _is_open(state: SessionState, kernel: str, incumbent: str) -> bool:
    """Whether another race of the two may tell more: they have not raced, or were undecided at less than the full effort."""
    last = races.latest_race(state, kernel, incumbent)
    return last is None or (last.outcome is RaceOutcome.UNDECIDED and last.effort < races.MAX_EFFORT)
