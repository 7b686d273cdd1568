"""The events of a session: the closed union that a journal consists of.

Events are frozen and small; large payloads are blobs. ``KIND`` is the name in the journal and never changes its meaning: a
change of fields needs a new journal version and an upcaster (see ``engine.journal.codec``).

One long file on purpose: each class has only fields.
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
    WorkloadRatio,
)
from engine.domain.plan import RoundPlan
from engine.domain.preparation import Preparation
from engine.domain.profile import Profile
from engine.domain.settings import Limits, ModelSettings, Pauses, Settings


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The first event of every journal: the problem, the settings and the requested device."""

    KIND: ClassVar[str] = "session.opened"
    problem: Problem
    device: str
    """The requested device: ``cpu`` or ``cuda:0``; ``session.prepared`` describes it."""
    settings: Settings
    mode: str
    versions: Mapping[str, str]
    forked_from: str = ""


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """A process opened the session again; ``unfinished`` names work that an earlier process started but did not record."""

    KIND: ClassVar[str] = "session.resumed"
    unfinished: tuple[str, ...]
    repaired: str = ""
    """What was repaired on opening, e.g. a torn last line."""


@dataclass(frozen=True, slots=True)
class SessionPrepared:
    """The device was described, the correctness check tested, the baselines measured. A later one means another device."""

    KIND: ClassVar[str] = "session.prepared"
    device: Device
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A limit was reached, or the engineer ended the session."""

    KIND: ClassVar[str] = "session.closed"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionReopened:
    """A closed session was extended."""

    KIND: ClassVar[str] = "session.reopened"


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
    """Of a dispatch: the names of the kernels that it chooses from."""


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


@dataclass(frozen=True, slots=True)
class RaceAsked:
    """The engineer requested a race of two kernels."""

    KIND: ClassVar[str] = "race.asked"
    kernel: str
    against: str


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
    """The kernel starts again from the build: it is remeasured, or the session moved to another device."""

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


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """A note on a kernel, an idea, a round, or (with an empty target) the session."""

    KIND: ClassVar[str] = "note.added"
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The approval mode changed: ``ask``, ``ask:SECONDS`` or ``autopilot`` (see ``settings.Mode``)."""

    KIND: ClassVar[str] = "mode.changed"
    mode: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    KIND: ClassVar[str] = "limits.changed"
    limits: Limits


@dataclass(frozen=True, slots=True)
class InstructionsChanged:
    """The standing instructions changed; every later prompt contains them."""

    KIND: ClassVar[str] = "instructions.changed"
    text: str


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """Proposers, writer, servers or the options of calls changed."""

    KIND: ClassVar[str] = "models.changed"
    models: ModelSettings


@dataclass(frozen=True, slots=True)
class PausesChanged:
    KIND: ClassVar[str] = "pauses.changed"
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """The search was paused: no ideas and no code are requested until the engineer resumes it."""

    KIND: ClassVar[str] = "session.paused"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionContinued:
    """The search was resumed. ``pauses`` are the remaining conditions, without those that already hold."""

    KIND: ClassVar[str] = "session.continued"
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A model is about to be asked. The prompt is stored before the first token is spent."""

    KIND: ClassVar[str] = "call.started"
    call: str
    work: str
    """Key of the work that needs it."""
    role: CallRole
    model: str
    """The model's name as an author: ``openai:NAME``, ``paste``, ``command:CMD``."""
    prompt: Blob
    ceiling: int = 0
    """The highest possible number of tokens; 0 if the call costs none."""
    max_output: int = 0
    """The part of ``ceiling`` that the reply may take; 0 in older journals."""


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The reply, recorded before it is parsed."""

    KIND: ClassVar[str] = "call.answered"
    call: str
    reply: Blob
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """``None``: the model's price is unknown."""
    finish: str = "stop"
    """Why the model stopped."""
    seconds: float = 0.0
    recalled: bool = False
    """Answered from a recorded reply at no cost."""
    estimated: bool = False
    """The provider reported no usage: ``usage`` is what the call could have cost."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """No reply came, or it is unusable; such replies are never recalled."""

    KIND: ClassVar[str] = "call.failed"
    call: str
    reason: str
    usage: Usage = field(default_factory=Usage)
    """Tokens in addition to those of a recorded answer."""
    usd: float | None = None
    cancelled: bool = False
    """Someone cancelled the call; its work does not ask again."""
    estimated: bool = False
    """What the call cost is unknown: ``usage`` is what it could have cost."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The next call could exceed a hard cap and was not made."""

    KIND: ClassVar[str] = "budget.reached"
    work: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkStarted:
    """Work is about to start. If no result follows, the process died during the work."""

    KIND: ClassVar[str] = "work.started"
    work: str


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Work failed in the engine (device lost, disk full, no answer). This is not a verdict on a kernel."""

    KIND: ClassVar[str] = "work.failed"
    work: str
    reason: str
    called_off: bool = False
    """Someone cancelled the call that the work needed; the engine is not at fault."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker of the session's fleet is ready: one device with its own judge, hosts and sandbox."""

    KIND: ClassVar[str] = "worker.joined"
    name: str
    """Where it is: ``cuda:1``, ``cpu:0-3``, or with its machine ``node7/cuda:1``."""
    device: Device
    host: str
    """Its machine's name."""
    notes: tuple[str, ...] = ()
    """How its environment differs from the engine's."""


@dataclass(frozen=True, slots=True)
class WorkerPrepared:
    """A worker has calibrated the correctness check and measured the baselines on its own device."""

    KIND: ClassVar[str] = "worker.prepared"
    name: str
    baselines_us: Mapping[str, Interval]
    same: Interval
    """The A/A interval there: the ranking baseline against itself."""


@dataclass(frozen=True, slots=True)
class WorkAssigned:
    """A worker began this work."""

    KIND: ClassVar[str] = "work.assigned"
    work: str
    to: str
    """The worker."""
    clock_mhz: int | None = None
    """The device's clock then; ``None`` where unknown."""
    celsius: int | None = None
    """Its temperature then."""


@dataclass(frozen=True, slots=True)
class WorkRequeued:
    """A worker was lost during this work, which another one does again."""

    KIND: ClassVar[str] = "work.requeued"
    work: str
    lost: str
    """The worker."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died, stopped answering, or sent what it may not send."""

    KIND: ClassVar[str] = "worker.lost"
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """A command that another process left in the inbox was accepted or refused. The entry's author is who asked."""

    KIND: ClassVar[str] = "command.answered"
    request: str
    """Name of the request in the inbox, by which the asker finds the answer."""
    command: str
    """The command's name, e.g. ``PinKernel``; empty if it could not be read."""
    accepted: bool
    reason: str = ""
    """Why it was refused."""
    events: int = 0
    """Number of entries directly before this one that the command caused."""
    process: int = 0
    """Process id of the asker, as the asker stated it."""


@dataclass(frozen=True, slots=True)
class DecisionUndone:
    """The latest decision of a person was taken back: what it changed is as it was before."""

    KIND: ClassVar[str] = "decision.undone"
    decision: int
    """Sequence number of its first event."""
    what: str
    """The decision in words, e.g. ``approval of i3``."""
    ideas: tuple[str, ...] = ()
    """The ideas that are as before."""
    kernels: tuple[str, ...] = ()
    kept: str = ""
    """Why the decision stands for some of its ideas; empty if it stands for none."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of an unknown kind. It is kept and displayed."""

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
    | KernelMatched
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
    | ModelsChanged
    | PausesChanged
    | SessionPaused
    | SessionContinued
    | CallStarted
    | CallAnswered
    | CallFailed
    | BudgetReached
    | WorkStarted
    | WorkFailed
    | WorkerJoined
    | WorkerPrepared
    | WorkAssigned
    | WorkRequeued
    | WorkerLost
    | CommandAnswered
    | DecisionUndone
    | UnknownEvent
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal: an event with its sequence number, time and author."""

    seq: int
    at: float
    """Seconds since the epoch, UTC."""
    by: Author
    event: Event
