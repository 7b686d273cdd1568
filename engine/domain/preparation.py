"""The result of preparing a session: signature, tolerance, baselines and device peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain.model import Blob, Interval, Measurement, PrecisionClass, Signature

_DECIDED_BY_ROUNDING = 0.1
"""An error of the reference's own arithmetic, as a share of an output's spread."""
_DECIDED_BY_VALUES = 0.01
"""One that leaves a limit, several times as large, which tells kernels apart."""


@dataclass(frozen=True, slots=True)
class TrivialModel:
    """A model that computes nothing, which the correctness check must reject. If one passes, the check is worthless."""

    name: str
    """``zeros``, ``constant``, ``other input's output``, ``input echo``, ``one tile unwritten``; with ``as out1``, of one of
    several outputs."""
    passed: bool
    rel_fro: float


@dataclass(frozen=True, slots=True)
class ClassErrors:
    """The reference's own error in one precision class against float64, over the calibration inputs."""

    rel_fro: float
    max_scaled: float


@dataclass(frozen=True, slots=True)
class CorrectnessCheck:
    """The tolerance of a session, and the trivial models that it was tested with."""

    policy: str
    allowed: PrecisionClass
    rel_fro_limit: float
    max_scaled_limit: float
    factor: float
    classes: Mapping[str, ClassErrors]
    """Reference error by precision class."""
    nulls: tuple[TrivialModel, ...]
    notes: tuple[str, ...] = ()
    """Caveats: float64 fell back to float32, the output hardly depends on the input …"""

    @property
    def verifiable(self) -> bool:
        """Whether every trivial model failed."""
        return not any(n.passed for n in self.nulls)

    @property
    def fooled(self) -> str:
        """Which trivial models passed, and why where rounding decides an output."""
        passed = ", ".join(n.name for n in self.nulls if n.passed)
        found = f"a trivial model passes the correctness check ({passed})"
        own = self.classes.get(self.allowed.value)
        if own is None or own.rel_fro < _DECIDED_BY_ROUNDING:
            return found
        fp32 = self.classes.get(PrecisionClass.FP32.value)
        decided = fp32 is not None and fp32.rel_fro < _DECIDED_BY_VALUES
        return (
            f"{found}; its own {self.allowed} arithmetic errs by {own.rel_fro:.0%} of an output's spread: let it return what "
            f"rounding does not decide{', or judge fp32 arithmetic with --tolerance class:fp32' if decided else ''}"
        )


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates measured on this device, from which the speed of light is computed."""

    copy_bytes_per_s: float
    operations_per_s: Mapping[str, float]
    """Unit (``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``) → operations a second."""


@dataclass(frozen=True, slots=True)
class WorkloadPreparation:
    """What the preparation found on one workload of a suite."""

    workload: str
    baselines: Mapping[str, Interval]
    """Baseline name → its time in microseconds; empty before it is measured."""
    floor_us: float
    bound: str
    same: Interval
    """The ranking baseline against itself on this workload."""
    signature: Signature | None = None
    """What a kernel is called with on it; ``None`` in journals of older versions."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Everything that trials need, determined once per session and device."""

    signature: Signature
    gate: CorrectnessCheck
    baselines: Mapping[str, Measurement]
    """Baseline name → its measurement, with the speedup over the session's ranking baseline."""
    same: Interval
    """The ranking baseline against itself (A/A): no smaller effect is reported as a difference."""
    floor_us: float
    bound: str
    peaks: Peaks
    bytes_moved: int
    sandbox: str
    """``bubblewrap`` or ``limits``."""
    notes: tuple[str, ...] = ()
    header: Blob = ""
    """The generated ``problem.h``."""
    by_workload: tuple[WorkloadPreparation, ...] = ()
    """Over a suite: each workload's. Signature, check and header are then those of its first workload; times and floor are
    geometric means."""
