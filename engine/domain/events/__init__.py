"""The events of a session: the closed union that a journal consists of, by subject.

Events are frozen and small; large payloads are blobs. ``KIND`` is the name in the journal and never changes its meaning: a
change of fields needs a new journal version and an upcaster (see ``engine.journal.codec``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.domain.events.calls import (
    BudgetReached,
    CallAnswered,
    CallEvent,
    CallFailed,
    CallStarted,
    WorkFailed,
    WorkRetried,
    WorkStarted,
)
from engine.domain.events.ideas import (
    IdeaEdited,
    IdeaEvent,
    IdeaParked,
    IdeaRejected,
    IdeaSelected,
    IdeasProposed,
    IdeasReordered,
    KernelAttached,
    KernelDetached,
    ProposedIdea,
    RoundClosed,
    RoundOpened,
)
from engine.domain.events.kernels import (
    AttemptFailed,
    AttemptRevised,
    BranchPruned,
    BranchReopened,
    IdeaImplemented,
    IncumbentChanged,
    KernelAccepted,
    KernelBuilt,
    KernelCancelled,
    KernelDrafted,
    KernelEvent,
    KernelFailed,
    KernelMatched,
    KernelMeasured,
    KernelPinned,
    KernelProfiled,
    KernelQuarantined,
    KernelRaced,
    KernelReopened,
    KernelSanitized,
    KernelSustained,
    KernelTuned,
    KernelUnpinned,
    KernelVerified,
    RaceAsked,
    TuningAsked,
)
from engine.domain.events.session import (
    CommandAnswered,
    DecisionUndone,
    InstructionsChanged,
    LimitsChanged,
    ModeChanged,
    ModelsChanged,
    NoteAdded,
    PausesChanged,
    SessionClosed,
    SessionContinued,
    SessionEvent,
    SessionOpened,
    SessionPaused,
    SessionPrepared,
    SessionReopened,
    SessionResumed,
    UnknownEvent,
)
from engine.domain.events.workers import (
    BuilderJoined,
    WorkAssigned,
    WorkerEvent,
    WorkerJoined,
    WorkerLost,
    WorkerPrepared,
    WorkRequeued,
)
from engine.domain.model import Author

__all__ = [
    "AttemptFailed",
    "AttemptRevised",
    "BranchPruned",
    "BranchReopened",
    "BudgetReached",
    "BuilderJoined",
    "CallAnswered",
    "CallFailed",
    "CallStarted",
    "CommandAnswered",
    "DecisionUndone",
    "Entry",
    "Event",
    "IdeaEdited",
    "IdeaImplemented",
    "IdeaParked",
    "IdeaRejected",
    "IdeaSelected",
    "IdeasProposed",
    "IdeasReordered",
    "IncumbentChanged",
    "InstructionsChanged",
    "KernelAccepted",
    "KernelAttached",
    "KernelBuilt",
    "KernelCancelled",
    "KernelDetached",
    "KernelDrafted",
    "KernelFailed",
    "KernelMatched",
    "KernelMeasured",
    "KernelPinned",
    "KernelProfiled",
    "KernelQuarantined",
    "KernelRaced",
    "KernelReopened",
    "KernelSanitized",
    "KernelSustained",
    "KernelTuned",
    "KernelUnpinned",
    "KernelVerified",
    "LimitsChanged",
    "ModeChanged",
    "ModelsChanged",
    "NoteAdded",
    "PausesChanged",
    "ProposedIdea",
    "RaceAsked",
    "RoundClosed",
    "RoundOpened",
    "SessionClosed",
    "SessionContinued",
    "SessionOpened",
    "SessionPaused",
    "SessionPrepared",
    "SessionReopened",
    "SessionResumed",
    "TuningAsked",
    "UnknownEvent",
    "WorkAssigned",
    "WorkFailed",
    "WorkRequeued",
    "WorkRetried",
    "WorkStarted",
    "WorkerJoined",
    "WorkerLost",
    "WorkerPrepared",
]

Event = SessionEvent | IdeaEvent | KernelEvent | CallEvent | WorkerEvent


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal: an event with its sequence number, time and author."""

    seq: int
    at: float
    """Seconds since the epoch, UTC."""
    by: Author
    event: Event
    session: str = field(default="", compare=False)
    """The session that it belongs to, as its first line named it; empty in older journals."""
