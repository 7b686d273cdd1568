"""Scores the predicted speedups of ideas over their parents against the measurements. Pure.

Errors are logarithms of ratios, displayed as factors: 1.25 is a prediction 25% too high or 20% too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from engine.domain import queries
from engine.domain.model import Interval
from engine.domain.state import Idea, Kernel, SessionState, Stage
from engine.domain.stats import significant

_LEAST, _MOST = 1e-100, 1e100
"""No measured speedup lies outside; ratios of those between do not overflow. A damaged journal may hold any number."""


@dataclass(frozen=True, slots=True)
class ScoredPrediction:
    """One prediction and the measured speedup."""

    idea: str
    author: str
    predicted: float
    measured: Interval
    """The idea's best kernel over its parent kernel."""

    @property
    def error(self) -> float:
        """ln(predicted ÷ measured); above 0, the prediction was too high."""
        return math.log(self.predicted / self.measured.value)

    @property
    def hit(self) -> bool:
        """Whether the direction was right. An undecided measurement only confirms a prediction of 1.0."""
        if self.predicted == 1.0:
            return significant(self.measured) == "undecided"
        return significant(self.measured) == ("faster" if self.predicted > 1.0 else "slower")


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """The accuracy of one author's predictions."""

    author: str
    count: int
    """Predictions that could be scored."""
    error: float
    """Median factor between prediction and measurement, at least 1.0; 1.0 where none was scored."""
    bias: float
    """Median of predicted ÷ measured; above 1.0, the author's predictions are too high."""
    hits: int
    """Predictions whose direction was right."""
    fruitless: int
    """Predictions of ideas without a verified kernel, which cannot be scored."""


def gain(state: SessionState, kernel: Kernel) -> Interval | None:
    """The kernel's measured speedup over its parent; ``None`` if one of them has no corroborated time, or both have not on one
    device with the same baselines.

    Both were measured against the same baseline in separate runs, so their errors are independent and add in quadrature.
    """
    parent = state.kernels.get(kernel.parent or "")
    if parent is None or parent.epoch != kernel.epoch:
        return None
    mine, before = _measured(state, kernel), _measured(state, parent)
    if mine is None or before is None:
        return None
    value = mine.value / before.value
    down = math.hypot(math.log(mine.value / mine.low), math.log(before.high / before.value))
    up = math.hypot(math.log(mine.high / mine.value), math.log(before.value / before.low))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def _measured(state: SessionState, kernel: Kernel) -> Interval | None:
    """Speedup over the ranking baseline, if it is sound, and its interval one that a measurement can give."""
    if kernel.measurement is None or kernel.stage is not Stage.MEASURED or not queries.is_sound(kernel):
        return None
    found = kernel.measurement.speedup.get(queries.ranking_baseline(state))
    usable = found is not None and _LEAST <= found.low <= found.value <= found.high <= _MOST
    return found if usable else None


def best_kernel(state: SessionState, idea: Idea) -> Kernel | None:
    """The idea's best measured kernel; where none is measured with the present device and baselines, of the latest others."""
    here = _best_here(state, idea)
    if here is not None:
        return here
    known = [(k.epoch, found.low, k.id) for k in map(state.kernels.__getitem__, idea.kernels) if (found := _measured(state, k))]
    return state.kernels[max(known)[-1]] if known else None


def _best_here(state: SessionState, idea: Idea) -> Kernel | None:
    return _best_by_idea(state).get(idea.id)


@lru_cache(maxsize=4)  # a report asks for every idea of one state, and a session may have thousands
def _best_by_idea(state: SessionState) -> Mapping[str, Kernel]:
    best: dict[str, Kernel] = {}
    for kernel in queries.ranked(state):
        if kernel.stage is Stage.MEASURED:
            best.setdefault(kernel.idea, kernel)
    return best


def best_gain(state: SessionState, idea: Idea) -> Interval | None:
    """The speedup of the idea's best measured kernel over that kernel's parent."""
    best = best_kernel(state, idea)
    return gain(state, best) if best is not None else None


def is_dead(state: SessionState, idea: Idea) -> bool:
    """Whether all kernels of the idea have settled and none is verified, or the best is slower than its parent."""
    if not idea.implemented or not idea.kernels or not all(state.kernels[k].stage.settled for k in idea.kernels):
        return False
    if all(state.kernels[k].stage is Stage.CANCELLED for k in idea.kernels):
        return False
    best = _best_here(state, idea)
    if best is None:
        return not any(state.kernels[k].stage in (Stage.MEASURED, Stage.QUARANTINED) for k in idea.kernels)
    measured = gain(state, best)
    return measured is not None and significant(measured) == "slower"


def scored_predictions(state: SessionState) -> tuple[ScoredPrediction, ...]:
    """Every prediction with a measured outcome, in the order of the ideas, except for edited ideas, which have two
    authors."""
    outcomes = ((idea, best_gain(state, idea)) for idea in _predicted(state))
    return tuple(
        ScoredPrediction(idea.id, idea.author.name, idea.text.predicted, measured)
        for idea, measured in outcomes
        if measured is not None and idea.text.predicted is not None
    )


def records(state: SessionState) -> tuple[PredictionRecord, ...]:
    """The records of all authors with tested predictions, sorted by name."""
    by_author: dict[str, list[ScoredPrediction]] = {}
    for one in scored_predictions(state):
        by_author.setdefault(one.author, []).append(one)
    fruitless = [i.author.name for i in _predicted(state) if best_kernel(state, i) is None and is_dead(state, i)]
    names = sorted({*by_author, *fruitless})
    return tuple(_record_of_author(name, by_author.get(name, []), fruitless.count(name)) for name in names)


def record_of(state: SessionState, author: str) -> PredictionRecord | None:
    """One author's record; ``None`` if none of their predictions was tested."""
    return next((r for r in records(state) if r.author == author), None)


def _predicted(state: SessionState) -> Iterator[Idea]:
    return (i for i in state.ideas.values() if i.text.predicted is not None and i.text.predicted > 0 and not i.edited)


def _record_of_author(author: str, own: list[ScoredPrediction], fruitless: int) -> PredictionRecord:
    errors = [one.error for one in own]
    typical = math.exp(median(abs(e) for e in errors)) if errors else 1.0
    bias = math.exp(median(errors)) if errors else 1.0
    return PredictionRecord(author, len(own), typical, bias, sum(one.hit for one in own), fruitless)
