"""One budget over several problems: a session for each, and every turn goes where the next kernels are worth most.

Sessions are opened one after the other, so that only one judge holds the device. What was spent is read from their journals:
the same call continues where an earlier one stopped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.domain import commands as c
from engine.domain import queries, stopping
from engine.domain.errors import EspalierError
from engine.domain.figure_text import exact
from engine.domain.model import Problem
from engine.domain.settings import Limits
from engine.domain.state import SessionState
from engine.domain.strategy.worth import Standing, next_turn, worth
from engine.journal import store, user_folders
from engine.session.factory import NewSession, SavedSession, begin, resume
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome
from engine.session.ports import Say

Begin = Callable[[NewSession, Say], Awaitable[LiveSession]]
Resume = Callable[[SavedSession, Say], Awaitable[LiveSession]]
RunLive = Callable[[LiveSession, int], Awaitable[Outcome]]
"""Runs an open session to its end, prints entries from this sequence number on, and closes the session."""


@dataclass(frozen=True, slots=True)
class SetBudget:
    """What all sessions may spend together, over all calls; ``None`` is no limit."""

    kernels: int
    seconds: float | None = None
    tokens: int | None = None
    usd: float | None = None


@dataclass(slots=True)
class Member:
    """One problem with its session."""

    request: NewSession
    folder: Path
    state: SessionState = field(default_factory=SessionState)
    """As it was after its last turn."""
    stopped: str = ""
    """Why it gets no more kernels in this call: it failed, or awaits someone."""
    live: LiveSession | None = None
    """Its session while its turn lasts."""
    _worth: tuple[SessionState, float] | None = None

    @property
    def name(self) -> str:
        return self.request.problem.name

    @property
    def now(self) -> SessionState:
        """The state at this moment, in the middle of a turn too."""
        return self.live.state if self.live is not None else self.state

    def worth(self) -> float:
        """What its next kernel is worth after its last turn; computed once for each state."""
        if self._worth is None or self._worth[0] is not self.state:
            self._worth = (self.state, worth(self.state))
        return self._worth[1]


def member_folders(problems: Sequence[Problem], root: Path | None, settings: str) -> list[Path]:
    """Where the sessions are: ``root/PROBLEM``, else folders in the default place whose names follow from the problems and
    ``settings``, so that the same call finds them again."""
    tag = hashlib.sha256("\0".join([settings, *sorted(one.digest for one in problems)]).encode()).hexdigest()[:8]
    found: list[Path] = []
    for problem in problems:
        slug = re.sub(r"[^a-z0-9_]+", "-", problem.name.lower()).strip("-") or "problem"
        folder = root / slug if root is not None else user_folders.sessions_root() / f"{slug}-set-{tag}"
        number = 2
        while folder in found:
            folder = folder.with_name(f"{folder.name}-{number}")
            number += 1
        found.append(folder)
    return found


def restored(request: NewSession, folder: Path) -> Member:
    """The member with what its session has recorded so far. Raises JournalError."""
    state = store.state_of(folder) if store.is_session(folder) else SessionState()
    return Member(replace(request, folder=folder), folder, state)


@dataclass(slots=True)
class ProblemSet:
    """The members and their budget. ``share``: kernels of one turn."""

    members: Sequence[Member]
    budget: SetBudget
    share: int
    begin: Begin = begin
    resume: Resume = resume
    turns: int = 0
    latest: Sequence[Standing] = field(init=False)
    """The standings before the turn under way."""

    def __post_init__(self) -> None:
        self.latest = self.standings()

    def spent(self) -> SetBudget:
        """What all sessions have spent so far."""
        states = [member.now for member in self.members]
        return SetBudget(
            sum(len(state.kernels) for state in states), sum(state.active_seconds for state in states),
            sum(queries.total_usage(state).total for state in states), sum(queries.total_usd(state)[0] for state in states),
        )  # fmt: skip

    def over(self) -> str:
        """Which part of the budget is spent; empty if none is."""
        spent, budget = self.spent(), self.budget
        if spent.kernels >= budget.kernels:
            return f"{spent.kernels} of {budget.kernels} kernels tried"
        pairs = {"seconds": (spent.seconds, budget.seconds), "tokens": (spent.tokens, budget.tokens)}
        for unit, (used, most) in {**pairs, "dollars": (spent.usd, budget.usd)}.items():
            if used is not None and most is not None and used >= most:
                return f"{exact(round(used, 3))} of {exact(most)} {unit} spent"
        return ""

    def limits(self, member: Member) -> Limits:
        """The limits of a member's next turn: one share, and no more than the budget has left."""
        spent, budget, state = self.spent(), self.budget, member.state
        first = not state.kernels
        unspent = budget.kernels - spent.kernels
        room = min(self.share + first, unspent)
        tokens, usd = queries.total_usage(state).total, queries.total_usd(state)[0]
        return replace(
            member.request.settings.limits,
            kernels=len(state.kernels) + max(0, room),
            seconds=_left(budget.seconds, spent.seconds, state.active_seconds),
            tokens=None if budget.tokens is None else budget.tokens - (spent.tokens or 0) + tokens,
            usd=_left(budget.usd, spent.usd, usd),
            raised_later=room < unspent,
        )

    def standings(self) -> list[Standing]:
        return [Standing(m.name, len(m.state.kernels), m.worth(), self.ended(m)) for m in self.members]

    def ended(self, member: Member) -> str:
        """Why a member gets no more kernels: it stopped, or its session ended for another reason than its last share."""
        state = member.state
        if member.stopped or state.closed is None:
            return member.stopped
        if state.closed not in (stopping.stop_reason(state), state.capped):
            return state.closed
        roomy = replace(self.limits(member), kernels=None)
        return stopping.stop_reason(replace(state, limits=roomy, capped=None)) or ""

    async def run(self, run_live: RunLive, say: Say, turn_over: Callable[[Member], None] = lambda _: None) -> str:
        """Spend the budget; returns why it stopped. If this is cancelled, the open session stays resumable."""
        while True:
            if over := self.over():
                return over
            self.latest = self.standings()
            turn = next_turn(self.latest, self.turns)
            if turn is None:
                return "no search can go on"
            member = self.members[turn.position]
            say(f"{member.name} is next: {turn.reason}")
            self.turns += 1
            before = len(member.state.kernels)
            try:
                await self._take_turn(member, run_live, say)
            except EspalierError as error:
                member.stopped = str(error)
            if len(member.state.kernels) == before and not member.stopped and member.state.closed is None:
                member.stopped = "its last turn tried no kernel"
            turn_over(member)

    async def _take_turn(self, member: Member, run_live: RunLive, say: Say) -> None:
        limits = self.limits(member)
        if member.state.opened is None:
            settings = replace(member.request.settings, limits=limits)
            live = await self.begin(replace(member.request, settings=settings), say)
            outcome = await self._run(member, live, run_live, 0)
        else:
            live = await self.resume(SavedSession(member.folder), say)
            from_seq = live.state.seq + 1
            try:
                await live.submit(c.SetLimits(limits))
            except BaseException:
                await live.close()
                raise
            outcome = await self._run(member, live, run_live, from_seq)
        match outcome:
            case AwaitingEngineer():
                member.stopped = "awaits you"
            case EngineStopped(reasons):
                member.stopped = next(iter(reasons.values()), "the engine stopped")

    async def _run(self, member: Member, live: LiveSession, run_live: RunLive, from_seq: int) -> Outcome:
        member.live = live
        try:
            return await run_live(live, from_seq)
        finally:
            member.state, member.live = live.state, None


def _left(most: float | None, spent: float | None, own: float) -> float | None:
    """A session's own limit of a common budget."""
    return None if most is None else max(0.0, most - (spent or 0.0)) + own
