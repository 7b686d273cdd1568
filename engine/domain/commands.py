"""What can be asked of a session, by hand or by policy: the closed union that ``rules.decide`` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.domain.model import Blob, Contract, Dialect, IdeaText, Limits


@dataclass(frozen=True, slots=True)
class WriteIdea:
    """Add an idea of the engineer's own to the round."""

    text: IdeaText
    parent: str | None = None
    """Kernel it builds on; the incumbent when not given."""
    branch: int | None = None
    select: bool = False
    """Approve it in the same breath."""


@dataclass(frozen=True, slots=True)
class EditIdea:
    """Change an undecided idea; ``None`` keeps what is there."""

    idea: str
    title: str | None = None
    rationale: str | None = None
    category: str | None = None
    parent: str | None = None
    branch: int | None = None


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
class MeasureAgain:
    """Spend more on a settled kernel: verify and measure it afresh."""

    kernel: str


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
class Instruct:
    text: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    reason: str


Command = (
    WriteIdea
    | EditIdea
    | SelectIdeas
    | RejectIdea
    | ParkIdea
    | SeedKernel
    | PinKernel
    | UnpinKernel
    | PruneBranch
    | ReopenBranch
    | CancelKernel
    | MeasureAgain
    | AddNote
    | SetMode
    | SetLimits
    | Instruct
    | CloseSession
)
