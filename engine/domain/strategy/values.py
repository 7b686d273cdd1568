"""What is known about a kernel's speed: its own measurement, and the races that it ran. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from engine.domain import races
from engine.domain.model import Interval
from engine.domain.state import SessionState

WINDOW = 250
"""The latest trials, kernels and races that count as evidence: failure rates and authors change during a long session."""
_SWEEPS = 30
_LEAST_VARIANCE = 1e-8
_Link = tuple[str, float, float]
"""The other kernel of a race, the logarithm of the speedup over it, and its variance."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A kernel that can be a parent."""

    id: str
    parent: str | None
    value: float
    """Logarithm of its measured speedup over the baseline."""
    variance: float
    """Variance of ``value``."""
    stem: str = ""
    """The stem of its idea."""
    pinned: bool = False
    tunable: bool = False
    """Whether other values of its tunables can be tried."""
    copy: bool = False
    """Whether it has the machine code of another one, on which the search builds instead."""
    combined: bool = False
    """Whether it is a dispatch, on whose members the search builds instead."""


def variance(ratio: Interval) -> float:
    """The variance of the logarithm, from its 95% interval."""
    return (math.log(ratio.high / ratio.low) / 3.92) ** 2


def with_races(state: SessionState, kernels: Mapping[str, Parent]) -> dict[str, Parent]:
    """The kernels with values that agree best with their own measurements and with the current races between them.

    Weighted least squares by Gauss-Seidel: a measurement is known up to its variance, the difference of two raced kernels up to
    the variance of the race's ratio.
    """
    links: dict[str, list[_Link]] = {}
    for race in islice(reversed(state.races), WINDOW):
        pair = (race.kernel, race.against)
        if race.ratio is None or not _usable(race.ratio) or not all(one in kernels for one in pair):
            continue
        if races.is_current(state, race):
            difference, spread = math.log(race.ratio.value), max(_LEAST_VARIANCE, variance(race.ratio))
            links.setdefault(race.kernel, []).append((race.against, difference, spread))
            links.setdefault(race.against, []).append((race.kernel, -difference, spread))
    values = {name: kernels[name].value for name in links}
    for _ in range(_SWEEPS):
        for name, around in links.items():
            own = 1.0 / max(_LEAST_VARIANCE, kernels[name].variance)
            total = own * kernels[name].value + sum((values[other] + d) / s for other, d, s in around)
            values[name] = total / (own + sum(1.0 / s for _, _, s in around))
    return {name: _raced(kernel, values, kernels, links) for name, kernel in kernels.items()}


def _usable(ratio: Interval) -> bool:
    return 0 < ratio.low <= ratio.value <= ratio.high < math.inf


def _raced(
    kernel: Parent, values: Mapping[str, float], kernels: Mapping[str, Parent], links: Mapping[str, list[_Link]]
) -> Parent:
    """Its variance takes each raced kernel for known by its own measurement only."""
    if kernel.id not in links:
        return kernel
    own = 1.0 / max(_LEAST_VARIANCE, kernel.variance)
    more = sum(1.0 / (spread + kernels[other].variance) for other, _, spread in links[kernel.id])
    return replace(kernel, value=values[kernel.id], variance=1.0 / (own + more))
