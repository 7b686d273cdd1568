"""A session in motion, and the only writer of its journal.

Everything that happens goes through ``_append``: commands through ``rules.decide``, results through ``rules.record``, what
the rules owe through ``rules.automatic``. Which work starts is ``scheduler``'s to say, doing it ``perform``'s. The event
loop's single thread is what makes the writer single within the process; the journal's lock does so between processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, rules
from engine.domain import work as w
from engine.domain.errors import CommandRejected, JournalError
from engine.domain.model import Blob
from engine.domain.state import CallStatus, SessionState, advance
from engine.ideas.source import IdeaSource
from engine.journal.journal import Journal
from engine.session import scheduler
from engine.session.calls import WorkCalls
from engine.session.hands import Hands
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome, RoundEnded, SessionEnded, Until
from engine.session.patience import Patience
from engine.session.perform import Ceilings, Effects, perform
from engine.session.ports import Bench, Clock
from engine.session.source import Batch, Capability, Progress, Pulse

_LOG = logging.getLogger(__name__)
_WORDS_KEPT = 256
_AUTOMATIC_BOUND = 10_000
_MOST_BUILDS = 8

ENGINE = "engine"
ENGINEER = "engineer"


@dataclass(frozen=True, slots=True)
class Ports:
    """What a live session is given: who tries kernels, who has ideas, and the time."""

    bench: Bench
    ideas: IdeaSource
    clock: Clock = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ceilings: Ceilings = field(default_factory=Ceilings)
    lanes: scheduler.Lanes | None = None
    """``None``: as the session's device suggests."""


class LiveSession:
    """A ``SessionSource`` that works. Make one with ``create`` or ``resume``; leave it with ``close`` or as a context."""

    capabilities = frozenset({Capability.SUBMIT})

    def __init__(self, folder: Path, journal: Journal, entries: Sequence[e.Entry], ports: Ports) -> None:
        """Use ``create`` or ``resume``: this is what they share."""
        self.folder = folder
        self._journal = journal
        self._entries = list(entries)
        self._state = advance(SessionState(), entries)
        self._ports = ports
        self._effects = Effects(ports.bench, ports.ideas, journal.blobs, ports.ceilings)
        self._patience = Patience(ports.clock)
        self._wake = asyncio.Event()
        self._hands = Hands(self._wake.set)
        self._begun: set[str] = set()
        self._by_hand: set[str] = set()
        self._pulse = Pulse()
        self._words: deque[Progress] = deque(maxlen=_WORDS_KEPT)
        self._words_said = 0
        self._prepare_again = False
        self._runner: asyncio.Task[object] | None = None
        self._closed = False
        self._ended = False

    @classmethod
    def create(cls, folder: Path, opened: e.SessionOpened, ports: Ports) -> Self:
        """Begin a session in ``folder``, which is made if it is not there.

        Raises:
            JournalError: the folder holds a session already, or cannot be written.
        """
        return cls._begin(folder, Journal.create(folder), (), ports, (opened,), ENGINEER)

    @classmethod
    def resume(cls, folder: Path, ports: Ports, *, prepare_again: bool = False) -> Self:
        """Take a session up where it stands; what was under way when its last process died is owed again.

        ``prepare_again``: describe the device and measure the baselines anew before anything else, because the session
        came to another device or other software.

        Raises:
            JournalError: no session there, another process is writing it, or it cannot be read or written.
        """
        journal, entries, repaired = Journal.open_for_append(folder)
        state = advance(SessionState(), entries)
        live = cls._begin(folder, journal, entries, ports, rules.resumed(state, repaired), ENGINE)
        live._prepare_again = prepare_again and state.preparation is not None
        return live

    @classmethod
    def _begin(
        cls,
        folder: Path,
        journal: Journal,
        entries: Sequence[e.Entry],
        ports: Ports,
        first: Sequence[e.Event],
        by: str,
    ) -> Self:
        """The session with its first events recorded, or the journal let go."""
        try:
            live = cls(folder, journal, entries, ports)
            live._append(first, by)
        except BaseException:
            journal.close()
            raise
        return live

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def in_hand(self) -> frozenset[str]:
        """Keys of the work under way."""
        return self._hands.active

    @property
    def deadline(self) -> float | None:
        """When the policy decides in the engineer's place (seconds since the epoch), in mode ``ask:SECONDS``."""
        return None if self._prepare_again else self._patience.deadline(self._state)

    def store_blob(self, data: bytes) -> Blob:
        """Keep a payload beside the journal, e.g. the source of a kernel to be seeded."""
        return self._journal.blobs.put(data)

    async def submit(self, command: c.Command) -> None:
        """Ask for something by hand.

        Raises:
            CommandRejected: the rules do not allow it in this state.
            JournalError: it could not be recorded, and so has not happened.
        """
        if self._closed:
            raise CommandRejected("this session is no longer open here: open it again")
        self._append(rules.decide(self._state, command), ENGINEER)
        self._patience.touch()
        self._wake.set()

    async def retry(self) -> None:
        """Owe again what the engine failed at; the next ``run`` takes it up."""
        self._append((e.SessionResumed(()),), ENGINEER)
        self._wake.set()

    async def run(self, until: Until = Until.CLOSED) -> Outcome:
        """Search until one of the outcomes holds. What is under way when this is cancelled is dropped, and owed again.

        Raises:
            JournalError: the session can no longer be recorded.
        """
        if self._runner is not None or self._closed:
            raise RuntimeError("this session is closed or already running: run it once at a time")
        self._runner = asyncio.current_task()
        enough = _rounds_done(self._state) + 1 if until is Until.ROUND else None
        try:
            while True:
                self._wake.clear()
                for work, result in self._hands.collect():
                    self._record(work, result)
                at_boundary = self._settle(enough)
                self._start_owed()
                outcome = None if self._hands.keys - self._by_hand else self._outcome(until, at_boundary)
                if outcome is not None:
                    return outcome
                await self._rest()
        finally:
            try:
                await self._hands.drop_all()
            finally:
                self._runner = None

    async def close(self) -> None:
        """End this process's part: a run is cancelled, the bench closed, the journal synced and let go."""
        if self._closed:
            return
        self._closed = True
        if self._runner is not None and self._runner is not asyncio.current_task():
            self._runner.cancel()
            await asyncio.wait({self._runner})
        try:
            await self._hands.drop_all()
            self._record_interruption()
            try:
                await self._ports.ideas.close()
            finally:
                await self._ports.bench.close()
        finally:
            self._ended = True
            self._pulse.beat()
            self._journal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def record(self, events: Sequence[e.Event]) -> None:
        """See ``engine.session.calls.Recorder``."""
        self._append(events, ENGINE)

    async def until(self, holds: Callable[[SessionState], bool], work: str) -> None:
        """See ``engine.session.calls.Recorder``."""
        self._by_hand.add(work)
        self._wake.set()
        try:
            await self.once(holds)
        finally:
            self._by_hand.discard(work)

    async def once(self, holds: Callable[[SessionState], bool]) -> None:
        """See ``engine.session.calls.Recorder``."""
        while not holds(self._state):
            await self._pulse.next()

    async def batches(self) -> AsyncIterator[Batch]:
        """See ``SessionSource``."""
        seen = 0
        while True:
            if seen < len(self._entries):
                news = tuple(self._entries[seen:])
                seen += len(news)
                yield Batch(news, self._state)
            elif self._ended:
                return
            else:
                await self._pulse.next()

    async def progress(self) -> AsyncIterator[Progress]:
        """See ``SessionSource``."""
        heard = self._words_said
        while True:
            missed = min(self._words_said - heard, len(self._words))
            news = tuple(self._words)[len(self._words) - missed :]
            heard = self._words_said
            for word in news:
                yield word
            if heard == self._words_said:
                if self._ended:
                    return
                await self._pulse.next()

    def _append(self, events: Sequence[e.Event], by: str) -> None:
        """Record, then fold: what could not be recorded has not happened."""
        if not events:
            return
        entries = self._journal.append(tuple(events), by, self._ports.clock)
        self._entries.extend(entries)
        self._state = advance(self._state, entries)
        if any(isinstance(event, e.RoundClosed | e.SessionClosed) for event in events):
            self._journal.sync()
        self._hands.abandon(self._hands.keys - {work.key for work in self._wanted()})
        self._pulse.beat()

    def _record_interruption(self) -> None:
        """Work dropped in good order has not taken a process down: without this it would look so after the next start."""
        interrupted = [key for key in self._state.started if key in self._begun]
        try:
            self._append([e.WorkFailed(key, "interrupted") for key in interrupted], ENGINE)
        except JournalError as error:
            _LOG.warning("the interruption of %s was not recorded: %s", ", ".join(interrupted), error)

    def _record(self, work: w.Work, result: w.Result) -> None:
        if isinstance(work, w.Prepare) and isinstance(result, w.Prepared):
            self._prepare_again = False
        self._append(rules.record(self._state, work, result), ENGINE)

    def _settle(self, enough: int | None) -> bool:
        """Let the rules move until they are quiet; when ``enough`` rounds are done no further one is opened.

        Returns whether it was stopped so.
        """
        if self._prepare_again:
            return False
        self._decide_late()
        for _ in range(_AUTOMATIC_BOUND):
            events = rules.automatic(self._state)
            if not events:
                return False
            opens = any(isinstance(event, e.RoundOpened) for event in events)
            if opens and enough is not None and _rounds_done(self._state) >= enough:
                return True
            self._append(events, ENGINE)
        raise RuntimeError("the rules do not come to rest: this is a fault of the program")

    def _decide_late(self) -> None:
        deadline = self.deadline
        if deadline is not None and self._ports.clock() >= deadline:
            self._append(rules.decide(self._state, c.SelectIdeas()), ENGINE)

    def _wanted(self) -> tuple[w.Work, ...]:
        return self._preparing() if self._prepare_again else rules.wanted(self._state)

    def _owed(self) -> tuple[w.Work, ...]:
        return self._preparing() if self._prepare_again else rules.next_work(self._state)

    def _preparing(self) -> tuple[w.Work, ...]:
        return () if self._state.closed is not None or "prepare" in self._state.broken else (w.Prepare(),)

    def _start_owed(self) -> None:
        shut = {scheduler.lane(key) for key in self._state.broken if key not in self._state.called_off}
        for work in scheduler.choose(self._owed(), self._hands.keys, self._lanes(), shut):
            if work.key not in self._begun or work.key not in self._state.started:
                self._begun.add(work.key)
                self._append((e.WorkStarted(work.key),), ENGINE)
            say = partial(self._say, work.key)
            calls = WorkCalls(work.key, self, self._journal.blobs, say)
            self._hands.start(work, perform(work, self._state, self._effects, calls, say))

    def _lanes(self) -> scheduler.Lanes:
        if self._ports.lanes is not None:
            return self._ports.lanes
        device = self._state.device
        cores = os.cpu_count() or 1
        return scheduler.Lanes(builds=min(cores, _MOST_BUILDS), device_builds=device is None or device.kind == "cpu")

    def _say(self, work: str, text: str) -> None:
        self._words.append(Progress(work, text))
        self._words_said += 1
        self._pulse.beat()

    def _outcome(self, until: Until, at_boundary: bool) -> Outcome | None:
        """What holds while nothing is under way; ``None`` means: wait."""
        state = self._state
        if state.closed is not None:
            return SessionEnded(state.closed)
        if at_boundary:
            return RoundEnded(queries.last_round(state))
        if state.broken:
            return EngineStopped(dict(state.broken))
        if until is Until.CLOSED or self.deadline is not None:
            return None
        prompts = tuple(c.id for c in state.calls.values() if c.work in self._by_hand and c.status is CallStatus.OPEN)
        return AwaitingEngineer(tuple(idea.id for idea in queries.pending_ideas(state)), prompts, state.paused)

    async def _rest(self) -> None:
        """Until work ends, someone asks for something, or the policy's time has come."""
        deadline = self.deadline
        if deadline is None:
            await self._wake.wait()
            return
        waits = [
            asyncio.ensure_future(self._wake.wait()),
            asyncio.ensure_future(self._ports.sleep(max(0.0, deadline - self._ports.clock()))),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _rounds_done(state: SessionState) -> int:
    return sum(1 for r in state.rounds.values() if r.closed and r.number > 0)
