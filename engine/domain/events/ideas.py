"""Events of rounds and ideas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.domain.model import Author, IdeaText
from engine.domain.round_plan import RoundPlan


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A round began with these parents (none for round 0, the naive port)."""

    KIND: ClassVar[str] = "round.opened"
    round: int
    parents: tuple[str, ...]
    plan: RoundPlan | None = None
    """The adaptive strategy's plan, with its reason."""


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """Every kernel of the round has settled."""

    KIND: ClassVar[str] = "round.closed"
    round: int


@dataclass(frozen=True, slots=True)
class ProposedIdea:
    """One idea as it enters a session: id, text, parent, author."""

    id: str
    text: IdeaText
    parent: str | None
    author: Author
    branch: int
    """Number of implementations."""
    repeats: str = ""
    """The idea that it tries again on another parent."""
    advice: str = ""
    """Why the strategy proposes that."""
    shown: tuple[str, ...] = ()
    """Kernels attached to it from the start; the writer's prompt shows them."""


@dataclass(frozen=True, slots=True)
class IdeasProposed:
    """Ideas joined a round. ``from_source``: they are the proposer's answer for the round; there is one per round."""

    KIND: ClassVar[str] = "ideas.proposed"
    round: int
    ideas: tuple[ProposedIdea, ...]
    from_source: bool
    dropped: tuple[str, ...] = ()
    """Titles of ideas that were near-duplicates of earlier ones, or too many."""


@dataclass(frozen=True, slots=True)
class IdeaEdited:
    """The text, parent, writer or number of implementations of an undecided idea was changed."""

    KIND: ClassVar[str] = "idea.edited"
    idea: str
    text: IdeaText
    parent: str | None
    branch: int
    writer: str = ""
    """Who writes its code; empty for the session's writer."""


@dataclass(frozen=True, slots=True)
class IdeasReordered:
    """Undecided ideas of a round, in the engineer's order."""

    KIND: ClassVar[str] = "ideas.reordered"
    ideas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelAttached:
    """A kernel was attached to an idea; the writer's prompt shows it."""

    KIND: ClassVar[str] = "material.attached"
    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class KernelDetached:
    KIND: ClassVar[str] = "material.removed"
    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class IdeaSelected:
    """The idea was approved."""

    KIND: ClassVar[str] = "idea.selected"
    idea: str
    advice: str = ""
    """Why the strategy chose it, with the figures behind it."""
    into: int | None = None
    """The round that tries it, if it was proposed in an earlier one."""
    copies: int | None = None
    """The number of implementations that the strategy chose, if it differs from the proposed one."""


@dataclass(frozen=True, slots=True)
class IdeaRejected:
    """The idea was rejected; the next prompt contains the reason."""

    KIND: ClassVar[str] = "idea.rejected"
    idea: str
    reason: str


@dataclass(frozen=True, slots=True)
class IdeaParked:
    """The idea was put aside undecided; it can be approved later."""

    KIND: ClassVar[str] = "idea.parked"
    idea: str
    why: str = ""
    """Why the engine parked it; empty if the engineer did."""
    advice: str = ""
    """Why the strategy keeps it for later; empty if someone else put it aside."""


IdeaEvent = (
    RoundOpened
    | RoundClosed
    | IdeasProposed
    | IdeaEdited
    | IdeasReordered
    | KernelAttached
    | KernelDetached
    | IdeaSelected
    | IdeaRejected
    | IdeaParked
)
