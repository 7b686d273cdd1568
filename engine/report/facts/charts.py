"""The figures of both charts: the incumbent's speedup kernel by kernel, and the roofline. Numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from engine.domain import corroboration, queries
from engine.domain.state import Kernel, SessionState, Stage


@dataclass(frozen=True, slots=True)
class ClimbDot:
    """One kernel; ``speedup`` is ``None`` for one that failed."""

    kernel: str
    place: int
    """Its number in drafting order."""
    round: int
    speedup: float | None
    precise: bool
    """Measured precisely and not doubted. Other kernels are drawn as hollow dots."""
    incumbent: bool


@dataclass(frozen=True, slots=True)
class IncumbentStep:
    """A kernel that took the lead. A kernel drafted before its predecessor is drawn at the predecessor's place."""

    kernel: str
    place: int
    speedup: float


@dataclass(frozen=True, slots=True)
class Climb:
    """Every kernel as a dot and the incumbents as a line. A dot above the line measured faster but won no race."""

    baseline: str
    dots: tuple[ClimbDot, ...]
    incumbents: tuple[IncumbentStep, ...]
    by_round: tuple[tuple[int, float], ...]
    """(round, speedup of the incumbent at its end)"""
    rounds: tuple[tuple[int, int, int], ...]
    """(round, place of its first kernel, place of its last)"""


def _is_sure(kernel: Kernel) -> bool:
    return queries.is_precise(kernel) and not corroboration.is_doubted(kernel)


@lru_cache(maxsize=4)  # a preview and the screen of a session draw the same state, and a cursor key draws it again
def climb(state: SessionState) -> Climb:
    """The line follows the incumbents in the journal and ends at the current one."""
    incumbent = queries.incumbent(state)
    dots: list[ClimbDot] = []
    places: dict[str, int] = {}
    rounds: dict[int, tuple[int, int]] = {}
    for place, kernel in enumerate(state.kernels.values(), 1):
        places[kernel.id] = place
        rounds[kernel.round] = (rounds.get(kernel.round, (place, 0))[0], place)
        ratio = queries.speedup(state, kernel)
        if ratio is not None or kernel.stage is Stage.FAILED:
            value = ratio.value if ratio is not None else None
            dots.append(ClimbDot(kernel.id, place, kernel.round, value, _is_sure(kernel), kernel is incumbent))
    steps: list[IncumbentStep] = []
    for kernel in queries.incumbents(state):
        if (ratio := queries.speedup(state, kernel)) is not None:
            place = max(places[kernel.id], steps[-1].place if steps else 0)
            steps.append(IncumbentStep(kernel.id, place, ratio.value))
    spans = tuple((number, *span) for number, span in sorted(rounds.items()))
    return Climb(queries.ranking_baseline(state), tuple(dots), tuple(steps), queries.incumbent_by_round(state), spans)


@dataclass(frozen=True, slots=True)
class RooflineDot:
    """One kernel under the roofline."""

    kernel: str
    rate: float
    """Operations per second."""
    precise: bool
    incumbent: bool


@dataclass(frozen=True, slots=True)
class Roofline:
    """The kernels under the device's measured ceilings.

    All kernels share one arithmetic intensity: the reference's operations over its compulsory bytes.
    """

    intensity: float
    """Operations per byte moved."""
    counted: bool
    """Whether the operations were counted. If not, one operation per output element is assumed."""
    copy: float
    """Bytes per second."""
    peaks: tuple[tuple[str, float], ...]
    """(unit, operations per second), slowest first."""
    dots: tuple[RooflineDot, ...]
    bound: str


def roofline(state: SessionState) -> Roofline | None:
    """``None`` before the session is prepared, or if no bytes are moved or no peak was measured.

    Leaves out a kernel whose time is not a positive number: a journal may hold any.
    """
    found = state.preparation
    operations = found.signature.shown_operations if found is not None else 0.0
    if found is None or not found.bytes_moved or not operations or not found.peaks.operations_per_s:
        return None
    if not 0 < found.peaks.copy_bytes_per_s < math.inf or not all(
        0 < r < math.inf for r in found.peaks.operations_per_s.values()
    ):
        return None
    incumbent = queries.incumbent(state)
    dots = tuple(
        RooflineDot(k.id, operations / (k.measurement.time_us.value * 1e-6), _is_sure(k), k is incumbent)
        for k in state.kernels.values()
        if k.measurement is not None and 0 < k.measurement.time_us.value < math.inf and queries.speedup(state, k) is not None
    )
    peaks = tuple(sorted(found.peaks.operations_per_s.items(), key=lambda item: item[1]))
    counted = bool(found.signature.counted_operations)
    return Roofline(operations / found.bytes_moved, counted, found.peaks.copy_bytes_per_s, peaks, dots, found.bound)
