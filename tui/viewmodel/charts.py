"""What the two charts show: the best speedup by round with every kernel as a dot, and the roofline. Pure: numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.state import SessionState

_SPREAD = 0.32
"""How far dots of one round stand to the sides of it, in rounds."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One kernel in a chart."""

    kernel: str
    x: float
    y: float
    sound: bool
    """Measured precisely; a screened one is drawn hollow."""


@dataclass(frozen=True, slots=True)
class Climb:
    """Speedup over rounds."""

    baseline: str
    dots: tuple[Dot, ...]
    best: tuple[tuple[float, float], ...]
    """Corners of the stairs: (round, best speedup so far)."""
    rounds: tuple[int, ...]


def climb(state: SessionState) -> Climb:
    """Every measured kernel by its round, those of one round side by side in the order they were drafted."""
    by_round: dict[int, list[Dot]] = {}
    for kernel in state.kernels.values():
        ratio = queries.speedup(state, kernel)
        if ratio is not None:
            dot = Dot(kernel.id, float(kernel.round), ratio.value, queries.is_precise(kernel))
            by_round.setdefault(kernel.round, []).append(dot)
    dots: list[Dot] = []
    for number, here in by_round.items():
        for place, dot in enumerate(here):
            aside = 0.0 if len(here) == 1 else _SPREAD * (2 * place / (len(here) - 1) - 1)
            dots.append(Dot(dot.kernel, number + aside, dot.y, dot.sound))
    corners: list[tuple[float, float]] = []
    for number, value in _best_by_round(state, by_round):
        if corners:
            corners.append((float(number), corners[-1][1]))
        corners.append((float(number), value))
    return Climb(queries.ranking_baseline(state), tuple(dots), tuple(corners), tuple(sorted(state.rounds)))


def _best_by_round(state: SessionState, by_round: Mapping[int, list[Dot]]) -> list[tuple[int, float]]:
    """(round, best speedup so far); counts each kernel once, where ``queries.best_by_round`` counts all for every round."""
    best, found = 0.0, []
    for number in sorted(state.rounds):
        best = max([best, *(dot.y for dot in by_round.get(number, ()))])
        if best > 0:
            found.append((number, best))
    return found


@dataclass(frozen=True, slots=True)
class Roof:
    """One ceiling of the device: operations a second by operations a byte."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where the kernels stand under what the device allows, as measured on it.

    Every kernel of a problem does the reference's operations on at least its bytes, so all stand at one intensity.
    """

    intensity: float
    """Operations a byte moved."""
    roofs: tuple[Roof, ...]
    dots: tuple[Dot, ...]
    """y: operations a second; x: the intensity."""
    bound: str
    counted: bool
    """Whether the operations were counted; else one stands for each output element."""


def roofline(state: SessionState) -> Roofline | None:
    """``None`` before the session is prepared, or where nothing is computed or moved."""
    found = state.preparation
    operations = found.signature.shown_operations if found is not None else 0.0
    if found is None or not found.bytes_moved or not operations or not found.peaks.operations_per_s:
        return None
    intensity = operations / found.bytes_moved
    copy = found.peaks.copy_bytes_per_s
    ridges = [peak / copy for peak in found.peaks.operations_per_s.values()]
    left, right = min([intensity, *ridges]) / 8, max([intensity, *ridges]) * 8
    roofs = tuple(
        Roof(unit, ((left, copy * left), (peak / copy, peak), (right, peak)))
        for unit, peak in found.peaks.operations_per_s.items()
    )
    dots = tuple(
        Dot(k.id, intensity, operations / (k.measurement.time_us.value * 1e-6), queries.is_precise(k))
        for k in state.kernels.values()
        if k.measurement is not None and queries.speedup(state, k) is not None
    )
    return Roofline(intensity, roofs, dots, found.bound, bool(found.signature.operations))
