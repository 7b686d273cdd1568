"""Medians, confidence intervals and paired samples. Pure.

Times are positive and skewed, so ratios are averaged as logarithms. The unit of inference is the *process pair*: one process
runs the baseline, one the kernel, interleaved block by block. Samples within a process share its memory layout: more samples do
not reduce the error between processes, more pairs do (intervals are Student's t over pairs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from engine.domain.figures import Interval

_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% quantiles of Student's t for 1, 2, 3 … 30 degrees of freedom."""


_LARGEST_LOG = 709.0


def t95(degrees: int) -> float:
    """Two-sided 95% quantile of Student's t."""
    if degrees < 1:
        raise ValueError("an interval needs at least two values")
    return _T95[degrees - 1] if degrees <= len(_T95) else 1.96 + 2.5 / degrees


def median_interval(samples: Sequence[float]) -> Interval:
    """Median with its distribution-free interval from order statistics, as many on either side; all samples below six.

    Ranks by the normal approximation, one further out: it covers 95% exactly for six samples and more.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        raise ValueError("no samples")
    half = 0.98 * math.sqrt(n)
    low = max(0, math.floor(n / 2 - half) - 1)
    return Interval(median(ordered), ordered[low], ordered[n - 1 - low])


def pair_log_ratio(baseline_blocks: Sequence[Sequence[float]], kernel_blocks: Sequence[Sequence[float]]) -> float:
    """log(baseline ÷ kernel) of one process pair: the median over block pairs of the ratio of block medians.

    Blocks are paired in the order in which they ran: drift slower than a block cancels.
    """
    ratios = [math.log(median(b) / median(k)) for b, k in zip(baseline_blocks, kernel_blocks, strict=True) if b and k]
    if not ratios:
        raise ValueError("no block pairs")
    return median(ratios)


def ratio_interval(log_ratios: Sequence[float], floor: float = 0.0) -> Interval:
    """Speedup with its 95% interval from the log-ratios of process pairs.

    ``floor`` is the smallest half-width, in logarithms, that the session's A/A run allows.
    """
    centre = fmean(log_ratios)
    n = len(log_ratios)
    spread = t95(n - 1) * stdev(log_ratios) / math.sqrt(n) if n > 1 else math.inf
    half = max(spread, floor)
    return Interval(_exp(centre), _exp(centre - half), _exp(centre + half))


def _exp(x: float) -> float:
    """e to the x, infinite on overflow: an absurd time reported by a runner must not crash the judge."""
    return math.inf if x > _LARGEST_LOG else math.exp(x)


def block_interval(baseline_blocks: Sequence[Sequence[float]], kernel_blocks: Sequence[Sequence[float]]) -> Interval:
    """Speedup of a single process pair with the interval over its blocks: for a screen, without the spread between
    processes."""
    ratios = [math.log(median(b) / median(k)) for b, k in zip(baseline_blocks, kernel_blocks, strict=True) if b and k]
    return ratio_interval(ratios)


def widened(interval: Interval, factor: float) -> Interval:
    """The interval with its ends moved outwards by ``factor`` (≥ 1)."""
    return Interval(interval.value, interval.low / factor, interval.high * factor)


def significant(interval: Interval) -> str:
    """``faster``, ``slower`` or ``undecided`` against 1.0."""
    if interval.low > 1.0:
        return "faster"
    return "slower" if interval.high < 1.0 else "undecided"


_WIDEST = 10.0
"""The ratio of an interval's ends beyond which a speedup whose interval contains 1 is no result."""


def is_measurable(interval: Interval) -> bool:
    """Whether a speedup's interval says anything: it excludes 1.0, or its ends are within a factor of ten of each other."""
    return significant(interval) != "undecided" or interval.high <= _WIDEST * interval.low
