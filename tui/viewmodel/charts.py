"""Both charts as the terminal draws them: kernels by round, the roofline. The figures come from ``report.facts.charts``."""

from __future__ import annotations

from dataclasses import dataclass

from engine.domain.state import SessionState
from engine.report.facts import charts

_SPREAD = 0.32
"""Horizontal spread of the dots of one round, in rounds."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A kernel in a chart."""

    kernel: str
    x: float
    y: float
    precise: bool
    """Measured with process pairs; a screened kernel is drawn hollow."""


@dataclass(frozen=True, slots=True)
class ClimbPlot:
    """Speedup over rounds."""

    baseline: str
    dots: tuple[Dot, ...]
    line: tuple[tuple[float, float], ...]
    """(round, the incumbent's speedup at its end)."""
    rounds: tuple[int, ...]


def climb(state: SessionState) -> ClimbPlot:
    """Every measured kernel by its round; kernels of one round side by side, oldest first."""
    found = charts.climb(state)
    by_round: dict[int, list[tuple[str, float, bool]]] = {}
    for dot in found.dots:
        if dot.speedup is not None:
            by_round.setdefault(dot.round, []).append((dot.kernel, dot.speedup, dot.precise))
    dots = []
    for number, here in by_round.items():
        for place, (kernel, speedup, precise) in enumerate(here):
            aside = 0.0 if len(here) == 1 else _SPREAD * (2 * place / (len(here) - 1) - 1)
            dots.append(Dot(kernel, number + aside, speedup, precise))
    line = tuple((float(number), speedup) for number, speedup in found.by_round)
    return ClimbPlot(found.baseline, tuple(dots), line, tuple(sorted(state.rounds)))


@dataclass(frozen=True, slots=True)
class RooflineSegments:
    """One ceiling of the device: operations per second over operations per byte."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class RooflinePlot:
    """Ceilings as lines, kernels as dots at one arithmetic intensity."""

    facts: charts.Roofline
    ceilings: tuple[RooflineSegments, ...]
    dots: tuple[Dot, ...]
    """y: operations per second; x: arithmetic intensity."""


def roofline(state: SessionState) -> RooflinePlot | None:
    """The roofline; ``None`` before the preparation or without measured peaks."""
    found = charts.roofline(state)
    if found is None:
        return None
    copy = found.copy
    ridges = [peak / copy for _, peak in found.peaks]
    left, right = min([found.intensity, *ridges]) / 8, max([found.intensity, *ridges]) * 8
    ceilings = tuple(
        RooflineSegments(unit, ((left, copy * left), (peak / copy, peak), (right, peak))) for unit, peak in found.peaks
    )
    return RooflinePlot(found, ceilings, tuple(Dot(d.kernel, found.intensity, d.rate, d.precise) for d in found.dots))
