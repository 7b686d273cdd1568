"""The events of a session: the closed union that a journal consists of.

Events are frozen and small; large payloads are blobs. ``KIND`` is the name on disk and never changes its meaning: a change of
shape needs a new journal version and an upcaster (see ``engine.journal.codec``).

One long file on purpose: each class is only its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from engine.domain.model import (
    Author,
    Blob,
    CallRole,
    Contract,
    Device,
    Dialect,
    Failure,
    IdeaText,
    Interval,
    Measurement,
    Problem,
    RaceOutcome,
    Resources,
    Succession,
    Usage,
    Verification,
)
from engine.domain.preparation import Preparation
from engine.domain.profile import Profile
from engine.domain.settings import Limits, Pauses, Settings


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The first event of every journal: the problem, the settings and the device asked for."""

    KIND: ClassVar[str] = "session.opened"
    problem: Problem
    device: str
    """The device asked for: ``cpu`` or ``cuda:0``; what it turned out to be is in ``session.prepared``."""
    settings: Settings
    mode: str
    versions: Mapping[str, str]
    forked_from: str = ""


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """A process took the session up again; ``unfinished`` names work that an earlier process started and never recorded."""

    KIND: ClassVar[str] = "session.resumed"
    unfinished: tuple[str, ...]
    repaired: str = ""
    """What opening had to repair, e.g. a torn last line."""


@dataclass(frozen=True, slots=True)
class SessionPrepared:
    """The device was described, the correctness check tried, the baselines measured. A later one means another device."""

    KIND: ClassVar[str] = "session.prepared"
    device: Device
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A limit was reached, or someone ended the session. ``reason`` is for people."""

    KIND: ClassVar[str] = "session.closed"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionReopened:
    """Someone asked a closed session for more."""

    KIND: ClassVar[str] = "session.reopened"


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A round began; its ideas start from these parents (none for round 0, the naive port)."""

    KIND: ClassVar[str] = "round.opened"
    round: int
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """Every kernel of the round has settled."""

    KIND: ClassVar[str] = "round.closed"
    round: int


@dataclass(frozen=True, slots=True)
class ProposedIdea:
    """One idea as it enters a session: its identity, where it aims, who had it."""

    id: str
    text: IdeaText
    parent: str | None
    author: Author
    branch: int
    """Implementations wanted."""


@dataclass(frozen=True, slots=True)
class IdeasProposed:
    """Ideas joined a round. ``from_source``: they are the proposer's answer for the round, which is asked for once."""

    KIND: ClassVar[str] = "ideas.proposed"
    round: int
    ideas: tuple[ProposedIdea, ...]
    from_source: bool
    dropped: tuple[str, ...] = ()
    """Titles that were near-duplicates of earlier ideas."""


@dataclass(frozen=True, slots=True)
class IdeaEdited:
    """The text, the parent or the number of implementations of an undecided idea was changed."""

    KIND: ClassVar[str] = "idea.edited"
    idea: str
    text: IdeaText
    parent: str | None
    branch: int
    writer: str = ""
    """Who writes its code; empty for the writer of the session's settings."""


@dataclass(frozen=True, slots=True)
class IdeasReordered:
    """Undecided ideas of a round, in the engineer's order."""

    KIND: ClassVar[str] = "ideas.reordered"
    ideas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelAttached:
    """A kernel was attached to an idea, as material for whoever writes its code."""

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
    """The idea is worth compute."""

    KIND: ClassVar[str] = "idea.selected"
    idea: str


@dataclass(frozen=True, slots=True)
class IdeaRejected:
    """The idea is not worth compute; the next prompt sees the reason."""

    KIND: ClassVar[str] = "idea.rejected"
    idea: str
    reason: str


@dataclass(frozen=True, slots=True)
class IdeaParked:
    """Not now: the idea leaves its round undecided and can be taken up later."""

    KIND: ClassVar[str] = "idea.parked"
    idea: str


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


@dataclass(frozen=True, slots=True)
class IdeaImplemented:
    """The idea has all its drafts; ``note`` tells why there are fewer than requested."""

    KIND: ClassVar[str] = "idea.implemented"
    idea: str
    kernels: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt did not build or verify, and its author is asked for a repair."""

    KIND: ClassVar[str] = "attempt.failed"
    kernel: str
    attempt: int
    failure: Failure
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptRevised:
    """A failed kernel got new code from its author and is built again."""

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
    """Key of the build cache."""
    seconds: float
    resources: tuple[Resources, ...] = ()
    log: Blob = ""
    instructions: Mapping[str, int] = field(default_factory=dict)
    """Instruction family → occurrences in the machine code; empty where it could not be read."""


@dataclass(frozen=True, slots=True)
class KernelVerified:
    """All outputs of all trials were correct; ``screen`` is the quick measurement of the same trial."""

    KIND: ClassVar[str] = "kernel.verified"
    kernel: str
    verification: Verification
    screen: Measurement
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelMeasured:
    """The kernel's measurement is final on this device, until someone asks to measure it again."""

    KIND: ClassVar[str] = "kernel.measured"
    kernel: str
    measurement: Measurement
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelFailed:
    """The kernel failed."""

    KIND: ClassVar[str] = "kernel.failed"
    kernel: str
    failure: Failure
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelQuarantined:
    """The kernel is correct and measured, but something about it is implausible: the engineer decides."""

    KIND: ClassVar[str] = "kernel.quarantined"
    kernel: str
    evidence: tuple[str, ...]
    """What is suspicious, one line each."""
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelAccepted:
    """The engineer accepted a quarantined kernel."""

    KIND: ClassVar[str] = "kernel.accepted"
    kernel: str
    note: str


@dataclass(frozen=True, slots=True)
class KernelSanitized:
    """A finalist ran under the sanitizers. Findings are followed by a quarantine."""

    KIND: ClassVar[str] = "kernel.sanitized"
    kernel: str
    attempt: int
    tools: tuple[str, ...]
    """Sanitizers that ran; empty with the reason in ``note``."""
    findings: tuple[str, ...] = ()
    note: str = ""
    log: Blob = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelProfiled:
    """The hardware counters of a kernel were read, or could not be."""

    KIND: ClassVar[str] = "kernel.profiled"
    kernel: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class KernelRaced:
    """A kernel raced another one, interleaved and on fresh samples. A new incumbent is an event of its own."""

    KIND: ClassVar[str] = "kernel.raced"
    kernel: str
    against: str
    outcome: RaceOutcome
    ratio: Interval | None = None
    """Speedup of ``kernel`` over ``against``, never narrower than the session's noise; ``None`` where the race was given up."""
    effort: int = 0
    pairs: int = 0
    """Process pairs."""
    samples: int = 0
    raw: Blob = ""
    note: str = ""
    """Caveats, e.g. that the time was not corroborated."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RaceAsked:
    """The engineer asked for a race of two kernels."""

    KIND: ClassVar[str] = "race.asked"
    kernel: str
    against: str


@dataclass(frozen=True, slots=True)
class IncumbentChanged:
    """A kernel became the incumbent. Journals from before races have none: there the best measured kernel is it."""

    KIND: ClassVar[str] = "incumbent.changed"
    kernel: str
    over: str
    """The incumbent before it; empty for the first."""
    why: Succession


@dataclass(frozen=True, slots=True)
class KernelCancelled:
    """Someone cancelled the kernel, or its branch was pruned before it settled."""

    KIND: ClassVar[str] = "kernel.cancelled"
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelReopened:
    """The kernel goes back to the build: measured again on request, or rebuilt because the session moved."""

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
    """The kernel and its descendants are closed: none becomes a parent any more."""

    KIND: ClassVar[str] = "branch.pruned"
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class BranchReopened:
    KIND: ClassVar[str] = "branch.reopened"
    kernel: str


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """A note on a kernel, an idea, a round, or (with an empty target) the session."""

    KIND: ClassVar[str] = "note.added"
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """Who approves ideas changed: ``ask``, ``ask:SECONDS`` or ``autopilot`` (see ``settings.Mode``)."""

    KIND: ClassVar[str] = "mode.changed"
    mode: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    KIND: ClassVar[str] = "limits.changed"
    limits: Limits


@dataclass(frozen=True, slots=True)
class InstructionsChanged:
    """Standing instructions that every later prompt carries."""

    KIND: ClassVar[str] = "instructions.changed"
    text: str


@dataclass(frozen=True, slots=True)
class PausesChanged:
    KIND: ClassVar[str] = "pauses.changed"
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """No ideas and no code are asked for until the engineer resumes the search."""

    KIND: ClassVar[str] = "session.paused"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionContinued:
    """The search was resumed. ``pauses`` are the conditions from now on, without those that held."""

    KIND: ClassVar[str] = "session.continued"
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A model is about to be asked. The prompt is kept before the first token is spent."""

    KIND: ClassVar[str] = "call.started"
    call: str
    work: str
    """Key of the work that it serves."""
    role: CallRole
    model: str
    """As an author's name: ``openai:NAME``, ``paste``, ``command:CMD``."""
    prompt: Blob
    ceiling: int = 0
    """Tokens that it may cost at most; 0 where they are not counted."""


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The reply as it came, before it is parsed."""

    KIND: ClassVar[str] = "call.answered"
    call: str
    reply: Blob
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """``None``: the model's price is not known."""
    finish: str = "stop"
    """Why the model stopped, in the provider's words."""
    seconds: float = 0.0
    recalled: bool = False
    """Answered from a recorded reply at no cost."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """No reply came, or it cannot be used; it is never recalled."""

    KIND: ClassVar[str] = "call.failed"
    call: str
    reason: str
    usage: Usage = field(default_factory=Usage)
    """Tokens beyond those that an answer has recorded already."""
    usd: float | None = None
    cancelled: bool = False
    """Someone cancelled it: its work does not ask again."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The next call could pass a hard cap, so it was not made."""

    KIND: ClassVar[str] = "budget.reached"
    work: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkStarted:
    """Work is about to start. Where no result follows, the process died in it."""

    KIND: ClassVar[str] = "work.started"
    work: str


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The engine could not do a piece of work (device lost, disk full, no answer). It is no verdict on a kernel."""

    KIND: ClassVar[str] = "work.failed"
    work: str
    reason: str
    called_off: bool = False
    """The engine is not at fault: someone cancelled the call that the work needed."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a kind that this program does not know. It is kept and shown."""

    KIND: ClassVar[str] = "unknown"
    kind: str
    data: Mapping[str, object]


Event = (
    SessionOpened
    | SessionResumed
    | SessionPrepared
    | SessionClosed
    | SessionReopened
    | RoundOpened
    | RoundClosed
    | IdeasProposed
    | IdeaEdited
    | IdeasReordered
    | KernelAttached
    | KernelDetached
    | IdeaSelected
    | IdeaRejected
    | IdeaParked
    | KernelDrafted
    | IdeaImplemented
    | AttemptFailed
    | AttemptRevised
    | KernelBuilt
    | KernelVerified
    | KernelMeasured
    | KernelFailed
    | KernelQuarantined
    | KernelAccepted
    | KernelSanitized
    | KernelProfiled
    | KernelRaced
    | RaceAsked
    | IncumbentChanged
    | KernelCancelled
    | KernelReopened
    | KernelPinned
    | KernelUnpinned
    | BranchPruned
    | BranchReopened
    | NoteAdded
    | ModeChanged
    | LimitsChanged
    | InstructionsChanged
    | PausesChanged
    | SessionPaused
    | SessionContinued
    | CallStarted
    | CallAnswered
    | CallFailed
    | BudgetReached
    | WorkStarted
    | WorkFailed
    | UnknownEvent
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal: an event with its place, time and author."""

    seq: int
    at: float
    """Seconds since the epoch, UTC."""
    by: Author
    event: Event
