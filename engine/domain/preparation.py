"""What a session finds out before any compute is spent on kernels: can this problem be judged, and against what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain.model import Blob, Interval, Measurement, PrecisionClass, Signature


@dataclass(frozen=True, slots=True)
class NullModel:
    """A model that computes nothing, tried on the gate. One that passes means the gate can tell nothing."""

    name: str
    """``zeros``, ``constant``, ``other input's output``, ``input echo``, ``one tile unwritten``."""
    passed: bool
    rel_fro: float


@dataclass(frozen=True, slots=True)
class ClassErrors:
    """How far the reference's own arithmetic in one precision class lies from float64, over the calibration inputs."""

    rel_fro: float
    max_scaled: float


@dataclass(frozen=True, slots=True)
class Gate:
    """The tolerance of a session and the proof that it discriminates."""

    policy: str
    allowed: PrecisionClass
    rel_fro_limit: float
    max_scaled_limit: float
    factor: float
    classes: Mapping[str, ClassErrors]
    """Class name → errors of the reference's own arithmetic in that class."""
    nulls: tuple[NullModel, ...]
    notes: tuple[str, ...] = ()
    """What a sceptic must know: float64 fell back to float32, output hardly depends on the input …"""

    @property
    def verifiable(self) -> bool:
        """Whether every null model failed."""
        return not any(n.passed for n in self.nulls)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Ceilings measured on this device: the speed of light is counted from them."""

    copy_bytes_per_s: float
    operations_per_s: Mapping[str, float]
    """Unit (``fp32``, ``tf32``, ``fp16``, ``bf16``) → operations a second."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Everything a trial needs to know, found once per session and device."""

    signature: Signature
    gate: Gate
    baselines: Mapping[str, Measurement]
    """Baseline name → its own measurement; ``speedup`` of each is against the session's ranking baseline."""
    same: Interval
    """The ranking baseline against itself through the whole path: no effect smaller than this shows is ever claimed."""
    floor_us: float
    bound: str
    peaks: Peaks
    bytes_moved: int
    sandbox: str
    """``bubblewrap`` or ``limits``."""
    notes: tuple[str, ...] = ()
    header: Blob = ""
    """The generated ``problem.h``."""
