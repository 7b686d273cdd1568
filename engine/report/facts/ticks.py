"""Round figures for the axes of charts, on the screen and on the page. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

Span = tuple[float, float]


def round_ticks(span: Span, most: int) -> list[float]:
    """At most ``most`` round numbers within a span, or one more where it begins and ends with one; none in an endless one."""
    length = span[1] - span[0] or 1.0
    step = next((s * 10.0**p for p in range(-6, 13) for s in (1, 2, 5) if length / (s * 10.0**p) <= max(1, most)), math.inf)
    if math.isinf(step):
        return []
    return [float(f"{step * n:.6g}") for n in range(math.ceil(span[0] / step - 1e-9), math.floor(span[1] / step + 1e-9) + 1)]


def powers_of_ten(span: Span) -> Sequence[int]:
    """The powers of ten within a span of logarithms."""
    return range(math.ceil(span[0]), math.floor(span[1]) + 1)


def log_ticks(span: Span, most: int) -> list[float]:
    """Powers of ten within a span of logarithms, thinned to ``most``; in a short span also their doubles and halves."""
    powers = powers_of_ten(span)
    if len(powers) >= 2:
        return [float(power) for power in powers[:: max(1, -(-len(powers) // max(1, most)))]]
    every = [power + math.log10(digit) for power in range(math.floor(span[0]), math.ceil(span[1]) + 1) for digit in (1, 2, 5)]
    return [value for value in every if span[0] <= value <= span[1]][: max(1, most)]
