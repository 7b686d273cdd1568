"""The commands of a session, from the engineer or the policy: the closed union that ``rules.decide`` handles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.domain.model import Blob, Contract, Dialect, IdeaText, WorkloadChoice
from engine.domain.profile import Profile
from engine.domain.settings import Limits, ModelSettings, Pauses


@dataclass(frozen=True, slots=True)
class WriteIdea:
    """Add an idea of the engineer to the round."""

    text: IdeaText
    parent: str | None = None
    """The parent kernel; by default the incumbent."""
    branch: int | None = None
    select: bool = False
    """Approve it immediately."""
    materials: tuple[str, ...] = ()
    """Kernels to attach, e.g. the second parent of a combination."""


@dataclass(frozen=True, slots=True)
class EditIdea:
    """Change an undecided idea; ``None`` keeps the present value. Of an approved idea that is not written, only the writer."""

    idea: str
    title: str | None = None
    rationale: str | None = None
    category: str | None = None
    parent: str | None = None
    branch: int | None = None
    predicted: float | None = None
    writer: str | None = None
    """Who writes its code; empty for the writer of the session's settings."""


@dataclass(frozen=True, slots=True)
class ReorderIdeas:
    """Put these undecided ideas first, in this order; the others follow in their order."""

    ideas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttachKernel:
    """Attach a kernel to an idea that is not implemented yet; the writer's prompt shows it."""

    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class DetachKernel:
    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class SelectIdeas:
    """Approve ideas; an empty tuple approves every undecided one."""

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
    """Seed a kernel. Its code is already a blob of the session; with ``idea``, it implements that idea."""

    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    tunables: Mapping[str, int] = field(default_factory=dict)
    parent: str | None = None
    idea: str | None = None
    title: str = ""
    """Title of the kernel if it implements no idea of the session."""
    members: tuple[str, ...] = ()
    """Of a dispatch: the names of the kernels that it chooses from."""
    choices: tuple[WorkloadChoice, ...] = ()
    """Of a dispatch: what it builds for each workload of the session's suite."""


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
    """Accept a quarantined kernel; the note says why."""

    kernel: str
    note: str


@dataclass(frozen=True, slots=True)
class DiscardKernel:
    """Fail a quarantined kernel."""

    kernel: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Remeasure:
    """Verify and measure a settled kernel again."""

    kernel: str


@dataclass(frozen=True, slots=True)
class TuneKernel:
    """Tune a measured kernel on each workload of the session's suite."""

    kernel: str


@dataclass(frozen=True, slots=True)
class RecordProfile:
    """Record the hardware counters of a kernel. The log is already a blob of the session."""

    kernel: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class RaceKernel:
    """Race a measured kernel against another one or the incumbent, with more effort if they were undecided."""

    kernel: str
    against: str | None = None


@dataclass(frozen=True, slots=True)
class RaceLeaders:
    """Race the best measured kernels again, each against the incumbent."""

    count: int = 3


@dataclass(frozen=True, slots=True)
class RaceUndecided:
    """Repeat every undecided race against the incumbent with more effort."""


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
class SetModels:
    """Change proposers, writer, servers or the options of calls; calls that are open end as they began."""

    models: ModelSettings


@dataclass(frozen=True, slots=True)
class SetPauses:
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class PauseSearch:
    """Request no further ideas and code; running work continues."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeSearch:
    """Resume a paused search."""


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Answer a prompt by hand. The reply is already a blob of the session."""

    call: str
    reply: Blob


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Cancel a call to a model or a person. Its work continues without the reply and does not ask again."""

    call: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Instruct:
    text: str


@dataclass(frozen=True, slots=True)
class EndSession:
    reason: str


@dataclass(frozen=True, slots=True)
class UndoDecision:
    """Take back the latest decision of a person, as long as nothing has been spent on it."""


IdeaCommand = (
    WriteIdea | EditIdea | ReorderIdeas | AttachKernel | DetachKernel | SelectIdeas | RejectIdea | ParkIdea | SeedKernel
)
KernelCommand = (
    PinKernel
    | UnpinKernel
    | PruneBranch
    | ReopenBranch
    | CancelKernel
    | AcceptKernel
    | DiscardKernel
    | Remeasure
    | TuneKernel
    | RecordProfile
)
RaceCommand = RaceKernel | RaceLeaders | RaceUndecided
SettingCommand = (
    AddNote
    | SetMode
    | SetLimits
    | SetModels
    | SetPauses
    | PauseSearch
    | ResumeSearch
    | AnswerCall
    | CancelCall
    | Instruct
    | EndSession
)
SessionCommand = SettingCommand | UndoDecision
Command = IdeaCommand | KernelCommand | RaceCommand | SessionCommand
