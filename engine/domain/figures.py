"""Figures of a kernel: values with their intervals, and those on each workload of a suite. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class PrecisionClass(StrEnum):
    """How close an output is to float64: the arithmetic with which the reference itself has as large an error."""

    FP32 = "fp32"
    TF32 = "tf32"
    HALF = "half"
    EXACT = "exact"
    """Integer and boolean outputs, which must match exactly."""
    NONE = "none"
    """Worse than every class."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95% confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """The least time that the device's peaks allow for this workload (SOL)."""

    bound: str
    """The limiting resource: ``bytes``, or ``operations`` with the unit, e.g. ``operations (fp32)``."""
    floor_us: float
    fraction: float
    """floor ÷ measured time: 1.0 is as fast as the device allows."""


@dataclass(frozen=True, slots=True)
class WorkloadErrors:
    """A kernel's errors on one workload of a suite."""

    workload: str
    trials: int
    rel_fro: float
    rel_fro_limit: float
    max_scaled: float
    max_scaled_limit: float
    precision_class: PrecisionClass


@dataclass(frozen=True, slots=True)
class WorkloadTime:
    """A kernel's time on one workload of a suite."""

    workload: str
    time_us: Interval
    speedup: Mapping[str, Interval]
    """Baseline name → speedup."""
    light: SpeedOfLight | None = None


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """The kernel of a dispatch that serves one workload of a suite, with the values of its tunables there."""

    workload: str
    member: str
    tunables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadTuning:
    """The values of a kernel's tunables that were the fastest on one workload of a suite."""

    workload: str
    tunables: Mapping[str, int]
    ratio: Interval
    """Speedup over the kernel's own values, by screens; 1 where they were kept."""


@dataclass(frozen=True, slots=True)
class WorkloadRatio:
    """The speedup of one kernel over another on one workload of a suite."""

    workload: str
    ratio: Interval
