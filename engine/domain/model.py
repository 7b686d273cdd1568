"""The nouns of a search, as frozen dataclasses: what is asked, what is built, what was found.

Durations are seconds unless the name ends in ``_us`` (microseconds). Sizes are bytes. Payloads that can be large (sources,
logs, samples) are not held here: a ``Blob`` is the SHA-256 of bytes the journal keeps beside itself.
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
    """What a kernel's source is."""

    CUDA = "cuda"
    CPP = "cpp"
    PYTHON = "python"


class Contract(StrEnum):
    """Under which agreement a kernel is launched, strongest guarantee first."""

    PLAN = "plan"
    """Device code only; trusted code launches it as its ``@launch`` lines say."""
    HOST = "host"
    """A shared object with a C ``launch`` function, run natively in the sandboxed runner."""
    MODULE = "module"
    """A KernelBench ``ModelNew``; the weakest guarantee, and labelled so."""


class Role(StrEnum):
    """Why a kernel sees an operand. Kernels receive them in this order."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OUTPUT = "output"


class PrecisionClass(StrEnum):
    """How close to float64 an output is, by the arithmetic of the reference that errs as much."""

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
    """What a kernel for one workload of one problem is called with, found by running the reference once."""

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
        """What a roofline is drawn with: the operations counted, or one an output element where only pointwise work is done,
        which is not counted and never binds."""
        return self.operations or float(sum(math.prod(o.shape) for o in self.of(Role.OUTPUT)))

    def of(self, *roles: Role) -> tuple[Operand, ...]:
        """The operands with one of these roles, in the order kernels receive them."""
        return tuple(o for o in self.operands if o.role in roles)


@dataclass(frozen=True, slots=True)
class Workload:
    """One concrete set of shapes: the reference's module-level names and the values they take."""

    name: str
    settings: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked: a reference in KernelBench's format with its workloads. ``digest`` covers all of it."""

    name: str
    title: str
    reference: str
    """Source text of the reference module."""
    digest: str
    workloads: tuple[Workload, ...]
    holdouts: Mapping[str, tuple[Workload, ...]]
    """Workload name → neighbouring shapes on which a kernel must be right as well, and which no author is shown."""
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
    """Driver and library versions: a baseline holds only for the ones it was measured with."""

    @property
    def label(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


@dataclass(frozen=True, slots=True)
class Tunable:
    """A named compile-time parameter and the values its author thinks worth trying; the first is the default."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler says one device function uses."""

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
    """What a race between two kernels says of the first of them, once its whole interval is looked at."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    """The interval holds 1, or no more than the session's noise lies between: nothing may be claimed."""


class Succession(StrEnum):
    """How a kernel came to be the incumbent."""

    FIRST = "first"
    """There was none to race against."""
    RACED = "raced"
    """It won a race against the one before it."""
    SUCCEEDED = "succeeded"
    """The one before it can lead no longer."""


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """The time that the device's own limits allow for this workload."""

    bound: str
    """What binds: ``bytes``, or ``operations`` with the unit, e.g. ``operations (fp32)``."""
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
    """Largest difference between two calls on the same bytes, in units of the output's scale; 0 is bit for bit."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the stopwatch says. ``depth`` is ``screen`` (one process, few samples) or ``precise`` (process pairs)."""

    depth: str
    time_us: Interval
    samples: int
    processes: int
    speedup: Mapping[str, Interval]
    """Baseline name → speedup; the session's ranking baseline is always among them after a precise measurement."""
    light: SpeedOfLight | None
    corroborated: bool
    """Whether the judge's own clock bears out the times that the runner claimed."""
    conditions: tuple[str, ...] = ()
    """What a sceptic must know: ``cold caches``, ``throttled in 3 of 40 samples``, ``host-bound`` …"""
    raw: Blob = ""


class FailureKind(StrEnum):
    """How a kernel's way can end before it is measured."""

    BUILD_FAILED = "build_failed"
    MISMATCH = "mismatch"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    """It broke a rule of the trial: wrote outside its buffers, changed its inputs, left work running …"""
    UNSTABLE = "unstable"
    """Right, but its time or its outputs would not settle."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a kernel ended without a measurement: one line, and the whole log as a blob."""

    kind: FailureKind
    reason: str
    log: Blob = ""


@dataclass(frozen=True, slots=True)
class Author:
    """Who proposed or wrote something: ``engineer``, ``engine``, ``playbook``, or a model as ``openai:NAME``."""

    name: str

    @property
    def is_engineer(self) -> bool:
        return self.name == "engineer"


CATEGORIES = (
    "memory access",
    "asynchrony and latency hiding",
    "precision and tensor cores",
    "instructions",
    "occupancy",
    "control flow",
)
"""What an optimisation acts on. Ideas of one round are spread over these."""


@dataclass(frozen=True, slots=True)
class IdeaText:
    """An optimisation in words, as its author gave it."""

    title: str
    category: str
    rationale: str
    predicted: float | None = None
    """Predicted speedup over the parent kernel."""
    key: str = ""
    """The source's own name for it (a playbook entry), by which its implementations are found."""
    expected: str = ""
    """What should change in the measurements if the idea holds."""
    risks: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """One source text that an author offers as an implementation."""

    source: str
    dialect: Dialect
    contract: Contract
    name: str
    """File name or other short origin, shown to people."""
    tunables: Mapping[str, int] = field(default_factory=dict)
    """The value chosen for each tunable of this variant."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a session stops by itself. ``None`` is no limit."""

    rounds: int | None = 3
    seconds: float | None = None
    kernels: int | None = None
    tokens: int | None = None
    usd: float | None = None
    plateau: int | None = 3
    """Rounds without a new incumbent."""
    light: float | None = 0.95
    """Fraction of the speed of light at which there is nothing left to gain."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Where a session stops asking for ideas and code until the engineer says go on. ``None`` is nowhere."""

    tokens: int | None = None
    """Above this many tokens spent."""
    usd: float | None = None
    """Above this many dollars spent."""
    round: int | None = None
    """Before this round opens."""


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


@dataclass(frozen=True, slots=True)
class Settings:
    """How a session searches; frozen in its journal when it opens."""

    strategy: str = "branching"
    """``branching`` or ``sequential``."""
    ideas: int = 3
    """Ideas a round (K)."""
    branch: int = 3
    """Implementations of each idea (B)."""
    beam: int = 2
    """Best kernels that seed the next round."""
    repairs: int = 2
    """Repairs of a kernel that does not build or verify, where its author can repair."""
    source: str = "playbook"
    """Who has the ideas: one source, or several with their shares (``openai:A=2,gemini:B=1``)."""
    writer: str = ""
    """Who writes the code, where that is not who had the idea."""
    base_url: str = ""
    """Server that answers for ``openai:`` models; empty for the provider's own."""
    recall: str = ""
    """Name of a session whose recorded replies answer the same prompts, so that nothing is paid for twice."""
    workload: str = "small"
    tolerance: str = "class"
    """``class``, ``class:fp32|tf32|half``, ``crfm`` or ``kernelbench``."""
    baseline: str = "eager"
    others: tuple[str, ...] = ()
    """Further baselines."""
    cold: bool = True
    """Time with cold caches."""
    seed: int = 0
    """Seed of the search's own choices (never of a trial's inputs)."""
    accept_unverifiable: bool = False
    """Search on although a null model passes the gate; every verdict then says so."""
    limits: Limits = field(default_factory=Limits)
    pauses: Pauses = field(default_factory=Pauses)
