"""What can be asked of a session, by hand or by policy: the closed union that ``rules.decide`` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.domain.model import Blob, Contract, Dialect, IdeaText, Limits, Pauses
from engine.domain.profile import Profile


@dataclass(frozen=True, slots=True)
class WriteIdea:
    """Add an idea of the engineer's own to the round."""

    text: IdeaText
    parent: str | None = None
    """Kernel it builds on; the incumbent when not given."""
    branch: int | None = None
    select: bool = False
    """Approve it in the same breath."""
    materials: tuple[str, ...] = ()
    """Kernels put beside it, e.g. the second one of a crossing."""


@dataclass(frozen=True, slots=True)
class EditIdea:
    """Change an undecided idea; ``None`` keeps what is there."""

    idea: str
    title: str | None = None
    rationale: str | None = None
    category: str | None = None
    parent: str | None = None
    branch: int | None = None
    predicted: float | None = None
    writer: str | None = None
    """Which source writes its code; an empty string: as the session's settings say."""


@dataclass(frozen=True, slots=True)
class ReorderIdeas:
    """Take undecided ideas up in this order; those not named follow as they stood."""

    ideas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttachMaterial:
    """Put a kernel beside an idea that is not implemented yet: this may help."""

    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class RemoveMaterial:
    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class SelectIdeas:
    """Approve ideas; an empty tuple means every undecided one."""

    ideas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RejectIdea:
    idea: str
    reason: str


@dataclass(frozen=True, slots=True)
class ParkIdea:
    idea: str


@dataclass(frozen=True, slots=True)
class SeedKernel:
    """Bring a kernel in by hand. Its source is already a blob of the session; with ``idea`` it implements that idea."""

    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    tunables: Mapping[str, int] = field(default_factory=dict)
    parent: str | None = None
    idea: str | None = None
    title: str = ""
    """What the kernel does, in words, when it implements no idea of the session."""


@dataclass(frozen=True, slots=True)
class PinKernel:
    kernel: str


@dataclass(frozen=True, slots=True)
class UnpinKernel:
    kernel: str


@dataclass(frozen=True, slots=True)
class PruneBranch:
    kernel: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReopenBranch:
    kernel: str


@dataclass(frozen=True, slots=True)
class CancelKernel:
    kernel: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AcceptKernel:
    """Believe a quarantined kernel; the note says why."""

    kernel: str
    note: str


@dataclass(frozen=True, slots=True)
class DiscardKernel:
    """Fail a quarantined kernel."""

    kernel: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MeasureAgain:
    """Spend more on a settled kernel: verify and measure it afresh."""

    kernel: str


@dataclass(frozen=True, slots=True)
class RecordProfile:
    """Keep what the device's counters said of a kernel. Its log is already a blob of the session."""

    kernel: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class RaceKernel:
    """Race a measured kernel against another one, or against the incumbent; where that was undecided, spend more on it."""

    kernel: str
    against: str | None = None


@dataclass(frozen=True, slots=True)
class RaceLeaders:
    """Race the best measured kernels again, each against the incumbent."""

    count: int = 3


@dataclass(frozen=True, slots=True)
class RaceUndecided:
    """Spend more on every race against the incumbent that was undecided."""


@dataclass(frozen=True, slots=True)
class AddNote:
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class SetMode:
    mode: str


@dataclass(frozen=True, slots=True)
class SetLimits:
    limits: Limits


@dataclass(frozen=True, slots=True)
class SetPauses:
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class Pause:
    """Ask for no further ideas and code; what is under way goes on."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on after a pause."""


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """The reply to a prompt that was given out by hand. It is already a blob of the session."""

    call: str
    reply: Blob


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Stop one question to a model, or one given out by hand. Its work goes on without the reply, and does not ask again."""

    call: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Instruct:
    text: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    reason: str


IdeaCommand = (
    WriteIdea | EditIdea | ReorderIdeas | AttachMaterial | RemoveMaterial | SelectIdeas | RejectIdea | ParkIdea | SeedKernel
)
KernelCommand = (
    PinKernel
    | UnpinKernel
    | PruneBranch
    | ReopenBranch
    | CancelKernel
    | AcceptKernel
    | DiscardKernel
    | MeasureAgain
    | RecordProfile
)
RaceCommand = RaceKernel | RaceLeaders | RaceUndecided
SessionCommand = (
    AddNote | SetMode | SetLimits | SetPauses | Pause | Continue | AnswerCall | CancelCall | Instruct | CloseSession
)
Command = IdeaCommand | KernelCommand | RaceCommand | SessionCommand
