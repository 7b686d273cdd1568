"""The nouns of a search as frozen dataclasses: problems, operands, measurements, ideas.

Durations are seconds unless the name ends in ``_us`` (microseconds). Sizes are bytes. Large payloads (code, logs, samples) are
not held here: a ``Blob`` is the SHA-256 of bytes that the journal keeps beside itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Blob = str
"""SHA-256 (hex) of a payload kept in the session's ``blobs/`` folder."""

Number = int | float


class Dialect(StrEnum):
    """The language of a kernel."""

    CUDA = "cuda"
    CPP = "cpp"
    PYTHON = "python"

    @property
    def suffix(self) -> str:
        """What its files are called: ``.cu``, ``.cpp``, ``.py``."""
        return {"cuda": ".cu", "cpp": ".cpp", "python": ".py"}[self.value]


class Contract(StrEnum):
    """How a kernel is launched, strongest guarantee first."""

    PLAN = "plan"
    """Device code only; trusted code launches it as its ``@launch`` lines say."""
    HOST = "host"
    """A shared object with a C ``launch`` function, run natively in the sandboxed runner."""
    MODULE = "module"
    """A KernelBench ``ModelNew``: the weakest guarantee."""


class Role(StrEnum):
    """What an operand is to the reference. Kernels receive operands in this order."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OUTPUT = "output"


class PrecisionClass(StrEnum):
    """How close to float64 an output is: the class of arithmetic in which the reference's own error is as large."""

    FP32 = "fp32"
    TF32 = "tf32"
    HALF = "half"
    EXACT = "exact"
    """Integer and boolean outputs: bit for bit."""
    NONE = "none"
    """Worse than every class."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor that a kernel receives or writes: contiguous, row-major."""

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    """As torch spells it, without the prefix: ``float32``, ``float16``, ``bfloat16``, ``int64``, ``bool`` …"""


@dataclass(frozen=True, slots=True)
class Signature:
    """The operands and constants of a kernel for one workload, found by running the reference once."""

    operands: tuple[Operand, ...]
    constants: Mapping[str, Number]
    """Upper-case names → values: the reference's module-level numbers and its scalar arguments."""
    operations: float = 0.0
    """Floating-point operations that the reference's graph needs (a multiply-add is two)."""
    unit: str = "fp32"
    """Which arithmetic unit does them by default: ``fp32``, ``tf32``, ``fp16``, ``bf16``."""
    scalar_only: bool = True
    """False when some argument is neither a tensor nor a number: then only the ``python`` dialect can be used."""

    @property
    def shown_operations(self) -> float:
        """Operations for a roofline: those counted, or one an output element where the reference is pointwise only."""
        return self.operations or float(sum(math.prod(o.shape) for o in self.with_roles(Role.OUTPUT)))

    def with_roles(self, *roles: Role) -> tuple[Operand, ...]:
        """The operands with one of these roles, in the order kernels receive them."""
        return tuple(o for o in self.operands if o.role in roles)


@dataclass(frozen=True, slots=True)
class Workload:
    """One concrete set of shapes: the reference's module-level names and the values they take."""

    name: str
    settings: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """A reference in KernelBench's format with its workloads. ``digest`` covers all of it."""

    name: str
    title: str
    reference: str
    """Source text of the reference module."""
    digest: str
    workloads: tuple[Workload, ...]
    holdouts: Mapping[str, tuple[Workload, ...]]
    """Workload name → neighbouring shapes on which a kernel must be correct too, and which no author is shown."""
    origin: str = ""
    """Where it was read from: a shipped name or a path."""

    def workload(self, name: str) -> Workload | None:
        return next((w for w in self.workloads if w.name == name), None)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a session builds for and measures on."""

    kind: str
    """``cpu`` or ``cuda``."""
    index: int
    name: str
    arch: str
    """``sm_90a`` for a GPU, the machine's architecture for a CPU."""
    units: int
    """Multiprocessors of a GPU, cores lent to a kernel on a CPU."""
    cache_bytes: int
    memory_bytes: int
    software: str
    """Driver and library versions. A baseline is valid only for those that it was measured with."""

    @property
    def label(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


@dataclass(frozen=True, slots=True)
class Tunable:
    """A named compile-time parameter and the values to try; the first is the default."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one device function uses, as the compiler reports it."""

    function: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float


class RaceOutcome(StrEnum):
    """How the first of two raced kernels compares with the second, by the whole interval."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    """The interval, never narrower than the session's noise, contains 1."""


class Succession(StrEnum):
    """How a kernel came to be the incumbent."""

    FIRST = "first"
    """There was no incumbent to race against."""
    RACED = "raced"
    """It won a race against the one before it."""
    SUCCEEDED = "succeeded"
    """The incumbent before it may no longer lead."""


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """The time that the device's own limits allow for this workload."""

    bound: str
    """The limit that binds: ``bytes``, or ``operations`` with the unit, e.g. ``operations (fp32)``."""
    floor_us: float
    fraction: float
    """floor ÷ measured: 1.0 is as fast as the device allows."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a kernel's outputs compared with the float64 reference, over all trials."""

    policy: str
    """Tolerance policy and the class allowed, e.g. ``class:fp32 (10x)``, ``crfm``, ``kernelbench``."""
    trials: int
    """Calls whose outputs were checked, timed ones included."""
    rel_fro: float
    """Largest centred relative Frobenius error ‖o−r‖ / ‖r−mean(r)‖ over the trials."""
    rel_fro_limit: float
    max_abs: float
    """Largest absolute error of a single element."""
    max_scaled: float
    """Largest error of a single element in units of its scale |r| + rms(r−mean(r))."""
    max_scaled_limit: float
    precision_class: PrecisionClass
    holdouts: str = "none"
    """``3/3``, or ``1/3, specialised`` when the source refuses other shapes at compile time, or ``none``."""
    jitter: float = 0.0
    """Largest difference between two calls on the same bytes, in units of the output's scale; 0 is bit-identical."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A kernel's time. ``depth`` is ``screen`` (one process, few samples) or ``precise`` (process pairs)."""

    depth: str
    time_us: Interval
    samples: int
    processes: int
    speedup: Mapping[str, Interval]
    """Baseline name → speedup; the session's ranking baseline is always among them after a precise measurement."""
    light: SpeedOfLight | None
    corroborated: bool
    """Whether the judge's own clock confirms the times that the runner reported."""
    conditions: tuple[str, ...] = ()
    """Caveats: ``cold caches``, ``throttled in 3 of 40 samples``, ``host-bound`` …"""
    raw: Blob = ""


class FailureKind(StrEnum):
    """How a kernel can fail before it is measured."""

    BUILD_FAILED = "build_failed"
    MISMATCH = "mismatch"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    """It broke a rule of the trial: it wrote outside its buffers, changed its inputs, left work running …"""
    UNSTABLE = "unstable"
    """Correct, but its time or its outputs did not settle."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a kernel has no measurement: one line, and the whole log as a blob."""

    kind: FailureKind
    reason: str
    log: Blob = ""


@dataclass(frozen=True, slots=True)
class Author:
    """Who did or wrote something: ``engineer``, ``engine``, ``playbook``, ``paste``, or a model as ``openai:NAME``."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def provider(self) -> str:
        """``openai`` of ``openai:NAME``; empty for who is no model."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def short(self) -> str:
        """``NAME`` of ``openai:NAME``; else the whole name."""
        return self.name.partition(":")[2] or self.name

    @property
    def is_engine(self) -> bool:
        return self == ENGINE

    @property
    def is_engineer(self) -> bool:
        return self == ENGINEER

    @property
    def is_model(self) -> bool:
        """Whether a model answers; a pasted reply is a model's as well."""
        return bool(self.provider) or self == PASTE


ENGINE = Author("engine")
ENGINEER = Author("engineer")
PASTE = Author("paste")
"""A person who pastes the replies to prompts."""


CATEGORIES = (
    "memory access",
    "asynchrony and latency hiding",
    "precision and tensor cores",
    "instructions",
    "occupancy",
    "control flow",
)
"""What an optimisation acts on. The ideas of one round are spread over these."""


@dataclass(frozen=True, slots=True)
class IdeaText:
    """An optimisation in words, as its author gave it."""

    title: str
    category: str
    rationale: str
    predicted: float | None = None
    """Predicted speedup over the parent kernel."""
    key: str = ""
    """The proposer's own name for it (a playbook entry), by which its implementations are found."""
    expected: str = ""
    """What should change in the measurements if the idea holds."""
    risks: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """Code that an author offers as an implementation."""

    source: str
    dialect: Dialect
    contract: Contract
    name: str
    """File name or other short origin, shown to people."""
    tunables: Mapping[str, int] = field(default_factory=dict)
    """The value chosen for each tunable of this variant."""


class CallRole(StrEnum):
    """What a model is asked for."""

    IDEAS = "ideas"
    CODE = "code"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them. ``cached`` is part of ``input``; reasoning is part of ``output``."""

    input: int = 0
    cached: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.cached + other.cached, self.output + other.output)
