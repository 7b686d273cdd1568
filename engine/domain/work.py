"""The kinds of work that a session owes, and their results.

``rules.next_work(state)`` derives the owed work only from the state, so a killed search continues where it stopped. Results are
plain values; ``rules.record`` turns work and its result into events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.domain.model import (
    Author,
    Blob,
    Contract,
    Device,
    Dialect,
    Failure,
    IdeaText,
    Interval,
    Measurement,
    Resources,
    Verification,
    WorkloadChoice,
    WorkloadRatio,
    WorkloadTuning,
)
from engine.domain.preparation import Preparation
from engine.domain.profile import Profile
from engine.domain.regimes import Regime, Sustained
from engine.domain.work_key import WorkKey as WorkKey
from engine.domain.work_key import WorkKind as WorkKind


@dataclass(frozen=True, slots=True)
class Prepare:
    """Describe the device, test the correctness check, measure the baselines."""

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.PREPARE)


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the proposer for this round's ideas."""

    round: int
    parents: tuple[str, ...]
    count: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.PROPOSE, (), self.round)


@dataclass(frozen=True, slots=True)
class Implement:
    """Ask the writer for implementations of an approved idea."""

    idea: str

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.IMPLEMENT, (self.idea,))


@dataclass(frozen=True, slots=True)
class Build:
    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.BUILD, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Verify:
    """Check the outputs on fresh inputs and hold-out shapes, and screen the time."""

    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.VERIFY, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure precisely: interleaved pairs against the baseline, in several processes."""

    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.MEASURE, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Sustain:
    """Measure the incumbent in the sustained regime, against the baseline."""

    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.SUSTAIN, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Repair:
    """Ask the author to repair a kernel, given the output of the compiler or of the correctness check."""

    kernel: str
    attempt: int
    """The attempt that failed."""

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.REPAIR, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Sanitize:
    """Run the finalist under the sanitizers before the session ends."""

    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.SANITIZE, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Race:
    """Measure one kernel against another, interleaved and in fresh processes, without earlier samples."""

    kernel: str
    against: str
    effort: int = 0
    """How often the two were undecided before; each step doubles the cost."""

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.RACE, (self.kernel, self.against), self.effort)


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """Read the hardware counters of a parent, before a model is asked for ideas on it."""

    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.PROFILE, (self.kernel,), self.attempt)


@dataclass(frozen=True, slots=True)
class Tune:
    """Try the tunables of a measured kernel on each workload of the suite."""

    kernel: str
    attempt: int

    @property
    def key(self) -> WorkKey:
        return WorkKey(WorkKind.TUNE, (self.kernel,), self.attempt)


Work = Prepare | Propose | Implement | Build | Verify | Measure | Sustain | Repair | Sanitize | Race | ReadCounters | Tune


@dataclass(frozen=True, slots=True)
class Prepared:
    device: Device
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class Proposal:
    """One idea from a proposer."""

    text: IdeaText
    parent: str | None
    author: Author
    surplus: bool = False
    """Beyond the ideas that were requested: parked, not dropped, unless there are too few others."""


@dataclass(frozen=True, slots=True)
class Proposals:
    ideas: tuple[Proposal, ...]


@dataclass(frozen=True, slots=True)
class StoredDraft:
    """A draft whose code is already a blob of the session."""

    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    author: Author
    tunables: Mapping[str, int] = field(default_factory=dict)
    form: str = ""
    """Digest of its normal form: equal for code that differs only in comments, layout and names; empty where unknown."""
    members: tuple[str, ...] = ()
    """The kernels of a dispatch."""
    choices: tuple[WorkloadChoice, ...] = ()
    """What a dispatch runs on each workload."""


@dataclass(frozen=True, slots=True)
class Drafts:
    drafts: tuple[StoredDraft, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    artefact: str
    seconds: float
    resources: tuple[Resources, ...] = ()
    log: Blob = ""
    instructions: Mapping[str, int] = field(default_factory=dict)
    """Instruction family → occurrences in the machine code; empty if it could not be read."""
    machine_code: str = ""
    """Digest of the binaries and launch plans of all its shapes; empty where its verdict depends on more than these."""


@dataclass(frozen=True, slots=True)
class Verified:
    verification: Verification
    screen: Measurement
    seconds: float
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class Measured:
    measurement: Measurement
    seconds: float
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""
    regime: Regime = Regime.SINGLE


@dataclass(frozen=True, slots=True)
class BackToBack:
    """The kernel's times in the sustained regime."""

    times: Sustained | None
    """``None`` where calls cannot follow each other; ``note`` says why."""
    seconds: float = 0.0
    note: str = ""
    evidence: tuple[str, ...] = ()
    """Why the kernel is quarantined."""
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """Verified or measured, but implausible: the kernel is quarantined."""

    evidence: tuple[str, ...]
    verification: Verification | None
    measurement: Measurement | None
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class Sanitized:
    tools: tuple[str, ...]
    findings: tuple[str, ...] = ()
    note: str = ""
    log: Blob = ""
    seconds: float = 0.0
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class Raced:
    """The result of a race."""

    ratio: Interval
    """Speedup of the first over the second."""
    pairs: int
    samples: int
    corroborated: bool = True
    """Whether the judge's clock confirms the times that the runners reported."""
    raw: Blob = ""
    seconds: float = 0.0
    note: str = ""
    doubts: tuple[str, ...] = ()
    """Why the times are not corroborated."""
    by_workload: tuple[WorkloadRatio, ...] = ()
    """Over a suite: the ratio on each workload."""
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""
    regime: Regime = Regime.SINGLE


@dataclass(frozen=True, slots=True)
class Profiled:
    """The counters, or why they could not be read."""

    profile: Profile


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest values on each workload, and the code of the kernel that has them."""

    by_workload: tuple[WorkloadTuning, ...]
    source: Blob = ""
    """Empty if no other values were faster."""
    choices: tuple[WorkloadChoice, ...] = ()
    trials: int = 0
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The kernel failed this stage."""

    failure: Failure
    seconds: float = 0.0
    kernel: str = ""
    """In a race: the kernel that failed."""
    worker: str = ""
    """The worker of a fleet that did it; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class Repaired:
    source: Blob


@dataclass(frozen=True, slots=True)
class Unaffordable:
    """The call that the work needs could exceed a hard cap on tokens or money and was not made."""

    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Workers of a fleet were lost during the work, as often as that is tried."""

    reason: str
    worker: str
    """The last of them."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """The work failed in the engine; this is not a verdict on a kernel."""

    reason: str
    called_off: bool = False
    """Someone cancelled the call that the work needed."""


NoVerdict = Abandoned | Impossible
"""The work ended without a verdict."""

Result = (
    Prepared
    | Proposals
    | Drafts
    | Built
    | Verified
    | Measured
    | BackToBack
    | Suspected
    | Sanitized
    | Raced
    | Profiled
    | Tuned
    | Failed
    | Repaired
    | Unaffordable
    | Abandoned
    | Impossible
)
