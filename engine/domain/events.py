"""What happened, in the past tense: the closed union that a journal is made of.

Every event is frozen and small; large payloads are blobs. ``KIND`` is the name on disk and never changes its meaning: a
change of shape needs a new journal version and an upcaster (see ``engine.journal.codec``).

Long, and one file on purpose: what a journal can hold is read in one place, and each class is only its fields.
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
    Limits,
    Measurement,
    Pauses,
    Problem,
    RaceOutcome,
    Resources,
    Settings,
    Succession,
    Usage,
    Verification,
)
from engine.domain.preparation import Preparation
from engine.domain.profile import Profile


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """First line of every journal: all that the search was asked, frozen."""

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
    """What opening had to mend, e.g. a torn last line set aside."""


@dataclass(frozen=True, slots=True)
class SessionPrepared:
    """The device was described, the gate tried, the baselines measured. A later one means another device."""

    KIND: ClassVar[str] = "session.prepared"
    device: Device
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A stop rule held, or someone said stop. ``reason`` is for people."""

    KIND: ClassVar[str] = "session.closed"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionReopened:
    """Someone gave a closed session more to do."""

    KIND: ClassVar[str] = "session.reopened"


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A round began; its ideas start from these parents (none for round 0, the first port)."""

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
    """Ideas joined a round. ``from_source`` marks the answer to the round's own question, which is asked once."""

    KIND: ClassVar[str] = "ideas.proposed"
    round: int
    ideas: tuple[ProposedIdea, ...]
    from_source: bool
    dropped: tuple[str, ...] = ()
    """Titles that were near-duplicates of earlier ideas."""


@dataclass(frozen=True, slots=True)
class IdeaEdited:
    """The words, the parent or the number of implementations of an undecided idea were changed."""

    KIND: ClassVar[str] = "idea.edited"
    idea: str
    text: IdeaText
    parent: str | None
    branch: int
    writer: str = ""
    """Which source is to write its code; empty: as the session's settings say."""


@dataclass(frozen=True, slots=True)
class IdeasReordered:
    """Undecided ideas of a round in the order in which they are to be taken up."""

    KIND: ClassVar[str] = "ideas.reordered"
    ideas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MaterialAttached:
    """A kernel was put beside an idea for whoever writes its code: this may help."""

    KIND: ClassVar[str] = "material.attached"
    idea: str
    kernel: str


@dataclass(frozen=True, slots=True)
class MaterialRemoved:
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
    """A node joined the tree: a source text with its tunables, as a child of ``parent`` (``None`` for a root or a seed)."""

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
    """All drafts of an idea are in; ``note`` says why there are fewer than asked for."""

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
    """A kernel that failed got a new source text from its author and goes back to the build."""

    KIND: ClassVar[str] = "attempt.revised"
    kernel: str
    attempt: int
    source: Blob


@dataclass(frozen=True, slots=True)
class KernelBuilt:
    """The source became an artefact."""

    KIND: ClassVar[str] = "kernel.built"
    kernel: str
    artefact: str
    """Key of the build cache."""
    seconds: float
    resources: tuple[Resources, ...] = ()
    log: Blob = ""
    instructions: Mapping[str, int] = field(default_factory=dict)
    """Family → how often it occurs in the machine code; empty where nothing could read it."""


@dataclass(frozen=True, slots=True)
class KernelVerified:
    """All outputs of all trials were right; ``screen`` is the quick measurement made in the same trial."""

    KIND: ClassVar[str] = "kernel.verified"
    kernel: str
    verification: Verification
    screen: Measurement
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelMeasured:
    """The kernel's measurement is final for this device (until someone asks for more)."""

    KIND: ClassVar[str] = "kernel.measured"
    kernel: str
    measurement: Measurement
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelFailed:
    """The kernel's way ended before a measurement."""

    KIND: ClassVar[str] = "kernel.failed"
    kernel: str
    failure: Failure
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelQuarantined:
    """The kernel is right and measured, but something about it is not believed: the engineer decides."""

    KIND: ClassVar[str] = "kernel.quarantined"
    kernel: str
    evidence: tuple[str, ...]
    """What is suspicious, one line each."""
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelAccepted:
    """The engineer has looked at a quarantined kernel and believes it."""

    KIND: ClassVar[str] = "kernel.accepted"
    kernel: str
    note: str


@dataclass(frozen=True, slots=True)
class KernelSanitized:
    """A finalist ran under the sanitizers. Their findings, if any, follow as a quarantine."""

    KIND: ClassVar[str] = "kernel.sanitized"
    kernel: str
    attempt: int
    tools: tuple[str, ...]
    """Sanitizers that ran; none with the reason in ``note``."""
    findings: tuple[str, ...] = ()
    note: str = ""
    log: Blob = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelProfiled:
    """The device's counters were read in one call of a kernel, or could not be."""

    KIND: ClassVar[str] = "kernel.profiled"
    kernel: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class KernelRaced:
    """A kernel ran against another one, interleaved and on fresh samples. Whether it leads now is said by what follows."""

    KIND: ClassVar[str] = "kernel.raced"
    kernel: str
    against: str
    outcome: RaceOutcome
    ratio: Interval | None = None
    """Speedup of ``kernel`` over ``against``, never narrower than the session's noise; none where the race was given up."""
    effort: int = 0
    pairs: int = 0
    """Process pairs."""
    samples: int = 0
    raw: Blob = ""
    note: str = ""
    """What a sceptic must know, e.g. that its time was not corroborated."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RaceAsked:
    """The engineer wants two kernels raced: for the first time, or again with more spent on it."""

    KIND: ClassVar[str] = "race.asked"
    kernel: str
    against: str


@dataclass(frozen=True, slots=True)
class IncumbentChanged:
    """Another kernel leads. A journal without any is from before there were races: there the best measured one leads."""

    KIND: ClassVar[str] = "incumbent.changed"
    kernel: str
    over: str
    """The kernel that led before; empty for the first."""
    why: Succession


@dataclass(frozen=True, slots=True)
class KernelCancelled:
    """Someone stopped the kernel, or its branch was pruned before it settled."""

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
    """The kernel and all below it are closed: no parent of anything further."""

    KIND: ClassVar[str] = "branch.pruned"
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class BranchReopened:
    KIND: ClassVar[str] = "branch.reopened"
    kernel: str


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """Words on a kernel, an idea, a round, or (with an empty target) the session."""

    KIND: ClassVar[str] = "note.added"
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """``ask``, ``ask:SECONDS`` (the policy decides after that) or ``autopilot``."""

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
    """A soft condition holds: no idea and no code is asked for until the engineer says go on."""

    KIND: ClassVar[str] = "session.paused"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionContinued:
    """Go on. ``pauses`` are the conditions from now on: those that held are gone."""

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
    """The reply as it came, before anyone has read it."""

    KIND: ClassVar[str] = "call.answered"
    call: str
    reply: Blob
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """``None``: the model's price is not known."""
    finish: str = "stop"
    """Why the model stopped, in the provider's word."""
    seconds: float = 0.0
    recalled: bool = False
    """Answered from a recorded reply: nothing was spent."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """No reply came, or the one that came cannot be used; it is not recalled."""

    KIND: ClassVar[str] = "call.failed"
    call: str
    reason: str
    usage: Usage = field(default_factory=Usage)
    """Spent on it beyond what an answer has recorded already."""
    usd: float | None = None
    cancelled: bool = False
    """Someone stopped it by hand: its work does not ask again."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The next call could pass a hard cap, so it was not made."""

    KIND: ClassVar[str] = "budget.reached"
    work: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkStarted:
    """An effect is about to be performed; without a record of its result the process died in it."""

    KIND: ClassVar[str] = "work.started"
    work: str


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The engine itself could not perform an effect (device lost, disk full, source silent); nothing is said of any kernel."""

    KIND: ClassVar[str] = "work.failed"
    work: str
    reason: str
    called_off: bool = False
    """Nothing is wrong with the engine: someone cancelled the call that the effect needed."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a kind that this program does not know: kept and shown, never dropped."""

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
    | MaterialAttached
    | MaterialRemoved
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
    by: str
    """``engine`` or ``engineer``."""
    event: Event
