"""How many process pairs a measurement takes: the bounds, and the rule that stops it in between. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.domain import stats
from engine.trial.judge.timing import KERNEL, PairTimes, log_ratios

PAIRS = {"cuda": (3, 8), "cpu": (3, 6)}
"""Process pairs of a precise measurement, at least and at most, by kind of device. On a CPU a pair takes most of a second to
flush the caches, and a race settles who leads."""
RACE_PAIRS = (3, 5)
"""Process pairs of a race for the lead, at least and at most; twice as many for each step of effort."""
_CLEAR = 3.0
"""A race is over when its ratio is this many half-widths from 1: checking after every pair cannot make that of noise."""
_HALF_WIDTH = {"cuda": 0.01, "cpu": 0.03}
"""Half-width of the interval (in logarithms) at which a precise measurement stops."""


def race_bounds(effort: int | None) -> tuple[int, int] | None:
    """Process pairs of a race, at least and at most; ``None`` for as many as a precise measurement takes."""
    return (RACE_PAIRS[0] << effort, RACE_PAIRS[1] << effort) if effort is not None else None


def is_settled(pairs: Sequence[PairTimes], against: str, kind: str, claimable: float, *, raced: bool = False) -> bool:
    """Whether the interval of ``against`` ÷ kernel is narrow enough, or, in a race, clear of 1 however wide it is.

    ``claimable`` is the smallest effect that is ever claimed: a narrower interval would be worth nothing.
    """
    ratio = stats.ratio_interval(log_ratios(pairs, against, KERNEL))
    half = math.log(ratio.high / ratio.low) / 2
    clear = raced and abs(math.log(ratio.value)) > _CLEAR * max(half, claimable)
    return clear or half <= max(_HALF_WIDTH[kind], claimable)
