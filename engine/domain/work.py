"""Effects still owed, and what came of them.

``rules.next_work(state)`` derives the work from the state alone, so a search that was killed goes on where it stood.
Results are plain values; ``rules.record`` turns a work and its result into events.
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
)
from engine.domain.preparation import Preparation


@dataclass(frozen=True, slots=True)
class Prepare:
    """Describe the device, try the gate, measure the baselines."""

    @property
    def key(self) -> str:
        return "prepare"


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the idea source for this round's ideas."""

    round: int
    parents: tuple[str, ...]
    count: int

    @property
    def key(self) -> str:
        return f"propose:{self.round}"


@dataclass(frozen=True, slots=True)
class Implement:
    """Ask the code source for implementations of a selected idea."""

    idea: str

    @property
    def key(self) -> str:
        return f"implement:{self.idea}"


@dataclass(frozen=True, slots=True)
class Build:
    kernel: str
    attempt: int

    @property
    def key(self) -> str:
        return f"build:{self.kernel}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Verify:
    """Several trials with fresh inputs, hold-out shapes, and a quick screen of the time."""

    kernel: str
    attempt: int

    @property
    def key(self) -> str:
        return f"verify:{self.kernel}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Measure:
    """Precise interleaved pairs against the baseline, in fresh processes."""

    kernel: str
    attempt: int

    @property
    def key(self) -> str:
        return f"measure:{self.kernel}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Repair:
    """Ask the author for a new source text, given the compiler's or the verifier's words."""

    kernel: str
    attempt: int
    """The attempt that failed."""

    @property
    def key(self) -> str:
        return f"repair:{self.kernel}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Sanitize:
    """Run a finalist under the sanitizers before the session ends with it."""

    kernel: str
    attempt: int

    @property
    def key(self) -> str:
        return f"sanitize:{self.kernel}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Race:
    """One kernel against another, interleaved in fresh processes, so that neither inherits an earlier measurement's luck."""

    kernel: str
    against: str
    effort: int = 0
    """How often the two were undecided before: each time the bench spends twice as much."""

    @property
    def key(self) -> str:
        return f"race:{self.kernel}:{self.against}:{self.effort}"


Work = Prepare | Propose | Implement | Build | Verify | Measure | Repair | Sanitize | Race


@dataclass(frozen=True, slots=True)
class Prepared:
    device: Device
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class Proposal:
    """One idea as a source offers it."""

    text: IdeaText
    parent: str | None
    author: Author


@dataclass(frozen=True, slots=True)
class Proposals:
    ideas: tuple[Proposal, ...]


@dataclass(frozen=True, slots=True)
class StoredDraft:
    """A draft whose source is already a blob of the session."""

    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    author: Author
    tunables: Mapping[str, int] = field(default_factory=dict)


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
    """Family → how often it occurs in the machine code; empty where nothing could read it."""


@dataclass(frozen=True, slots=True)
class Verified:
    verification: Verification
    screen: Measurement
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    measurement: Measurement
    seconds: float


@dataclass(frozen=True, slots=True)
class Suspected:
    """Verified or measured, and something about it is not believed."""

    evidence: tuple[str, ...]
    verification: Verification | None
    measurement: Measurement | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sanitized:
    tools: tuple[str, ...]
    findings: tuple[str, ...] = ()
    note: str = ""
    log: Blob = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Raced:
    """How two kernels fared against each other."""

    ratio: Interval
    """Speedup of the first over the second."""
    pairs: int
    samples: int
    corroborated: bool = True
    """Whether the judge's own clock bears out the times that the two claimed."""
    raw: Blob = ""
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The kernel failed this stage."""

    failure: Failure
    seconds: float = 0.0
    kernel: str = ""
    """Of a race: which of the two it was."""


@dataclass(frozen=True, slots=True)
class Repaired:
    source: Blob


@dataclass(frozen=True, slots=True)
class Unaffordable:
    """The call that the work needs could pass a hard cap on tokens or money; it was not made."""

    reason: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """The engine could not perform the work; says nothing about the kernel."""

    reason: str
    called_off: bool = False
    """Someone cancelled the call that the work needed."""


Result = (
    Prepared
    | Proposals
    | Drafts
    | Built
    | Verified
    | Measured
    | Suspected
    | Sanitized
    | Raced
    | Failed
    | Repaired
    | Unaffordable
    | Impossible
)
