"""Successive halving of a kernel's tunables, on every workload of a suite side by side. Pure.

A trial judges one kernel on the whole suite, and that kernel may have other values on each workload. So one trial serves all
workloads at once: each tries the next of its own candidates. After a lap of trials each workload keeps the faster half of its
candidates, beside the kernel's own values, which are in every lap as the reference. What was measured in earlier laps counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.domain import suite
from engine.domain.model import Interval

Values = Mapping[str, int]
"""The values of a kernel's tunables."""

CANDIDATES = 8
"""Combinations tried on each workload, the kernel's own included: at most 8 + 4 trials."""


@dataclass(frozen=True, slots=True)
class WorkloadHalving:
    """The candidates of one workload that are left, the kernel's own values first, and what was measured of each."""

    workload: str
    candidates: tuple[Values, ...]
    measured: tuple[tuple[Interval, ...], ...] = ()
    """Of each candidate: its speedup over the baseline in each lap."""
    lost: frozenset[int] = field(default_factory=frozenset)
    """Candidates that failed."""

    @classmethod
    def start(cls, workload: str, own: Values, others: Sequence[Values]) -> WorkloadHalving:
        """The kernel's own values and at most ``CANDIDATES - 1`` others."""
        others = [one for one in others if dict(one) != dict(own)][: CANDIDATES - 1]
        return cls(workload, (own, *others), ((),) * (1 + len(others)))

    @property
    def is_open(self) -> bool:
        """Whether any other values are left."""
        return len(self.candidates) > 1

    def place(self, trial: int) -> int:
        """The candidate that a trial of the lap tries; the kernel's own values where there are fewer candidates."""
        return trial if trial < len(self.candidates) else 0

    def with_result(self, trial: int, ratio: Interval | None) -> WorkloadHalving:
        """The state after a trial that measured this speedup; ``None``: the trial failed."""
        at = self.place(trial)
        if ratio is None:
            return replace(self, lost=self.lost | {at}) if at else self
        own = (*self.measured[at], ratio)
        return replace(self, measured=(*self.measured[:at], own, *self.measured[at + 1 :]))

    def halved(self) -> WorkloadHalving:
        """After a lap: the kernel's own values and the faster half of the others, without those that failed or are slower than
        its own by the whole interval."""
        right = (at for at in range(1, len(self.candidates)) if at not in self.lost and self.measured[at] and self.measured[0])
        places = [at for at in right if self._ratio(at).high > 1.0]
        places.sort(key=lambda at: -suite.geometric_mean(self.measured[at]).value)
        kept = (0, *places[: (len(self.candidates) // 2) - 1 or 1])
        return WorkloadHalving(
            self.workload, tuple(self.candidates[at] for at in kept), tuple(self.measured[at] for at in kept)
        )

    def fastest(self) -> tuple[Values, Interval]:
        """The fastest values with their speedup over the kernel's own; its own where none is faster by the whole interval."""
        ratios = [(at, self._ratio(at)) for at in range(1, len(self.candidates)) if self.measured[at] and self.measured[0]]
        at, ratio = max(ratios, key=lambda pair: pair[1].low, default=(0, Interval(1.0, 1.0, 1.0)))
        return (self.candidates[at], ratio) if ratio.low > 1.0 else (self.candidates[0], Interval(1.0, 1.0, 1.0))

    def _ratio(self, at: int) -> Interval:
        mine, own = (suite.geometric_mean(self.measured[one]) for one in (at, 0))
        if min(mine.low, own.low) <= 0:
            return Interval(mine.value / own.value if own.value > 0 else 1.0, 0.0, math.inf)
        value = mine.value / own.value
        below = math.hypot(math.log(mine.value / mine.low), math.log(own.high / own.value))
        above = math.hypot(math.log(mine.high / mine.value), math.log(own.value / own.low))
        return Interval(value, value * math.exp(-below), value * math.exp(above))


def trials(halvings: Sequence[WorkloadHalving]) -> int:
    """How many trials the next lap takes; 0 if no workload has other values left."""
    return max((len(one.candidates) for one in halvings if one.is_open), default=0)


def is_over(halvings: Sequence[WorkloadHalving]) -> bool:
    """Whether each workload has at most one candidate beside the kernel's own values, measured twice or more."""
    return all(len(one.candidates) <= 2 and len(one.measured[-1]) > 1 for one in halvings if one.is_open)
