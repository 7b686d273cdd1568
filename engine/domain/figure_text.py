"""How figures are written: a value alone, and a value with the ends of its interval. Pure.

The figures of one interval share their number of decimals, which follows from the value: 0.140 [0.087, 0.220].
"""

from __future__ import annotations

import math

from engine.domain.figures import Interval

_NOTHING = 5e-7
_BOUNDLESS = 1e7
_WIDE = 100.0
"""Ends further apart than this factor have no common decimals: each has those it would have alone."""

Figures = tuple[str, str, str]
"""A value and the ends of its interval."""


def exact(value: float) -> str:
    """A number that somebody chose, such as a size or a limit, with all of its digits."""
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def digits(value: float) -> str:
    """Three significant digits without an exponent; integer digits are never dropped, and what has six zeros is 0."""
    return _rounded(value, digit_places(value))


def digit_places(value: float) -> int:
    """The decimals of three significant digits, at most six."""
    if not math.isfinite(value) or abs(value) < _NOTHING:
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(abs(value)))))


def ratio(value: float) -> str:
    """A speedup: two decimals, more below 0.1, none from 100 up; ``∞`` for the end of an interval that holds everything."""
    return "∞" if value >= _BOUNDLESS else _rounded(value, _ratio_places(value))


def ratio_figures(interval: Interval) -> Figures:
    """A speedup with the ends of its interval: two decimals, three where the interval is narrow or reaches below 0.1."""
    if _is_wide(interval):
        return ratio(interval.value), ratio(interval.low), ratio(interval.high)
    return at_places(interval, interval_places(interval))


def interval_places(interval: Interval) -> int:
    """The decimals of a speedup and of the ends of its interval."""
    places = _ratio_places(interval.value)
    if 0.1 <= interval.value < 10 and (interval.low < 0.1 or 0 < interval.high - interval.low < 0.008):
        return places + 1
    return places


def digit_figures(interval: Interval) -> Figures:
    """A value with three significant digits, and the ends of its interval with as many decimals."""
    if _is_wide(interval):
        return digits(interval.value), digits(interval.low), digits(interval.high)
    return at_places(interval, digit_places(interval.value))


def at_places(interval: Interval, places: int) -> Figures:
    """The value and the ends with this number of decimals."""
    return _rounded(interval.value, places), _rounded(interval.low, places), _rounded(interval.high, places)


def percent(fraction: float) -> str:
    """``37%``, or ``0.4%`` below one percent."""
    return f"{fraction:.0%}" if fraction >= 0.01 or fraction == 0 else f"{fraction:.1%}"


def percent_of(part: int, whole: int) -> str:
    """``37.2%`` of a whole; never 0% or 100% by rounding."""
    if part == whole:
        return "100%"
    share = 100 * part / whole if whole else 0.0
    return "> 99.9%" if share > 99.9 else f"{share:.3g}%" if share >= 0.01 else "< 0.01%"


def _ratio_places(value: float) -> int:
    return digit_places(value) if value < 0.1 else 2 if value < 100 else 0


def _is_wide(interval: Interval) -> bool:
    return not interval.high <= _WIDE * interval.low


def _rounded(value: float, places: int) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    return "0" if abs(value) < _NOTHING else f"{value:.{places}f}"
