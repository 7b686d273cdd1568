"""The data types of a search as frozen dataclasses: problems, operands, measurements, ideas.

Durations are in seconds unless the name ends in ``_us`` (microseconds); sizes are in bytes. Large payloads (code, logs,
samples) are not part of these types: a ``Blob`` is the SHA-256 of bytes stored beside the journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.domain.dialect import Contract as Contract
from engine.domain.dialect import Dialect as Dialect
from engine.domain.figures import Interval as Interval
from engine.domain.figures import PrecisionClass as PrecisionClass
from engine.domain.figures import SpeedOfLight as SpeedOfLight
from engine.domain.figures import WorkloadChoice as WorkloadChoice
from engine.domain.figures import WorkloadErrors as WorkloadErrors
from engine.domain.figures import WorkloadRatio as WorkloadRatio
from engine.domain.figures import WorkloadTime as WorkloadTime
from engine.domain.figures import WorkloadTuning as WorkloadTuning
from engine.domain.mismatch import Mismatch
from engine.domain.problem_format import FormatVerdict, ProblemFormat
from engine.domain.regimes import ClockAndPower, Sustained

Blob = str
"""SHA-256 (hex) of a payload in the session's ``blobs/`` folder."""

Number = int | float


class Role(StrEnum):
    """The role of an operand in the reference. Kernels receive operands in this order."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor that a kernel reads or writes: contiguous, row-major."""

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    """The torch name without its prefix: ``float32``, ``float16``, ``bfloat16``, ``int64``, ``bool`` …"""


@dataclass(frozen=True, slots=True)
class Signature:
    """The operands and constants of a kernel for one workload, determined by running the reference once."""

    operands: tuple[Operand, ...]
    constants: Mapping[str, Number]
    """Upper-case names → values: the reference's module-level numbers and its scalar arguments."""
    operations: float = 0.0
    """Floating-point operations of the reference's matrix products, convolutions and attention (a multiply-add is two)."""
    unit: str = "fp32"
    """The arithmetic unit that executes them by default: ``fp32``, ``tf32``, ``fp16``, ``bf16``."""
    scalar_only: bool = True
    """False if some argument is neither a tensor nor a number, which only the ``python`` dialect supports."""
    vector_operations: float = 0.0
    """Floating-point operations of all other work: pointwise, reductions, softmax … 0 in journals of older versions."""
    bytes_moved: int = 0
    """Bytes of the operands that the reference accesses, each once; 0: all, as in journals of older versions."""

    @property
    def counted_operations(self) -> float:
        """Operations for the roofline: those of products, else those of other work; 0 if none were counted."""
        return self.operations or self.vector_operations

    @property
    def shown_operations(self) -> float:
        """``counted_operations``, or one per output element if none were counted."""
        return self.counted_operations or float(sum(math.prod(o.shape) for o in self.with_roles(Role.OUTPUT)))

    def with_roles(self, *roles: Role) -> tuple[Operand, ...]:
        """The operands with one of these roles, in the order in which kernels receive them."""
        return tuple(o for o in self.operands if o.role in roles)


@dataclass(frozen=True, slots=True)
class Workload:
    """One concrete set of shapes: values for the reference's module-level names."""

    name: str
    settings: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """A reference in KernelBench's format with its workloads. ``digest`` covers all of it."""

    name: str
    title: str
    reference: str
    """The text of the reference module."""
    digest: str
    workloads: tuple[Workload, ...]
    holdouts: Mapping[str, tuple[Workload, ...]]
    """Workload name → hold-out shapes, on which a kernel must also be correct. Prompts never contain them."""
    origin: str = ""
    """Where it was read from: the name of a shipped problem, or a path."""
    bounds: Mapping[str, Mapping[str, tuple[Number, ...]]] = field(default_factory=dict)
    """Workload name → setting → lowest value, highest value and perhaps the step, for a hold-out shape drawn at random."""
    attachments: Mapping[str, str] = field(default_factory=dict)
    """Files that the reference imports (``utils.py``) or reads (tensors, as ``problem.attachments`` decodes them), by name."""
    origin_format: ProblemFormat | None = None
    suites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Suite → the names of its workloads, on which a kernel is judged together."""

    def workload(self, name: str) -> Workload | None:
        return next((w for w in self.workloads if w.name == name), None)


@dataclass(frozen=True, slots=True)
class Device:
    """The device that a session builds for and measures on."""

    kind: str
    """``cpu`` or ``cuda``."""
    index: int
    name: str
    arch: str
    """``sm_90a`` for a GPU, the machine's architecture for a CPU."""
    units: int
    """Multiprocessors of a GPU; on a CPU, the cores available to a kernel."""
    cache_bytes: int
    memory_bytes: int
    software: str
    """Driver and library versions. A baseline is valid only for the versions that it was measured with."""
    features: tuple[str, ...] = ()
    """Vector extensions of a CPU, as the kernel of the operating system names them."""
    core_caches: tuple[int, ...] = ()
    """Bytes of each core's own data caches, the innermost first; empty where unknown."""

    @property
    def label(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


@dataclass(frozen=True, slots=True)
class Tunable:
    """A named compile-time parameter with the values to try; the first is the default."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one device function, as the compiler reports them."""

    function: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int = 0


class RaceOutcome(StrEnum):
    """Whether the first kernel of a race is faster than the second, by the whole interval."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    """The interval contains 1; it is never narrower than the session's noise."""


class Succession(StrEnum):
    """How a kernel became the incumbent."""

    FIRST = "first"
    """There was no incumbent to race against."""
    RACED = "raced"
    """It won a race against the previous incumbent."""
    SUCCEEDED = "succeeded"
    """The previous incumbent is no longer eligible."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a kernel's outputs compare with the float64 reference, over all trials."""

    policy: str
    """Tolerance policy with the allowed precision class, e.g. ``class:fp32 (10x)``, ``crfm``, ``kernelbench``."""
    trials: int
    """Calls whose outputs were checked, including timed ones."""
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
    """Hold-out shapes passed: ``3/3``; ``1/3, specialised`` if the code rejects other shapes at compile time; ``none``."""
    jitter: float = 0.0
    """Largest difference between two calls on identical inputs, in units of the output's scale; 0 is bit-identical."""
    caveats: tuple[str, ...] = ()
    """What the trial could not check, or found and does not hold against the kernel."""
    chance: str = ""
    """The settings of the hold-out shape that was drawn at random. Prompts never contain them."""
    format_verdict: FormatVerdict | None = None
    by_workload: tuple[WorkloadErrors, ...] = ()
    """Over a suite: each workload's. The figures above are then those of the workload closest to its limit."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A kernel's time. ``depth`` is ``screen`` (one process, few samples) or ``precise`` (process pairs).

    Over a suite, time, speedups and fraction of SOL are geometric means over its workloads.
    """

    depth: str
    time_us: Interval
    samples: int
    processes: int
    speedup: Mapping[str, Interval]
    """Baseline name → speedup; a precise measurement always includes the session's ranking baseline."""
    light: SpeedOfLight | None
    corroborated: bool
    """Whether the judge's clock confirms the times that the runner reported."""
    conditions: tuple[str, ...] = ()
    """How it was measured: ``cold caches``, ``throttled in 3 of 40 samples``, ``host-bound`` …"""
    raw: Blob = ""
    doubts: tuple[str, ...] = ()
    """Why the time is not corroborated, one line each. Older journals have these lines among the conditions."""
    by_workload: tuple[WorkloadTime, ...] = ()
    """Over a suite: each workload's, in the suite's order; empty for a single workload."""
    clock: ClockAndPower | None = None
    """Of the GPU between the single calls; ``None`` where unknown."""
    sustained: Sustained | None = None
    """The same kernel in the sustained regime; ``None`` if that was not measured."""


class FailureKind(StrEnum):
    """How a kernel can fail."""

    BUILD_FAILED = "build_failed"
    MISMATCH = "mismatch"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    """It broke a rule of the trial: wrote outside its buffers, changed its inputs, left work running …"""
    UNSTABLE = "unstable"
    """Correct, but its time or its outputs vary too much."""


@dataclass(frozen=True, slots=True)
class FailedWorkload:
    """Where in a suite a kernel failed."""

    workload: str
    passed: tuple[str, ...] = ()
    """The workloads on which it was right until then."""
    untried: tuple[str, ...] = ()
    """Those on which it was not tried any more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a kernel failed: one line, and the whole log as a blob."""

    kind: FailureKind
    reason: str
    log: Blob = ""
    mismatches: tuple[Mismatch, ...] = ()
    """The outputs that were wrong, most wrong first, if it is a mismatch."""
    failed_on: FailedWorkload | None = None
    """Of a suite: the workload that it failed on."""


@dataclass(frozen=True, slots=True)
class Author:
    """``engineer``, ``engine``, ``playbook``, ``paste``, a model (``openai:NAME``), a coding agent or user (``user:NAME``)."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def provider(self) -> str:
        """``openai`` of ``openai:NAME``; empty for an author that is not a model."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def short(self) -> str:
        """``NAME`` of ``openai:NAME``; otherwise the whole name."""
        return self.name.partition(":")[2] or self.name

    @property
    def is_engine(self) -> bool:
        return self == ENGINE

    @property
    def is_engineer(self) -> bool:
        return self == ENGINEER

    @property
    def is_model(self) -> bool:
        """Whether the author is a model that a session asks; pasted replies count as a model's."""
        return (bool(self.provider) and self.provider not in (AGENT, USER)) or self == PASTE

    @property
    def is_agent(self) -> bool:
        """Whether the author is a coding agent: it proposes and writes, and never decides."""
        return self.provider == AGENT

    @property
    def decides(self) -> bool:
        """Whether the author is a person: the engineer, or another user who may write into the session's folder."""
        return self.is_engineer or self.provider == USER


PLAYBOOK = "playbook"
AGENT = "agent"
"""Provider of a coding agent's name, ``agent:NAME``; as a proposer, it stands for all agents."""
USER = "user"
ENGINE = Author("engine")
ENGINEER = Author("engineer")
PASTE = Author("paste")
"""A person who pastes replies to prompts."""


CATEGORIES = (
    "memory access",
    "asynchrony and latency hiding",
    "precision and tensor cores",
    "instructions",
    "occupancy",
    "control flow",
)
"""What an optimisation acts on. The ideas of a round are spread over the categories."""
OTHER = "other"
"""The category of an idea whose author named an unknown one."""


@dataclass(frozen=True, slots=True)
class IdeaText:
    """An optimisation in words, as its author wrote it."""

    title: str
    category: str
    rationale: str
    predicted: float | None = None
    """Predicted speedup over the parent kernel."""
    key: str = ""
    """The proposer's identifier (a playbook entry), by which it finds the implementations."""
    expected: str = ""
    """What should change in the measurements if the idea works."""
    risks: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """Code that implements an idea."""

    source: str
    dialect: Dialect
    contract: Contract
    name: str
    """File name or other short origin, for display."""
    tunables: Mapping[str, int] = field(default_factory=dict)
    """The values of this variant's tunables."""


class CallRole(StrEnum):
    """What a call asks for."""

    IDEAS = "ideas"
    CODE = "code"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as counted by the provider. ``cached`` is part of ``input``; reasoning is part of ``output``."""

    input: int = 0
    cached: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.cached + other.cached, self.output + other.output)
