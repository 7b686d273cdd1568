"""The axes of the report's charts: they map values to pixels and place the ticks. The template draws the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.report.facts.charts import Climb, Roofline
from engine.report.facts.ticks import powers_of_ten


@dataclass(frozen=True, slots=True)
class Frame:
    """A chart's size and the edges of its plot, in pixels."""

    width: int = 760
    height: int = 320
    left: int = 72
    right: int = 742
    top: int = 22
    bottom: int = 276


FRAME = Frame()


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps a range of values to a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = True

    def __call__(self, value: float) -> float:
        share = self.share(value, self.low, self.high) if self.logarithmic else (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * share

    @staticmethod
    def share(value: float, low: float, high: float) -> float:
        """The position of a value between ``low`` (0) and ``high`` (1) on a logarithmic scale."""
        return math.log(max(value, 1e-300) / low) / math.log(high / low)

    def ticks(self) -> list[float]:
        """1, 2, 5, 10 … within the range; finer steps for a narrow range."""
        steps = (1, 2, 5) if self.high / self.low > 3 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        values = [step * 10.0**power for power in range(-4, 6) for step in steps]
        return [float(f"{value:.6g}") for value in values if self.low <= value <= self.high]

    def decades(self) -> list[float]:
        """Powers of ten within the range; ``ticks`` if there are fewer than two."""
        powers = powers_of_ten((math.log10(self.low), math.log10(self.high)))
        return [10.0**power for power in powers] if len(powers) >= 2 else self.ticks()


def climb_axes(found: Climb) -> tuple[Axis, Axis] | None:
    """Kernels in drafting order, and their speedups. ``None`` without a measured kernel."""
    values = [dot.speedup for dot in found.dots if dot.speedup is not None and dot.speedup > 0]
    if not values:
        return None
    x = Axis(0.4, found.rounds[-1][2] + 0.6, FRAME.left, FRAME.right, logarithmic=False)
    return x, Axis(min(0.9, *values) / 1.15, max(1.1, *values) * 1.2, FRAME.bottom, FRAME.top)


def roofline_axes(found: Roofline) -> tuple[Axis, Axis]:
    """Operations per byte, and operations per second."""
    ridges = [rate / found.copy for _, rate in found.peaks]
    x = Axis(min(found.intensity, *ridges) / 6, max(found.intensity, *ridges) * 8, FRAME.left, FRAME.right)
    lowest = min([found.copy * x.low * 2, *(dot.rate for dot in found.dots)])
    return x, Axis(lowest / 2, found.peaks[-1][1] * 2.2, FRAME.bottom, FRAME.top)
