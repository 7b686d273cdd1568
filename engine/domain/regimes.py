"""Regimes: how calls follow each other when a kernel is timed, and which regime decides. Pure.

``single`` is one call at full clock with cold caches. ``sustained`` is calls back to back over rotating operands, at the clock
that the device's power limit leaves. A model calls its kernels back to back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain.figures import Interval, WorkloadTime


class Regime(StrEnum):
    """How calls follow each other when they are timed."""

    SINGLE = "single"
    SUSTAINED = "sustained"


AUTO = "auto"
"""``sustained`` on a GPU where operations bind, else ``single``."""
CHOICES = (AUTO, *(one.value for one in Regime))


@dataclass(frozen=True, slots=True)
class ClockAndPower:
    """A device while something was timed on it; ``None`` where unknown."""

    sm_mhz: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class Sustained:
    """A kernel's time in the sustained regime, by the judge's clock. Over a suite, geometric means."""

    time_us: Interval
    """Microseconds of a call."""
    speedup: Mapping[str, Interval]
    """The ranking baseline → speedup, both sustained."""
    calls: int
    """Counted calls of the kernel."""
    processes: int
    kernel: ClockAndPower = ClockAndPower()
    baseline: ClockAndPower = ClockAndPower()
    corroborated: bool = True
    conditions: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why the time is not corroborated, one line each."""
    raw: str = ""
    """Blob of all bursts."""
    by_workload: tuple[WorkloadTime, ...] = ()
    """Over a suite: each workload's."""


def deciding(setting: str, bound: str, device_kind: str) -> Regime:
    """The regime that decides under this setting (none: single calls), for a problem with this roofline bound on such a device.

    Memory-bound kernels agree in both regimes; on a GPU those that arithmetic bounds reach the power limit when they are called
    back to back. Single calls decide everything else, also a suite whose workloads have different bounds: every one of them has
    inputs that the kernel has not seen.
    """
    if setting == AUTO:
        binds = device_kind == "cuda" and bound.startswith("operations")
        return Regime.SUSTAINED if binds else Regime.SINGLE
    return Regime(setting) if setting else Regime.SINGLE


def wants_sustained(setting: str, device_kind: str) -> bool:
    """Whether leaders are measured in the sustained regime too.

    On a CPU only where it decides: no power limit tells the regimes apart there, and it takes as long as the rest of a verdict.
    """
    return setting == Regime.SUSTAINED or (bool(setting) and device_kind == "cuda")


def disagree(single: Interval, sustained: Interval) -> bool:
    """Whether the speedups of the two regimes contradict each other: their intervals are disjoint."""
    return single.high < sustained.low or sustained.high < single.low
