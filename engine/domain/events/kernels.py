"""Events of kernels: drafts, attempts, results, races, the incumbent, pins and pruned branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from engine.domain.model import (
    Author,
    Blob,
    Contract,
    Dialect,
    Failure,
    Interval,
    Measurement,
    RaceOutcome,
    Resources,
    Succession,
    Verification,
    WorkloadChoice,
    WorkloadRatio,
    WorkloadTuning,
)
from engine.domain.profile import Profile
from engine.domain.regimes import Sustained


@dataclass(frozen=True, slots=True)
class KernelDrafted:
    """A kernel joined the tree: code with its tunables, as a child of ``parent`` (``None`` for a root or a seed)."""

    KIND: ClassVar[str] = "kernel.drafted"
    kernel: str
    idea: str
    parent: str | None
    round: int
    author: Author
    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    tunables: Mapping[str, int] = field(default_factory=dict)
    seed: bool = False
    form: str = ""
    """Digest of its normal form: equal for code that differs only in comments, layout and names; empty where unknown."""
    members: tuple[str, ...] = ()
    """Of a dispatch: the names of the kernels that it chooses from; of a tuned kernel, the one whose code it has."""
    choices: tuple[WorkloadChoice, ...] = ()
    """Of a dispatch: the kernel and the values of its tunables for each workload of the suite."""


@dataclass(frozen=True, slots=True)
class IdeaImplemented:
    """The idea has all its drafts; ``note`` says why there are fewer than requested."""

    KIND: ClassVar[str] = "idea.implemented"
    idea: str
    kernels: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed to build or verify, and its author is asked for a repair."""

    KIND: ClassVar[str] = "attempt.failed"
    kernel: str
    attempt: int
    failure: Failure
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class AttemptRevised:
    """The author repaired a failed kernel; the new code is built next."""

    KIND: ClassVar[str] = "attempt.revised"
    kernel: str
    attempt: int
    source: Blob


@dataclass(frozen=True, slots=True)
class KernelBuilt:
    """The code was compiled."""

    KIND: ClassVar[str] = "kernel.built"
    kernel: str
    artefact: str
    """Key in the build cache."""
    seconds: float
    resources: tuple[Resources, ...] = ()
    log: Blob = ""
    instructions: Mapping[str, int] = field(default_factory=dict)
    """Instruction family → occurrences in the machine code; empty if it could not be read."""
    machine_code: str = ""
    """Digest of the binaries and launch plans of all its shapes; empty where its verdict depends on more than these."""


@dataclass(frozen=True, slots=True)
class KernelMatched:
    """The kernel compiles to the machine code of a measured kernel of this session: it takes over that verdict unmeasured."""

    KIND: ClassVar[str] = "kernel.matched"
    kernel: str
    same_as: str


@dataclass(frozen=True, slots=True)
class KernelVerified:
    """All outputs of all trials were correct; ``screen`` is a quick measurement in the same process."""

    KIND: ClassVar[str] = "kernel.verified"
    kernel: str
    verification: Verification
    screen: Measurement
    seconds: float
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class KernelMeasured:
    """The kernel's measurement is final on this device until someone remeasures it."""

    KIND: ClassVar[str] = "kernel.measured"
    kernel: str
    measurement: Measurement
    seconds: float
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class KernelSustained:
    """The incumbent was measured in the sustained regime, beside its measurement; or could not be."""

    KIND: ClassVar[str] = "kernel.sustained"
    kernel: str
    attempt: int
    times: Sustained | None = None
    note: str = ""
    """Why there are no times."""
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class KernelFailed:
    """The kernel failed."""

    KIND: ClassVar[str] = "kernel.failed"
    kernel: str
    failure: Failure
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class KernelQuarantined:
    """The kernel is correct and measured, but implausible: the engineer decides."""

    KIND: ClassVar[str] = "kernel.quarantined"
    kernel: str
    evidence: tuple[str, ...]
    """What is suspicious, one line each."""
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class KernelAccepted:
    """The engineer accepted a quarantined kernel."""

    KIND: ClassVar[str] = "kernel.accepted"
    kernel: str
    note: str


@dataclass(frozen=True, slots=True)
class KernelSanitized:
    """A finalist ran under the sanitizers. With findings it is quarantined next."""

    KIND: ClassVar[str] = "kernel.sanitized"
    kernel: str
    attempt: int
    tools: tuple[str, ...]
    """Sanitizers that ran; if none, ``note`` has the reason."""
    findings: tuple[str, ...] = ()
    note: str = ""
    log: Blob = ""
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class KernelProfiled:
    """The hardware counters of a kernel were read, or reading them failed."""

    KIND: ClassVar[str] = "kernel.profiled"
    kernel: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class TuningAsked:
    """The engineer requested that a kernel is tuned on each workload of the suite."""

    KIND: ClassVar[str] = "tuning.asked"
    kernel: str


@dataclass(frozen=True, slots=True)
class KernelTuned:
    """The tunables of a kernel were tried on each workload of the suite. If other values were faster, a kernel with these is
    drafted next."""

    KIND: ClassVar[str] = "kernel.tuned"
    kernel: str
    attempt: int
    by_workload: tuple[WorkloadTuning, ...] = ()
    """The fastest values on each workload; empty if the tuning failed."""
    trials: int = 0
    """Trials over the suite that it took."""
    note: str = ""
    """Why nothing was gained."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelRaced:
    """A kernel raced another one, interleaved and on fresh samples. A new incumbent is a separate event."""

    KIND: ClassVar[str] = "kernel.raced"
    kernel: str
    against: str
    outcome: RaceOutcome
    ratio: Interval | None = None
    """Speedup of ``kernel`` over ``against``, never narrower than the session's noise; ``None`` if the race was abandoned."""
    effort: int = 0
    pairs: int = 0
    """Process pairs."""
    samples: int = 0
    raw: Blob = ""
    note: str = ""
    """Conditions, or why the race was abandoned."""
    seconds: float = 0.0
    doubts: tuple[str, ...] = ()
    """Why the times are not corroborated, one line each. With a doubt, ``kernel`` cannot have won."""
    by_workload: tuple[WorkloadRatio, ...] = ()
    """Over a suite: the ratio on each workload; ``ratio`` is their geometric mean."""
    worker: str = ""
    """The worker of a fleet on which it ran; empty without a fleet."""
    back_to_back: bool = False
    """Whether it was run in the sustained regime."""


@dataclass(frozen=True, slots=True)
class RaceAsked:
    """The engineer, or the strategy, requested a race of two kernels."""

    KIND: ClassVar[str] = "race.asked"
    kernel: str
    against: str
    advice: str = ""
    """Why the strategy requested it; empty for the engineer's."""


@dataclass(frozen=True, slots=True)
class IncumbentChanged:
    """A kernel became the incumbent. Journals from before races lack these events: there the best measured kernel leads."""

    KIND: ClassVar[str] = "incumbent.changed"
    kernel: str
    over: str
    """The previous incumbent; empty for the first."""
    why: Succession


@dataclass(frozen=True, slots=True)
class KernelCancelled:
    """The kernel was cancelled, or its branch was pruned before it settled."""

    KIND: ClassVar[str] = "kernel.cancelled"
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelReopened:
    """The kernel starts again from the build: it is remeasured, or the session was prepared again."""

    KIND: ClassVar[str] = "kernel.reopened"
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelPinned:
    """The kernel stays among the parents of the next rounds."""

    KIND: ClassVar[str] = "kernel.pinned"
    kernel: str


@dataclass(frozen=True, slots=True)
class KernelUnpinned:
    KIND: ClassVar[str] = "kernel.unpinned"
    kernel: str


@dataclass(frozen=True, slots=True)
class BranchPruned:
    """The kernel and its descendants are closed: none becomes a parent again."""

    KIND: ClassVar[str] = "branch.pruned"
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class BranchReopened:
    KIND: ClassVar[str] = "branch.reopened"
    kernel: str


KernelEvent = (
    KernelDrafted
    | IdeaImplemented
    | AttemptFailed
    | AttemptRevised
    | KernelBuilt
    | KernelMatched
    | KernelVerified
    | KernelMeasured
    | KernelSustained
    | KernelFailed
    | KernelQuarantined
    | KernelAccepted
    | KernelSanitized
    | KernelProfiled
    | TuningAsked
    | KernelTuned
    | KernelRaced
    | RaceAsked
    | IncumbentChanged
    | KernelCancelled
    | KernelReopened
    | KernelPinned
    | KernelUnpinned
    | BranchPruned
    | BranchReopened
)
