"""What a problem's own format says beyond a reference and its workloads. Plain data, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FormatTolerance:
    """What a problem's own format allows: |o−e| ≤ atol + rtol·|e| for a share of the elements; ``e`` is the reference's."""

    atol: float
    rtol: float
    matched: float = 1.0
    """The least share of elements that must meet it."""
    cap: float | None = None
    """The largest absolute error of any element."""
    negative_infinity: bool = False
    """Whether −inf in the same places counts as equal, beside finite elements."""

    @property
    def text(self) -> str:
        share = f", {self.matched:.4g} of the elements" if self.matched < 1 else ""
        cap = f", no error above {self.cap:g}" if self.cap is not None else ""
        return f"atol {self.atol:g}, rtol {self.rtol:g}{share}{cap}"


@dataclass(frozen=True, slots=True)
class FormatTensor:
    """One input or output as a format declares it: its axes' names, or ``None`` for a scalar."""

    name: str
    dtype: str
    axes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence found beside a problem."""

    name: str
    file: str
    forbids_training: bool = False


@dataclass(frozen=True, slots=True)
class ProblemFormat:
    """What a problem's own format says beyond a reference and its workloads. Plain data."""

    name: str
    """``flashinfer``, ``sol-execbench``, ``kernelbot`` or ``kernelbench-hard``."""
    entry: str
    """The definition's or the task's own name."""
    default: str
    """The workload that is judged unless another one is named."""
    small: str
    """The workload that a CPU judges unless another one is named."""
    tests: tuple[str, ...] = ()
    """Workloads for correctness only, in the format's order."""
    benchmarks: tuple[str, ...] = ()
    """Workloads that are timed and ranked, in the format's order."""
    ranking: str = "geom"
    """How a suite ranks: ``geom`` (geometric mean), ``mean``, or ``last`` (the last benchmark)."""
    axes: Mapping[str, int | str] = field(default_factory=dict)
    """Axis → its constant size, or its expression; variable axes have the empty expression."""
    inputs: tuple[FormatTensor, ...] = ()
    outputs: tuple[FormatTensor, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)
    """Workload → its identifier in the format."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Workload → its JSON in the format."""
    tolerances: Mapping[str, FormatTolerance] = field(default_factory=dict)
    """Workload → what the format allows; empty where a checker decides."""
    checker: str = ""
    """The format's own function that decides on outputs, ``check_implementation``."""
    unique: bool = True
    """False if several outputs are right (a factorisation): the checker decides, not a comparison with the reference."""
    devices: tuple[str, ...] = ()
    """The devices that it is written for, as it names them."""
    licence: Licence | None = None
    notes: tuple[str, ...] = ()
    """What of the files is not used, and why."""
    file: str = ""
    """The file with its definition, for messages; empty in formats without one and in older journals."""


@dataclass(frozen=True, slots=True)
class FormatVerdict:
    """What a problem's own format says about a kernel's outputs, beside Espalier's check."""

    format: str
    tolerance: str
    """Its tolerance or its checker, in words."""
    passed: bool
    detail: str = ""
    stricter: str = ""
    """Whose limit on a single element is lower: ``espalier``, ``format``, or empty if it depends on the element."""
    unique: bool = True
    """False: several outputs are right, and a kernel must pass the format's check, too."""
