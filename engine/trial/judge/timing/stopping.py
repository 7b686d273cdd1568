"""The number of process pairs of a measurement: bounds, and the stopping rule. No torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import fmean

from engine.domain import stats

PAIRS = {"cuda": (3, 8), "cpu": (3, 6)}
"""Minimum and maximum of process pairs in a precise measurement, by kind of device. On a CPU flushing the caches takes most of
a second per pair, and a race decides who leads."""
RACE_PAIRS = (3, 5)
"""Minimum and maximum of process pairs in a race for the lead; doubled for each step of effort."""
SUSTAINED_PAIRS = 4
"""Process pairs of a kernel's measurement in the sustained regime after which it goes on only if the interval is wide: at the
power limit the clock moves by a percent. On an H200 a pair took 3 to 5 s with bursts of 50 ms."""
MOST_PAIRS_S = 60.0
"""Seconds of a precise measurement after which no process pair is taken beyond the fewest: where a reference takes seconds, a
pair takes half a minute. The interval is then wider."""
MOST_SUSTAINED_S = 30.0
"""The same for a measurement back to back: a pair of eight workloads takes 8 s."""
_CLEAR = 3.0
"""A race stops when its ratio is this many half-widths from 1: noise does not reach that, even if checked after every pair."""
_HALF_WIDTH = {"cuda": 0.01, "cpu": 0.03}
"""Half-width of the interval (in logarithms) at which a precise measurement stops."""
_WIDE = 2.5
"""An interval so many times as wide calls for more pairs in the sustained regime. Four pairs of matmul_fp16 once gave ±5% on
an H200, although their median differed from 1 by a thousandth."""

LEAST_SAME_PAIRS = 3
"""Fewest process pairs of the ranking baseline against itself."""


def is_same(itself: Sequence[float], others: Collection[Sequence[float]], kind: str) -> bool:
    """Whether the ranking baseline against itself, and the ``others`` against it, need no further process pair.

    Log ratios, one a pair. Done are intervals no wider than the one at which a kernel's measurement stops, around 1 for the
    baseline itself: a smaller floor would decide nothing. Few pairs give wide intervals, so a noisy baseline rarely gets there
    by luck: intervals cover as often as with all pairs, and are up to 7% wider (``benchmarks/interval_coverage.py``).
    """
    if len(itself) < LEAST_SAME_PAIRS:
        return False
    same = stats.ratio_interval(itself)
    halves = [math.log(one.high / one.low) / 2 for one in map(stats.ratio_interval, others)]
    return max(math.log(same.high), -math.log(same.low), *halves) <= _HALF_WIDTH[kind]


def race_bounds(effort: int | None) -> tuple[int, int] | None:
    """Minimum and maximum of process pairs in a race; ``None``: those of a precise measurement."""
    return (RACE_PAIRS[0] << effort, RACE_PAIRS[1] << effort) if effort is not None else None


def is_settled(log_ratios: Sequence[float], kind: str, claimable: float, *, raced: bool = False) -> bool:
    """Whether the interval of a kernel's speedup is narrow enough or, in a race, clear of 1, however wide it is.

    ``log_ratios``: one a process pair. ``claimable`` is the smallest effect that is ever claimed (in logarithms): a narrower
    interval has no use. It is itself an estimate: pairs that differ by a factor of thousands make it large too, and settle
    nothing.
    """
    ratio = stats.ratio_interval(log_ratios)
    half = math.log(ratio.high / ratio.low) / 2
    clear = raced and abs(math.log(ratio.value)) > _CLEAR * max(half, claimable)
    return clear or (half <= max(_HALF_WIDTH[kind], claimable) and stats.is_measurable(ratio))


def mean_logs(by_workload: Sequence[Sequence[float]]) -> list[float]:
    """The mean over the workloads of a suite, for each process pair that all of them have."""
    return [fmean(one) for one in zip(*by_workload, strict=False)]


def owed(
    by_workload: Sequence[Sequence[float]], doubted: Collection[int], kind: str, claimable: float, *, raced: bool = False
) -> frozenset[int]:
    """The places of the workloads on which another process pair is to be taken; none of them: the suite is settled.

    Log ratios by workload. A wide interval of their mean calls for a pair on each workload. A doubt may be noise, and calls for
    one on its workload: of many workloads, other work on the machine always disturbs some.
    """
    if not is_settled(mean_logs(by_workload), kind, claimable, raced=raced):
        return frozenset(range(len(by_workload)))
    return frozenset(doubted)


def is_enough_sustained(by_workload: Sequence[Sequence[float]], kind: str, seconds: float) -> bool:
    """Whether a kernel's measurement in the sustained regime ends, settled or not, after so many seconds of pairs.

    Log ratios by workload, one a process pair.
    """
    if max(map(len, by_workload)) < SUSTAINED_PAIRS:
        return False
    ratio = stats.ratio_interval(mean_logs(by_workload))
    return seconds > MOST_SUSTAINED_S or math.log(ratio.high / ratio.low) / 2 <= _WIDE * _HALF_WIDTH[kind]


def cut_short(owed: Collection[int], seconds: float) -> str:
    """Why a precise measurement ends although pairs are ``owed``, after so many seconds of pairs; empty if it goes on."""
    if not owed or seconds <= MOST_PAIRS_S:
        return ""
    return f"a wider interval: the process pairs so far took {seconds:.0f} s, and no further one was taken"
