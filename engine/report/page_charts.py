"""The figures of the report's two charts: the best speedup as kernels were tried, and the roofline. Pure: numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from engine.domain import queries
from engine.domain.state import Kernel, SessionState, Stage


@dataclass(frozen=True, slots=True)
class Dot:
    """One kernel in a chart; ``y`` is ``None`` for one that failed."""

    kernel: str
    x: float
    y: float | None
    sound: bool
    """Measured precisely; a screened one is drawn hollow."""
    leads: bool = False


@dataclass(frozen=True, slots=True)
class Climb:
    """Speedup over kernels tried, in the order in which they were drafted."""

    baseline: str
    dots: tuple[Dot, ...]
    best: tuple[tuple[float, float], ...]
    """(kernel, speedup of the incumbent once it was in)."""
    rounds: tuple[tuple[int, float, float], ...]
    """(round, its first kernel, its last kernel)."""


def climb(state: SessionState) -> Climb:
    """Every settled kernel; the best is followed by the lower end of its interval, as the rules rank, among those that led."""
    leader = queries.incumbent(state)
    dots: list[Dot] = []
    steps: list[tuple[float, float]] = []
    rounds: dict[int, tuple[float, float]] = {}
    lead = 0.0
    for place, kernel in enumerate(state.kernels.values(), 1):
        rounds[kernel.round] = (min(rounds.get(kernel.round, (place, 0))[0], place), place)
        ratio = queries.speedup(state, kernel)
        if ratio is None or kernel.stage is not Stage.MEASURED:
            dots += [Dot(kernel.id, place, None, False)] if kernel.stage is Stage.FAILED else []
            continue
        leads = leader is not None and kernel.id == leader.id
        dots.append(Dot(kernel.id, place, ratio.value, queries.is_precise(kernel), leads))
        if _may_lead(kernel) and (not state.reigns or kernel.id in state.reigns) and ratio.low > lead:
            lead = ratio.low
            steps.append((place, ratio.value))
    spans = tuple((number, first, last) for number, (first, last) in sorted(rounds.items()))
    return Climb(queries.ranking_baseline(state), tuple(dots), tuple(steps), spans)


def _may_lead(kernel: Kernel) -> bool:
    believed = bool(kernel.accepted) or (kernel.measurement is not None and kernel.measurement.corroborated)
    return believed and queries.is_precise(kernel)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where the kernels stand under what the device allows, as measured on it.

    Every kernel of a problem does the reference's operations on at least its bytes, so all stand at one intensity.
    """

    intensity: float
    """Operations a byte moved."""
    copy: float
    """Bytes a second."""
    peaks: tuple[tuple[str, float], ...]
    """(unit, operations a second)."""
    dots: tuple[Dot, ...]
    """``y``: operations a second."""
    bound: str


def roofline(state: SessionState) -> Roofline | None:
    """``None`` before the session is prepared, or where nothing is computed or moved."""
    found = state.preparation
    if found is None or not found.bytes_moved or not found.signature.operations or not found.peaks.operations_per_s:
        return None
    leader = queries.incumbent(state)
    operations = found.signature.operations
    intensity = operations / found.bytes_moved
    dots = tuple(
        Dot(k.id, intensity, operations / (k.measurement.time_us.value * 1e-6), queries.is_precise(k), k is leader)
        for k in state.kernels.values()
        if k.measurement is not None and k.stage is Stage.MEASURED and queries.speedup(state, k) is not None
    )
    peaks = tuple(sorted(found.peaks.operations_per_s.items(), key=lambda item: item[1]))
    return Roofline(intensity, found.peaks.copy_bytes_per_s, peaks, dots, found.bound)
