"""The state of a session, and the records that it consists of: ideas, kernels, races, model calls, workers.

``engine.domain.folds`` makes it from a session's events. ``SessionState`` compares by identity, which lets a screen detect a
new state at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from engine.domain import decisions as d
from engine.domain import events as e
from engine.domain.model import (
    PASTE,
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
    RaceOutcome,
    Resources,
    Usage,
    Verification,
    WorkloadChoice,
    WorkloadRatio,
)
from engine.domain.preparation import Preparation
from engine.domain.profile import Profile
from engine.domain.round_plan import RoundPlan
from engine.domain.settings import Limits, Mode, ModelSettings, Pauses
from engine.domain.work import WorkKey


class IdeaStatus(StrEnum):
    PROPOSED = "proposed"
    SELECTED = "selected"
    REJECTED = "rejected"
    PARKED = "parked"


class Stage(StrEnum):
    """The next step of a kernel, or how it ended."""

    BUILD = "build"
    VERIFY = "verify"
    MEASURE = "measure"
    REPAIR = "repair"
    MEASURED = "measured"
    QUARANTINED = "quarantined"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def settled(self) -> bool:
        return self in _SETTLED


_SETTLED = (Stage.MEASURED, Stage.QUARANTINED, Stage.FAILED, Stage.CANCELLED)


class CallStatus(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    FAILED = "failed"


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Idea:
    id: str
    round: int
    text: IdeaText
    parent: str | None
    author: Author
    branch: int
    status: IdeaStatus = IdeaStatus.PROPOSED
    reason: str = ""
    edited: bool = False
    implemented: bool = False
    kernels: tuple[str, ...] = ()
    note: str = ""
    writer: str = ""
    materials: tuple[str, ...] = ()
    """Kernels attached to it for its writer."""
    rank: int = 0
    """Position among the undecided ideas, if the engineer ordered them."""
    repeats: str = ""
    """The idea that it tries again on another parent."""
    advice: str = ""
    """Why the strategy chose it or keeps it for later."""


@dataclass(frozen=True, slots=True)
class Sanitizing:
    """The sanitizers' report on one attempt of a kernel."""

    attempt: int
    tools: tuple[str, ...]
    findings: tuple[str, ...]
    note: str
    log: Blob


@dataclass(frozen=True, slots=True)
class RaceRecord:
    """The outcome of one race, and the measurements of the two kernels that it belongs to."""

    kernel: str
    against: str
    outcome: RaceOutcome
    ratio: Interval | None
    """Speedup of ``kernel`` over ``against``."""
    effort: int
    pairs: int
    samples: int
    raw: Blob
    note: str
    at: float
    epoch: int
    again: tuple[int, int]
    """How often each of the two had been reopened by then. The race no longer counts once either is reopened again."""
    doubts: tuple[str, ...] = ()
    """Why its times are not corroborated."""
    by_workload: tuple[WorkloadRatio, ...] = ()
    """Over a suite: the ratio on each workload."""
    back_to_back: bool = False
    """Whether it was run in the sustained regime."""
    seconds: float = 0.0
    """Time that it took on the device."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a model."""

    id: str
    work: WorkKey
    role: CallRole
    model: str
    prompt: Blob
    ceiling: int
    asked_at: float
    status: CallStatus = CallStatus.OPEN
    reply: Blob = ""
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    finish: str = ""
    reason: str = ""
    seconds: float = 0.0
    recalled: bool = False
    max_output: int = 0
    """The part of ``ceiling`` that the reply may take."""
    estimated: bool = False
    """Its usage is what it could have cost."""
    cancelled: bool = False
    """Cancelled by hand: its work continues without it. Reset if the work failed because of it, so a retry asks again."""

    @property
    def by_hand(self) -> bool:
        """Whether a person answers the prompt."""
        return self.model == PASTE.name

    @property
    def highest(self) -> Usage:
        """What the call could cost."""
        output = self.max_output or self.ceiling
        return Usage(self.ceiling - output, 0, output)


@dataclass(frozen=True, slots=True)
class Kernel:
    id: str
    idea: str
    parent: str | None
    round: int
    author: Author
    name: str
    dialect: Dialect
    contract: Contract
    source: Blob
    tunables: Mapping[str, int]
    seed: bool
    stage: Stage = Stage.BUILD
    attempt: int = 0
    earlier: tuple[Blob, ...] = ()
    """Code of the attempts before this one, oldest first."""
    failures: tuple[Failure, ...] = ()
    """Why those attempts failed."""
    artefact: str = ""
    resources: tuple[Resources, ...] = ()
    build_log: Blob = ""
    instructions: Mapping[str, int] = field(default_factory=_empty)
    """Instruction family → occurrences in the machine code; empty where it could not be read."""
    form: str = ""
    """Digest of its normal form, as it was drafted; empty where unknown."""
    machine_code: str = ""
    """Digest of the binaries and launch plans of all its shapes; empty where unknown."""
    members: tuple[str, ...] = ()
    """Of a dispatch: the names of the kernels that it chooses from; of a tuned kernel, the one whose code it has."""
    choices: tuple[WorkloadChoice, ...] = ()
    """Of a dispatch: the kernel and the values of its tunables for each workload of the suite."""
    tuning: e.KernelTuned | None = None
    """What tuning on each workload of the suite found; ``None`` if it has not been tried."""
    same_as: str = ""
    """The kernel with the same machine code whose verdict it took over; empty if it has its own."""
    verification: Verification | None = None
    measurement: Measurement | None = None
    failure: Failure | None = None
    reason: str = ""
    children: tuple[str, ...] = ()
    seconds: float = 0.0
    """Engine time spent on it, in seconds."""
    epoch: int = 0
    """The number of the preparation that its measurement belongs to."""
    again: int = 0
    """How often it was reopened."""
    evidence: tuple[str, ...] = ()
    """Why it is or was in quarantine."""
    accepted: str = ""
    """Why the engineer accepted it; empty if not."""
    sanitizing: Sanitizing | None = None
    unsustained: str = ""
    """Why it has no times in the sustained regime although they were asked for; empty otherwise."""
    profile: Profile | None = None
    """Hardware counters of its present code."""
    worker: str = ""
    """The worker of a fleet that measured it; empty without a fleet."""


@dataclass(frozen=True, slots=True)
class Round:
    number: int
    parents: tuple[str, ...]
    opened_at: float
    answered: bool = False
    """The proposer has answered for this round."""
    closed: bool = False
    dropped: tuple[str, ...] = ()
    plan: RoundPlan | None = None


@dataclass(frozen=True, slots=True)
class Note:
    at: float
    by: Author
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker or builder of the session's fleet."""

    name: str
    device: Device | None
    """``None``: a builder."""
    host: str
    joined_at: float
    notes: tuple[str, ...] = ()
    baselines_us: Mapping[str, Interval] = field(default_factory=_empty)
    lost: str = ""
    """Why it is gone; empty while it works."""
    losses: int = 0
    """How often it was lost in this process."""
    assigned: tuple[WorkKey, ...] = ()
    """The work that it began last, newest last; what is still running is among ``SessionState.started``."""
    verdicts: int = 0
    recent: tuple[float, ...] = ()
    """When it ended its latest verdicts."""
    clock_mhz: int | None = None
    celsius: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SessionState:
    """Everything that rules, screens and reports need, derived only from the journal."""

    opened: e.SessionOpened | None = None
    seq: int = -1
    opened_at: float = 0.0
    at: float = 0.0
    active_seconds: float = 0.0
    """Seconds during which work was running, without waits for the engineer and gaps before a resume."""
    limits: Limits = field(default_factory=Limits)
    models: ModelSettings = field(default_factory=ModelSettings)
    mode: Mode = field(default_factory=Mode)
    instructions: str = ""
    device: Device | None = None
    preparation: Preparation | None = None
    epoch: int = 0
    """The number of the latest preparation. Measurements of different preparations are never compared."""
    ideas: Mapping[str, Idea] = field(default_factory=_empty)
    kernels: Mapping[str, Kernel] = field(default_factory=_empty)
    rounds: Mapping[int, Round] = field(default_factory=_empty)
    pinned: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    prune_reasons: Mapping[str, str] = field(default_factory=_empty)
    """Kernel → why its branch was last pruned; empty without a reason."""
    incumbent: str = ""
    """The kernel of the last ``IncumbentChanged``; ``queries.incumbent`` checks that it is still eligible."""
    reigns: tuple[str, ...] = ()
    """All incumbents, in the order in which they last became the incumbent; the present one is last."""
    races: tuple[RaceRecord, ...] = ()
    reign_began: int = 0
    """The number of races before the incumbent became the incumbent."""
    asked: tuple[tuple[str, str], ...] = ()
    """Races that the engineer requested and that have not run: (kernel, against)."""
    tunings: tuple[str, ...] = ()
    """Kernels whose tuning the engineer requested and that are not tuned yet."""
    calls: Mapping[str, ModelCall] = field(default_factory=_empty)
    pauses: Pauses = field(default_factory=Pauses)
    paused: str | None = None
    capped: str | None = None
    """The hard cap that the next call could exceed; cleared by new limits."""
    notes: tuple[Note, ...] = ()
    started: Mapping[WorkKey, int] = field(default_factory=_empty)
    """Work that was started and has no result yet → the number of processes that started it."""
    broken: Mapping[WorkKey, str] = field(default_factory=_empty)
    """Work that failed in the engine → why. A resume clears it."""
    called_off: Mapping[WorkKey, str] = field(default_factory=_empty)
    """Failed work whose call someone cancelled → why; the engine is not at fault."""
    closed: str | None = None
    reopened_after: int = -1
    """The last round when the closed session was last reopened."""
    workers: Mapping[str, WorkerRecord] = field(default_factory=_empty)
    """The fleet of the session's latest process, by name; empty without a fleet."""
    unknown: Mapping[str, int] = field(default_factory=_empty)
    """Kinds of events that this version does not know → how many of them the journal has."""
    decisions: tuple[d.PersonDecision, ...] = ()
    """The latest decisions of people that were not undone, oldest first."""

    @property
    def running(self) -> Mapping[WorkKey, int]:
        """The started work that runs: none in a closed session, which may have left some unfinished."""
        return self.started if self.closed is None else _empty()

    @property
    def next_idea(self) -> int:
        return len(self.ideas) + 1

    @property
    def next_kernel(self) -> int:
        return len(self.kernels) + 1

    @property
    def next_call(self) -> int:
        return len(self.calls) + 1
