"""Folds a session's events into its state: ``advance(state, entries) -> state``.

Pure, and total on every journal that ``rules`` produced. The fold decides nothing and copies each table at most once a batch.
``SessionState`` compares by identity, which lets a screen detect a new state at no cost.

One long file on purpose: each kind of event has one fold of a few lines, next to the fields that it sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    WorkloadRatio,
)
from engine.domain.plan import RoundPlan
from engine.domain.preparation import Preparation
from engine.domain.profile import Profile
from engine.domain.settings import Limits, Mode, ModelSettings, Pauses
from engine.domain.work import WorkKey, WorkKind


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
        return self in (Stage.MEASURED, Stage.QUARANTINED, Stage.FAILED, Stage.CANCELLED)


class CallStatus(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    FAILED = "failed"


_KERNEL_WORK = frozenset(
    {WorkKind.BUILD, WorkKind.VERIFY, WorkKind.MEASURE, WorkKind.REPAIR, WorkKind.SANITIZE, WorkKind.PROFILE}
)


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
    """Of a dispatch: the names of the kernels that it chooses from."""
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
    """The preparation that its measurement belongs to; an older one means another device."""
    again: int = 0
    """How often it was reopened."""
    evidence: tuple[str, ...] = ()
    """Why it is or was in quarantine."""
    accepted: str = ""
    """Why the engineer accepted it; empty if not."""
    sanitizing: Sanitizing | None = None
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
    """One worker of the session's fleet."""

    name: str
    device: Device
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
    workers: Mapping[str, WorkerRecord] = field(default_factory=_empty)
    """The fleet of the session's latest process, by name; empty without a fleet."""
    unknown: tuple[str, ...] = ()
    """Unknown kinds of events in the journal."""
    decisions: tuple[d.PersonDecision, ...] = ()
    """The latest decisions of people that were not undone, oldest first."""

    @property
    def next_idea(self) -> int:
        return len(self.ideas) + 1

    @property
    def next_kernel(self) -> int:
        return len(self.kernels) + 1

    @property
    def next_call(self) -> int:
        return len(self.calls) + 1


class _Batch:
    """The tables of a state while a batch is folded: copied on the first write, frozen at the end."""

    WORK = ("started", "broken", "called_off")
    """The tables keyed by work."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.scalars: dict[str, Any] = {}
        self._tables: dict[str, dict[Any, Any]] = {}
        self._own: set[str] = set()
        """Kernels and ideas made in this batch. Nobody else holds them yet: they are changed in place."""

    def get(self, name: str) -> Any:
        return self.scalars[name] if name in self.scalars else getattr(self.state, name)

    def set(self, **values: Any) -> None:
        self.scalars.update(values)

    def table(self, name: str) -> dict[Any, Any]:
        if name not in self._tables:
            self._tables[name] = dict(getattr(self.state, name))
        return self._tables[name]

    def peek(self, name: str) -> Mapping[Any, Any]:
        table: Mapping[Any, Any] = self._tables[name] if name in self._tables else getattr(self.state, name)
        return table

    def idea(self, key: str, **changes: Any) -> None:
        self._change("ideas", key, changes)

    def kernel(self, key: str, **changes: Any) -> None:
        self._change("kernels", key, changes)

    def _change(self, name: str, key: str, changes: Mapping[str, Any]) -> None:
        known = self.peek(name).get(key)
        if known is None:
            return
        if (own := f"{name} {key}") in self._own:
            for field_name, value in changes.items():
                object.__setattr__(known, field_name, value)
        else:
            self.table(name)[key] = replace(known, **changes)
            self._own.add(own)

    def add(self, name: str, key: str, made: Idea | Kernel) -> None:
        """Put a new idea or kernel into its table."""
        self.table(name)[key] = made
        self._own.add(f"{name} {key}")

    def kept(self, name: str, key: str) -> Any:
        """An idea or kernel as it is now; later changes are made on a copy of it."""
        self._own.discard(f"{name} {key}")
        return self.peek(name).get(key)

    def drop_races(self, kernel: str, *, asked: bool = True) -> None:
        """Drop running races of the kernel and, unless ``asked`` is false, those that the engineer requested."""
        wanted = self.get("asked")
        if asked and any(kernel in pair for pair in wanted):
            wanted = tuple(pair for pair in wanted if kernel not in pair)
            self.set(asked=wanted)
        for name in ("started", "broken"):
            races = [work for work in self.peek(name) if work.kind == WorkKind.RACE and kernel in work.subjects]
            if races:
                self.finish(*(work for work in races if work.subjects not in wanted))

    def finish(self, *works: WorkKey) -> None:
        """Mark work as neither running nor failed: it has a result."""
        for name in self.WORK:
            known = self.peek(name)
            for work in [work for work in works if work in known] if known else ():
                del self.table(name)[work]

    def frozen(self) -> SessionState:
        tables: dict[str, Any] = {name: MappingProxyType(table) for name, table in self._tables.items()}
        return replace(self.state, **self.scalars, **tables)


def advance(state: SessionState, entries: Iterable[e.Entry]) -> SessionState:
    """The state after ``entries``. ``advance(advance(s, a), b) == advance(s, a + b)`` field by field."""
    batch = _Batch(state)
    for entry in entries:
        before = batch.get("at")
        idle = isinstance(entry.event, e.SessionOpened | e.SessionResumed) or not batch.peek("started")
        gap = 0.0 if idle else max(0.0, entry.at - before)
        batch.set(seq=entry.seq, at=entry.at, active_seconds=batch.get("active_seconds") + gap)
        kind = d.KINDS.get(type(entry.event)) if entry.by.decides else None
        if kind is None:
            _FOLDS[type(entry.event)](batch, entry, entry.event)
        else:
            _decide(batch, entry, kind)
    return batch.frozen()


def _decide(b: _Batch, entry: e.Entry, kind: d.DecisionKind) -> None:
    """Fold the decision of a person, and keep what it changes."""
    named = d.subjects(entry.event)
    tables = [("ideas", named if kind.ideas else ()), ("kernels", named if kind.kernels else ())]
    before = [{name: b.kept(table, name) for name in names} for table, names in tables]
    values = {name: b.get(name) for name in kind.settings}
    _FOLDS[type(entry.event)](b, entry, entry.event)
    ideas, kernels = (
        {name: (was, b.kept(table, name)) for name, was in found.items() if was is not None}
        for (table, _), found in zip(tables, before, strict=True)
    )
    settings = {name: (was, b.get(name)) for name, was in values.items()}
    new = d.PersonDecision(entry.seq, entry.seq, entry.at, entry.by, kind, named, ideas, kernels, settings)
    b.set(decisions=d.extended(b.get("decisions"), new))


def _undone(b: _Batch, entry: e.Entry, ev: e.DecisionUndone) -> None:
    known = b.get("decisions")
    top = next((decision for decision in known if decision.seq == ev.decision), None)
    if top is None:
        return
    b.set(decisions=known[: known.index(top)], **{name: before for name, (before, _) in top.settings.items()})
    for table, names, changes in (("ideas", ev.ideas, top.ideas), ("kernels", ev.kernels, top.kernels)):
        b.table(table).update({name: changes[name][0] for name in names if name in changes})
    work = [WorkKey(WorkKind.IMPLEMENT, (idea,)) for idea in ev.ideas]
    b.finish(*work)
    for call in [call for call in b.peek("calls").values() if call.cancelled and call.work in work]:
        b.table("calls")[call.id] = replace(call, cancelled=False)


def _mode_of(text: str) -> Mode:
    """The mode that a journal names; ``ask`` if it is unknown."""
    return Mode.parse(text) or Mode()


def _opened(b: _Batch, entry: e.Entry, ev: e.SessionOpened) -> None:
    b.set(
        opened=ev, opened_at=entry.at, limits=ev.settings.limits, pauses=ev.settings.pauses, models=ev.settings.models,
        mode=_mode_of(ev.mode),
    )  # fmt: skip


def _resumed(b: _Batch, entry: e.Entry, ev: e.SessionResumed) -> None:
    b.set(workers=_empty())
    b.table("broken").clear()
    b.table("called_off").clear()


def _prepared(b: _Batch, entry: e.Entry, ev: e.SessionPrepared) -> None:
    races = (work for work in (*b.peek("started"), *b.peek("broken")) if work.kind == WorkKind.RACE)
    b.finish(WorkKey(WorkKind.PREPARE), *races)
    b.set(asked=(), device=ev.device, preparation=ev.preparation, epoch=b.get("epoch") + 1)


def _closed(b: _Batch, entry: e.Entry, ev: e.SessionClosed) -> None:
    b.set(closed=ev.reason)


def _reopened(b: _Batch, entry: e.Entry, ev: e.SessionReopened) -> None:
    b.set(closed=None)


def _round_opened(b: _Batch, entry: e.Entry, ev: e.RoundOpened) -> None:
    b.table("rounds")[ev.round] = Round(
        ev.round, ev.parents, entry.at, answered=ev.plan is not None and not ev.plan.each, plan=ev.plan
    )


def _round_closed(b: _Batch, entry: e.Entry, ev: e.RoundClosed) -> None:
    rounds = b.table("rounds")
    if ev.round in rounds:
        rounds[ev.round] = replace(rounds[ev.round], closed=True)
    proposal = WorkKey(WorkKind.PROPOSE, (), ev.round)
    if proposal in b.peek("called_off"):
        b.finish(proposal)


def _proposed(b: _Batch, entry: e.Entry, ev: e.IdeasProposed) -> None:
    for idea in ev.ideas:
        made = Idea(
            idea.id, ev.round, idea.text, idea.parent, idea.author, idea.branch, repeats=idea.repeats, advice=idea.advice,
            materials=idea.shown,
        )  # fmt: skip
        b.add("ideas", idea.id, made)
    if ev.from_source:
        b.finish(WorkKey(WorkKind.PROPOSE, (), ev.round))
        rounds = b.table("rounds")
        if ev.round in rounds:
            rounds[ev.round] = replace(rounds[ev.round], answered=True, dropped=ev.dropped)


def _edited(b: _Batch, entry: e.Entry, ev: e.IdeaEdited) -> None:
    """Work of the idea's former writer that failed is owed again, to the new one."""
    known = b.peek("ideas").get(ev.idea)
    if known is not None and known.status is IdeaStatus.SELECTED:
        work = WorkKey(WorkKind.IMPLEMENT, (ev.idea,))
        for table in ("broken", "called_off"):
            if work in b.peek(table):
                del b.table(table)[work]
    b.idea(ev.idea, text=ev.text, parent=ev.parent, branch=ev.branch, writer=ev.writer, edited=True)


def _reordered(b: _Batch, entry: e.Entry, ev: e.IdeasReordered) -> None:
    for place, idea in enumerate(ev.ideas):
        b.idea(idea, rank=place - len(ev.ideas))


def _attached(b: _Batch, entry: e.Entry, ev: e.KernelAttached) -> None:
    known = b.peek("ideas").get(ev.idea)
    if known is not None:
        b.idea(ev.idea, materials=tuple(dict.fromkeys((*known.materials, ev.kernel))))


def _removed(b: _Batch, entry: e.Entry, ev: e.KernelDetached) -> None:
    known = b.peek("ideas").get(ev.idea)
    if known is not None:
        b.idea(ev.idea, materials=tuple(k for k in known.materials if k != ev.kernel))


def _selected(b: _Batch, entry: e.Entry, ev: e.IdeaSelected) -> None:
    known = b.peek("ideas").get(ev.idea)
    if known is not None:
        home = known.round if ev.into is None else ev.into
        branch = known.branch if ev.copies is None else ev.copies
        b.idea(ev.idea, status=IdeaStatus.SELECTED, advice=ev.advice, round=home, branch=branch)


def _rejected(b: _Batch, entry: e.Entry, ev: e.IdeaRejected) -> None:
    b.idea(ev.idea, status=IdeaStatus.REJECTED, reason=ev.reason)


def _parked(b: _Batch, entry: e.Entry, ev: e.IdeaParked) -> None:
    b.idea(ev.idea, status=IdeaStatus.PARKED, reason=ev.why, advice=ev.advice)


def _drafted(b: _Batch, entry: e.Entry, ev: e.KernelDrafted) -> None:
    kernel = Kernel(
        ev.kernel, ev.idea, ev.parent, ev.round, ev.author, ev.name, ev.dialect, ev.contract, ev.source,
        MappingProxyType(dict(ev.tunables)), ev.seed, epoch=b.get("epoch"), form=ev.form,
        members=ev.members,
    )  # fmt: skip
    b.add("kernels", ev.kernel, kernel)
    if ev.parent is not None and (parent := b.peek("kernels").get(ev.parent)) is not None:
        b.kernel(ev.parent, children=(*parent.children, ev.kernel))
    if ev.idea in b.peek("ideas"):
        b.idea(ev.idea, kernels=(*b.peek("ideas")[ev.idea].kernels, ev.kernel))


def _implemented(b: _Batch, entry: e.Entry, ev: e.IdeaImplemented) -> None:
    b.finish(WorkKey(WorkKind.IMPLEMENT, (ev.idea,)))
    b.idea(ev.idea, implemented=True, note=ev.note)


def _attempt_failed(b: _Batch, entry: e.Entry, ev: e.AttemptFailed) -> None:
    _finish_kernel(b, ev.kernel)
    _count_verdict(b, entry, ev.worker)
    b.kernel(
        ev.kernel, stage=Stage.REPAIR, failure=ev.failure, verification=None, measurement=None,
        seconds=_spent(b, ev.kernel, ev.seconds),
    )  # fmt: skip


def _revised(b: _Batch, entry: e.Entry, ev: e.AttemptRevised) -> None:
    b.finish(WorkKey(WorkKind.REPAIR, (ev.kernel,), ev.attempt - 1))
    known = b.peek("kernels").get(ev.kernel)
    if known is not None:
        earlier = (*known.earlier, known.source)
        failures = (*known.failures, *((known.failure,) if known.failure is not None else ()))
        b.kernel(
            ev.kernel,
            source=ev.source,
            form="",
            attempt=ev.attempt,
            earlier=earlier,
            failures=failures,
            stage=Stage.BUILD,
            failure=None,
            profile=None,
        )


def _spent(b: _Batch, kernel: str, seconds: float) -> float:
    known = b.peek("kernels").get(kernel)
    return (known.seconds if known else 0.0) + seconds


def _finish_kernel(b: _Batch, kernel: str) -> None:
    known = b.peek("kernels").get(kernel)
    if known is not None:
        own = (work for name in _Batch.WORK for work in b.peek(name) if work.subjects == (kernel,))
        if works := {work for work in own if work.kind in _KERNEL_WORK and work.number == known.attempt}:
            b.finish(*works)
        b.drop_races(kernel)


def _built(b: _Batch, entry: e.Entry, ev: e.KernelBuilt) -> None:
    _finish_kernel(b, ev.kernel)
    known = b.peek("kernels").get(ev.kernel)
    read_before = known.instructions if known is not None and known.artefact == ev.artefact else _empty()
    b.kernel(
        ev.kernel, stage=Stage.VERIFY, artefact=ev.artefact, resources=ev.resources, build_log=ev.log,
        instructions=MappingProxyType(dict(ev.instructions)) if ev.instructions else read_before,
        seconds=_spent(b, ev.kernel, ev.seconds), machine_code=ev.machine_code,
    )  # fmt: skip


def _matched(b: _Batch, entry: e.Entry, ev: e.KernelMatched) -> None:
    _finish_kernel(b, ev.kernel)
    twin = b.peek("kernels").get(ev.same_as)
    if twin is None or twin.measurement is None:
        return
    conditions = (*twin.measurement.conditions, f"same machine code as {ev.same_as}")
    b.kernel(
        ev.kernel, stage=Stage.MEASURED, verification=twin.verification,
        measurement=replace(twin.measurement, conditions=conditions), epoch=b.get("epoch"), same_as=ev.same_as,
    )  # fmt: skip


def _verified(b: _Batch, entry: e.Entry, ev: e.KernelVerified) -> None:
    _finish_kernel(b, ev.kernel)
    b.kernel(
        ev.kernel, stage=Stage.MEASURE, verification=ev.verification, measurement=ev.screen,
        epoch=b.get("epoch"), seconds=_spent(b, ev.kernel, ev.seconds), worker=ev.worker,
    )  # fmt: skip


def _measured(b: _Batch, entry: e.Entry, ev: e.KernelMeasured) -> None:
    _finish_kernel(b, ev.kernel)
    _count_verdict(b, entry, ev.worker)
    b.kernel(
        ev.kernel, stage=Stage.MEASURED, measurement=ev.measurement, epoch=b.get("epoch"),
        seconds=_spent(b, ev.kernel, ev.seconds), worker=ev.worker,
    )  # fmt: skip


def _failed(b: _Batch, entry: e.Entry, ev: e.KernelFailed) -> None:
    _finish_kernel(b, ev.kernel)
    _count_verdict(b, entry, ev.worker)
    b.kernel(ev.kernel, stage=Stage.FAILED, failure=ev.failure, seconds=_spent(b, ev.kernel, ev.seconds))


def _quarantined(b: _Batch, entry: e.Entry, ev: e.KernelQuarantined) -> None:
    _finish_kernel(b, ev.kernel)
    _count_verdict(b, entry, ev.worker)
    known = b.peek("kernels").get(ev.kernel)
    if known is not None:
        b.kernel(
            ev.kernel, stage=Stage.QUARANTINED, evidence=ev.evidence, verification=ev.verification or known.verification,
            measurement=ev.measurement or known.measurement, epoch=b.get("epoch"), seconds=_spent(b, ev.kernel, ev.seconds),
            worker=ev.worker or known.worker,
        )  # fmt: skip


def _accepted(b: _Batch, entry: e.Entry, ev: e.KernelAccepted) -> None:
    b.kernel(ev.kernel, stage=Stage.MEASURED, accepted=ev.note)


def _sanitized(b: _Batch, entry: e.Entry, ev: e.KernelSanitized) -> None:
    _finish_kernel(b, ev.kernel)
    b.kernel(
        ev.kernel, sanitizing=Sanitizing(ev.attempt, ev.tools, ev.findings, ev.note, ev.log),
        seconds=_spent(b, ev.kernel, ev.seconds),
    )  # fmt: skip


def _profiled(b: _Batch, entry: e.Entry, ev: e.KernelProfiled) -> None:
    b.finish(WorkKey(WorkKind.PROFILE, (ev.kernel,), ev.profile.attempt))
    known = b.peek("kernels").get(ev.kernel)
    if known is None or known.attempt != ev.profile.attempt:
        return
    if ev.profile.tool or known.profile is None or not known.profile.tool:
        b.kernel(ev.kernel, profile=ev.profile)


def _cancelled(b: _Batch, entry: e.Entry, ev: e.KernelCancelled) -> None:
    _finish_kernel(b, ev.kernel)
    b.kernel(ev.kernel, stage=Stage.CANCELLED, reason=ev.reason)


def _kernel_reopened(b: _Batch, entry: e.Entry, ev: e.KernelReopened) -> None:
    known = b.peek("kernels").get(ev.kernel)
    if known is not None:
        b.kernel(
            ev.kernel, stage=Stage.BUILD, failure=None, verification=None, measurement=None, reason=ev.reason,
            again=known.again + 1, evidence=(), accepted="", sanitizing=None, same_as="",
        )  # fmt: skip
        b.drop_races(ev.kernel)


def _raced(b: _Batch, entry: e.Entry, ev: e.KernelRaced) -> None:
    _count_verdict(b, entry, ev.worker)
    known = b.peek("kernels")
    b.finish(WorkKey(WorkKind.RACE, (ev.kernel, ev.against), ev.effort))
    again = tuple(known[name].again if name in known else 0 for name in (ev.kernel, ev.against))
    race = RaceRecord(
        ev.kernel, ev.against, ev.outcome, ev.ratio, ev.effort, ev.pairs, ev.samples, ev.raw, ev.note, entry.at, b.get("epoch"),
        (again[0], again[1]), ev.doubts, ev.by_workload,
    )  # fmt: skip
    both = {ev.kernel, ev.against}
    b.set(races=(*b.get("races"), race), asked=tuple(pair for pair in b.get("asked") if set(pair) != both))
    b.kernel(ev.kernel, seconds=_spent(b, ev.kernel, ev.seconds))


def _race_asked(b: _Batch, entry: e.Entry, ev: e.RaceAsked) -> None:
    b.set(asked=tuple(dict.fromkeys((*b.get("asked"), (ev.kernel, ev.against)))))


def _incumbent(b: _Batch, entry: e.Entry, ev: e.IncumbentChanged) -> None:
    if ev.over:
        b.drop_races(ev.over, asked=False)
    before = (k for k in b.get("reigns") if k != ev.kernel)
    b.set(incumbent=ev.kernel, reigns=(*before, ev.kernel), reign_began=len(b.get("races")))


def _pinned(b: _Batch, entry: e.Entry, ev: e.KernelPinned) -> None:
    b.set(pinned=tuple(dict.fromkeys((*b.get("pinned"), ev.kernel))))


def _unpinned(b: _Batch, entry: e.Entry, ev: e.KernelUnpinned) -> None:
    b.set(pinned=tuple(k for k in b.get("pinned") if k != ev.kernel))


def _pruned(b: _Batch, entry: e.Entry, ev: e.BranchPruned) -> None:
    reasons = MappingProxyType({**b.get("prune_reasons"), ev.kernel: ev.reason})
    b.set(pruned=tuple(dict.fromkeys((*b.get("pruned"), ev.kernel))), prune_reasons=reasons)


def _branch_reopened(b: _Batch, entry: e.Entry, ev: e.BranchReopened) -> None:
    b.set(pruned=tuple(k for k in b.get("pruned") if k != ev.kernel))


def _note(b: _Batch, entry: e.Entry, ev: e.NoteAdded) -> None:
    b.set(notes=(*b.get("notes"), Note(entry.at, entry.by, ev.target, ev.text)))


def _mode(b: _Batch, entry: e.Entry, ev: e.ModeChanged) -> None:
    b.set(mode=_mode_of(ev.mode))


def _limits(b: _Batch, entry: e.Entry, ev: e.LimitsChanged) -> None:
    b.set(limits=ev.limits, capped=None)


def _models(b: _Batch, entry: e.Entry, ev: e.ModelsChanged) -> None:
    b.set(models=ev.models)


def _pauses(b: _Batch, entry: e.Entry, ev: e.PausesChanged) -> None:
    b.set(pauses=ev.pauses)


def _paused(b: _Batch, entry: e.Entry, ev: e.SessionPaused) -> None:
    b.set(paused=ev.reason)


def _continued(b: _Batch, entry: e.Entry, ev: e.SessionContinued) -> None:
    b.set(paused=None, pauses=ev.pauses)


def _call_started(b: _Batch, entry: e.Entry, ev: e.CallStarted) -> None:
    b.table("calls")[ev.call] = ModelCall(
        ev.call, WorkKey.parse(ev.work), ev.role, ev.model, ev.prompt, ev.ceiling, entry.at, max_output=ev.max_output,
    )  # fmt: skip


def _call_answered(b: _Batch, entry: e.Entry, ev: e.CallAnswered) -> None:
    calls = b.table("calls")
    if ev.call in calls:
        calls[ev.call] = replace(
            calls[ev.call], status=CallStatus.ANSWERED, reply=ev.reply, usage=calls[ev.call].usage + ev.usage, usd=ev.usd,
            finish=ev.finish, seconds=ev.seconds, recalled=ev.recalled, estimated=ev.estimated,
        )  # fmt: skip


def _call_failed(b: _Batch, entry: e.Entry, ev: e.CallFailed) -> None:
    calls = b.table("calls")
    if ev.call in calls:
        known = calls[ev.call]
        usd = known.usd if ev.usd is None else (known.usd or 0.0) + ev.usd
        calls[ev.call] = replace(
            known, status=CallStatus.FAILED, reason=ev.reason, usage=known.usage + ev.usage, usd=usd,
            cancelled=known.cancelled or ev.cancelled, estimated=known.estimated or ev.estimated,
        )  # fmt: skip


def _budget_reached(b: _Batch, entry: e.Entry, ev: e.BudgetReached) -> None:
    b.finish(WorkKey.parse(ev.work))
    b.set(capped=ev.reason)


def _instructions(b: _Batch, entry: e.Entry, ev: e.InstructionsChanged) -> None:
    b.set(instructions=ev.text)


def _work_started(b: _Batch, entry: e.Entry, ev: e.WorkStarted) -> None:
    started, key = b.table("started"), WorkKey.parse(ev.work)
    started[key] = started.get(key, 0) + 1


def _work_failed(b: _Batch, entry: e.Entry, ev: e.WorkFailed) -> None:
    key = WorkKey.parse(ev.work)
    b.finish(key)
    b.table("broken")[key] = ev.reason
    if ev.called_off:
        b.table("called_off")[key] = ev.reason
        for call in [call for call in b.peek("calls").values() if call.work == key and call.cancelled]:
            b.table("calls")[call.id] = replace(call, cancelled=False)


_KEPT_VERDICTS = 32
_KEPT_ASSIGNED = 8


def _worker_joined(b: _Batch, entry: e.Entry, ev: e.WorkerJoined) -> None:
    known: WorkerRecord | None = b.get("workers").get(ev.name)
    again = replace(known, device=ev.device, notes=ev.notes, lost="", assigned=()) if known is not None else None
    _set_worker(b, again or WorkerRecord(ev.name, ev.device, ev.host, entry.at, ev.notes))


def _worker_prepared(b: _Batch, entry: e.Entry, ev: e.WorkerPrepared) -> None:
    if known := b.get("workers").get(ev.name):
        _set_worker(b, replace(known, baselines_us=MappingProxyType(dict(ev.baselines_us))))


def _work_assigned(b: _Batch, entry: e.Entry, ev: e.WorkAssigned) -> None:
    if known := b.get("workers").get(ev.to):
        assigned = (*known.assigned, WorkKey.parse(ev.work))[-_KEPT_ASSIGNED:]
        _set_worker(b, replace(known, assigned=assigned, clock_mhz=ev.clock_mhz, celsius=ev.celsius))


def _work_requeued(b: _Batch, entry: e.Entry, ev: e.WorkRequeued) -> None:
    if known := b.get("workers").get(ev.lost):
        key = WorkKey.parse(ev.work)
        _set_worker(b, replace(known, assigned=tuple(one for one in known.assigned if one != key)))


def _worker_lost(b: _Batch, entry: e.Entry, ev: e.WorkerLost) -> None:
    if known := b.get("workers").get(ev.name):
        _set_worker(b, replace(known, lost=ev.reason, losses=known.losses + 1, assigned=()))


def _count_verdict(b: _Batch, entry: e.Entry, worker: str) -> None:
    """A verdict or a race of this worker has ended."""
    if known := b.get("workers").get(worker):
        recent = (*known.recent, entry.at)[-_KEPT_VERDICTS:]
        _set_worker(b, replace(known, verdicts=known.verdicts + 1, recent=recent))


def _set_worker(b: _Batch, record: WorkerRecord) -> None:
    b.set(workers=MappingProxyType({**b.get("workers"), record.name: record}))


def _command_answered(b: _Batch, entry: e.Entry, ev: e.CommandAnswered) -> None:
    """Changes nothing: the command's own events precede it."""


def _unknown(b: _Batch, entry: e.Entry, ev: e.UnknownEvent) -> None:
    b.set(unknown=(*b.get("unknown"), ev.kind))


_FOLDS: Mapping[type, Callable[[_Batch, e.Entry, Any], None]] = {
    e.SessionOpened: _opened,
    e.SessionResumed: _resumed,
    e.SessionPrepared: _prepared,
    e.SessionClosed: _closed,
    e.SessionReopened: _reopened,
    e.RoundOpened: _round_opened,
    e.RoundClosed: _round_closed,
    e.IdeasProposed: _proposed,
    e.IdeaEdited: _edited,
    e.IdeasReordered: _reordered,
    e.KernelAttached: _attached,
    e.KernelDetached: _removed,
    e.IdeaSelected: _selected,
    e.IdeaRejected: _rejected,
    e.IdeaParked: _parked,
    e.KernelDrafted: _drafted,
    e.IdeaImplemented: _implemented,
    e.AttemptFailed: _attempt_failed,
    e.AttemptRevised: _revised,
    e.KernelBuilt: _built,
    e.KernelMatched: _matched,
    e.KernelVerified: _verified,
    e.KernelMeasured: _measured,
    e.KernelFailed: _failed,
    e.KernelQuarantined: _quarantined,
    e.KernelAccepted: _accepted,
    e.KernelSanitized: _sanitized,
    e.KernelProfiled: _profiled,
    e.KernelRaced: _raced,
    e.RaceAsked: _race_asked,
    e.IncumbentChanged: _incumbent,
    e.KernelCancelled: _cancelled,
    e.KernelReopened: _kernel_reopened,
    e.KernelPinned: _pinned,
    e.KernelUnpinned: _unpinned,
    e.BranchPruned: _pruned,
    e.BranchReopened: _branch_reopened,
    e.NoteAdded: _note,
    e.ModeChanged: _mode,
    e.LimitsChanged: _limits,
    e.InstructionsChanged: _instructions,
    e.ModelsChanged: _models,
    e.PausesChanged: _pauses,
    e.SessionPaused: _paused,
    e.SessionContinued: _continued,
    e.CallStarted: _call_started,
    e.CallAnswered: _call_answered,
    e.CallFailed: _call_failed,
    e.BudgetReached: _budget_reached,
    e.WorkStarted: _work_started,
    e.WorkFailed: _work_failed,
    e.WorkerJoined: _worker_joined,
    e.WorkerPrepared: _worker_prepared,
    e.WorkAssigned: _work_assigned,
    e.WorkRequeued: _work_requeued,
    e.WorkerLost: _worker_lost,
    e.CommandAnswered: _command_answered,
    e.DecisionUndone: _undone,
    e.UnknownEvent: _unknown,
}
