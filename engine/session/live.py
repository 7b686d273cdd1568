"""Runs a session live: starts the work that is owed and passes the results to the session's writer.

``rules`` turns commands and results into events, ``scheduler`` chooses the work to start, ``perform`` does it. Everything runs
in one event loop, so appends never interleave; the journal's lock excludes other processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, rules, stopping
from engine.domain import work as w
from engine.domain.errors import CommandRejected, JournalError
from engine.domain.model import ENGINE, ENGINEER, Author, Blob, Contract, Dialect
from engine.domain.rules import adaptive
from engine.domain.state import CallStatus, SessionState
from engine.ideas.proposer import Proposer
from engine.session import scheduler
from engine.session.auto_approve import AutoApproveTimer
from engine.session.calls import WorkCalls
from engine.session.inbox import InboxReader
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome, RoundEnded, SessionEnded, Until
from engine.session.perform import Ceilings, Effects, perform
from engine.session.ports import Bench, Clock, Workers
from engine.session.source import Batch, Capability, Progress, ProgressFeed
from engine.session.task_set import TaskSet
from engine.session.writer import SessionWriter

_LOG = logging.getLogger(__name__)
_AUTOMATIC_BOUND = 10_000
_MOST_BUILDS = 8
_CONFIRMING = (w.WorkKind.SANITIZE, w.WorkKind.SUSTAIN)
"""Work on the incumbent that is begun even after the time limit."""
_INBOX_POLL = (0.01, 0.25)
"""Shortest and longest pause in seconds between two looks into the inbox."""
_INBOX_RETRY = 1.0
_TICK, _LONG_TICK, _LAST = 1.0, 5.0, 20.0
"""Seconds between two lines of a countdown: in its last seconds, and before."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a live session: a bench, a proposer, a clock and limits."""

    bench: Bench
    ideas: Proposer
    clock: Clock = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ceilings: Ceilings = field(default_factory=Ceilings)
    lanes: scheduler.Lanes | None = None
    """``None``: the defaults of the session's device."""
    steered: Callable[[SessionState], None] = lambda _: None
    """Called with the state after each command of the engineer."""
    form: Callable[[str, Dialect, Contract], str] = lambda code, dialect, contract: ""
    """Digest of the normal form of code, by which drafts that were tried before are recognised; empty where there is none."""
    workers: Workers | None = None
    """The fleet behind ``bench``, if there is one."""


class LiveSession:
    """A ``SessionSource`` that runs the search. ``close``, or leaving its context, also closes its writer and its ports."""

    capabilities = frozenset({Capability.SUBMIT})
    is_run = True

    def __init__(self, writer: SessionWriter, ports: Ports, *, prepare_again: bool = False) -> None:
        """``prepare_again``: first describe the device and measure the baselines again, because the session moved to another
        device or other software, or because that was asked for."""
        self._writer = writer
        self._ports = ports
        self._effects = Effects(ports.bench, ports.ideas, writer.blobs, ports.ceilings, writer.folder, ports.form)
        self._timer = AutoApproveTimer(ports.clock)
        self._wake = asyncio.Event()
        self._tasks = TaskSet(self._wake.set)
        self._started_here: set[w.WorkKey] = set()
        self._awaiting_engineer: set[w.WorkKey] = set()
        self._awaiting_provider: set[w.WorkKey] = set()
        self._progress = ProgressFeed()
        self._prepare_again = prepare_again and writer.state.preparation is not None
        self._run_task: asyncio.Task[object] | None = None
        self._inbox = InboxReader(writer, lambda: ports.steered(self.state))
        self._inbox_task: asyncio.Task[None] | None = None
        self._on_steered: list[Callable[[], None]] = []
        self._closed = False
        writer.subscribe(self._on_append)
        if ports.workers is not None:
            ports.workers.listen(self._hear_workers)

    @classmethod
    def create(cls, folder: Path, opened: e.SessionOpened, ports: Ports) -> Self:
        """Create a session in ``folder``. Raises like ``SessionWriter.create``."""
        return cls(SessionWriter.create(folder, opened, ports.clock), ports)

    @classmethod
    def resume(cls, folder: Path, ports: Ports, *, prepare_again: bool = False) -> Self:
        """Open the session in ``folder``. Raises like ``SessionWriter.open``."""
        return cls(SessionWriter.open(folder, ports.clock), ports, prepare_again=prepare_again)

    @property
    def folder(self) -> Path:
        return self._writer.folder

    @property
    def state(self) -> SessionState:
        return self._writer.state

    @property
    def in_hand(self) -> frozenset[w.WorkKey]:
        """Keys of the running work."""
        return self._tasks.active

    @property
    def deadline(self) -> float | None:
        """When the policy approves the pending ideas, in seconds since the epoch; only in mode ``ask:SECONDS``."""
        return None if self._prepare_again else self._timer.deadline(self.state)

    def store_blob(self, data: bytes) -> Blob:
        """Store a payload as a blob, e.g. the code of a kernel to seed."""
        return self._writer.store_blob(data)

    def on_steered(self, call: Callable[[], None]) -> None:
        """Call this after every command, submitted here or by another process."""
        self._on_steered.append(call)

    async def submit(self, command: c.Command, by: Author = ENGINEER) -> tuple[e.Entry, ...]:
        """Record the events of a command and return their entries.

        Raises:
            CommandRejected: the rules do not allow it in this state.
            JournalError: recording failed; the command has no effect.
        """
        if self._closed:
            raise CommandRejected("this session is closed here: open it again")
        entries = self._writer.submit(command, by)
        if by.is_engineer:
            self._ports.steered(self.state)
        return entries

    async def retry(self, by: Author = ENGINEER) -> None:
        """Make failed work owed again; the next ``run`` starts it.

        Raises JournalError, also where no work failed: a search that cannot be recorded would stop again.
        """
        failed = tuple(str(key) for key in {**self.state.broken, **self.state.called_off})
        self._writer.append((e.WorkRetried(failed),), by)

    async def run(self, until: Until = Until.CLOSED) -> Outcome:
        """Search until an outcome holds. If this is cancelled, running work is abandoned and stays owed.

        Raises:
            JournalError: recording failed.
        """
        if self._run_task is not None or self._closed:
            raise RuntimeError("this session is closed or already running")
        self._run_task = asyncio.current_task()
        if self._inbox_task is None:
            self._inbox_task = asyncio.create_task(self._serve_inbox())
        enough = _closed_rounds(self.state) + 1 if until is Until.ROUND else None
        try:
            while True:
                self._wake.clear()
                for work, result in self._tasks.collect():
                    self._record_result(work, result)
                at_boundary = self._settle(enough)
                self._start_owed()
                outcome = None if self._tasks.keys - self._awaiting_engineer else self._outcome(until, at_boundary)
                if outcome is not None:
                    if self._inbox.take():
                        continue
                    return outcome
                await self._rest()
        finally:
            try:
                await self._tasks.drop_all()
            finally:
                self._run_task = None

    async def close(self) -> None:
        """Cancel a run, then close the ports and the writer."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as then:  # in reverse order, also if a step is cancelled or fails
            then.callback(self._writer.close)
            then.callback(self._progress.close)
            then.push_async_callback(self._ports.bench.close)
            then.push_async_callback(self._ports.ideas.close)
            if self._inbox_task is not None:
                self._inbox_task.cancel()
            if self._run_task is not None and self._run_task is not asyncio.current_task():
                self._run_task.cancel()
                await asyncio.wait({self._run_task})
            await self._tasks.drop_all()
            self._record_interruption()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def record(self, events: Sequence[e.Event]) -> None:
        """See ``engine.session.calls.CallRecorder``."""
        self._writer.append(events, ENGINE)

    def _hear_workers(self, events: Sequence[e.Event]) -> None:
        """Record what happened to the fleet; a worker that has come may take work."""
        self.record(events)
        self._wake.set()

    async def wait_for_engineer(self, condition: Callable[[SessionState], bool], work: w.WorkKey) -> None:
        """See ``engine.session.calls.CallRecorder``."""
        self._awaiting_engineer.add(work)
        self._wake.set()
        try:
            await self.wait_until(condition)
        finally:
            self._awaiting_engineer.discard(work)

    async def wait_for_provider(self, seconds: float, words: Callable[[float], str], work: w.WorkKey) -> None:
        """See ``engine.session.calls.CallRecorder``."""
        until = self._ports.clock() + seconds
        self._awaiting_provider.add(work)
        self._wake.set()
        lasting = True
        try:
            while (left := until - self._ports.clock()) > 0.0:
                self._progress.add(work, words(left), lasting)
                lasting = False
                await self._ports.sleep(min(left, _TICK if left <= _LAST else _LONG_TICK))
        finally:
            self._awaiting_provider.discard(work)

    async def wait_until(self, condition: Callable[[SessionState], bool]) -> None:
        """See ``engine.session.calls.CallRecorder``."""
        await self._writer.wait_until(condition)

    def batches(self) -> AsyncIterator[Batch]:
        """See ``SessionSource``."""
        return self._writer.batches()

    def progress(self) -> AsyncIterator[Progress]:
        """See ``SessionSource``."""
        return self._progress.stream()

    async def _serve_inbox(self) -> None:
        """Answer the commands of other processes until the session is closed here."""
        pause = _INBOX_POLL[1]
        while True:
            try:
                taken = self._inbox.take()
            except JournalError as error:
                _LOG.warning("commands of other processes wait: %s", error)
                await asyncio.sleep(_INBOX_RETRY)
                continue
            pause = _INBOX_POLL[0] if taken else min(_INBOX_POLL[1], pause * 1.5)
            await asyncio.sleep(0 if taken else pause)

    def _on_append(self, entries: Sequence[e.Entry]) -> None:
        """Abandon work that is no longer wanted, and wake the run unless the engine itself appended. Agents do not delay the
        automatic approval."""
        self._tasks.abandon(self._tasks.keys - {work.key for work in self._wanted()})
        if any(entry.by.decides for entry in entries):
            self._timer.restart()
        if not all(entry.by.is_engine for entry in entries):
            self._wake.set()
            for call in self._on_steered:
                call()

    def _record_interruption(self) -> None:
        """Record that running work was interrupted; otherwise it would count as having crashed the process."""
        interrupted = [key for key in self.state.started if key in self._started_here]
        try:
            self.record([e.WorkFailed(str(key), "interrupted") for key in interrupted])
        except JournalError as error:
            _LOG.warning("the interruption of %s was not recorded: %s", ", ".join(map(str, interrupted)), error)

    def _record_result(self, work: w.Work, result: w.Result) -> None:
        if isinstance(work, w.Prepare) and isinstance(result, w.Prepared):
            self._prepare_again = False
        self.record(rules.record(self.state, work, result))

    def _settle(self, enough: int | None) -> bool:
        """Apply the automatic rules until none applies; open no further round once ``enough`` rounds are done.

        Returns whether it stopped before a new round.
        """
        if self._prepare_again:
            return False
        self._auto_approve()
        for _ in range(_AUTOMATIC_BOUND):
            events = rules.automatic(self.state)
            if not events:
                return False
            opens = any(isinstance(event, e.RoundOpened) for event in events)
            if opens and enough is not None and _closed_rounds(self.state) >= enough:
                return True
            self.record(events)
        raise RuntimeError("the automatic rules do not terminate: this is a bug")

    def _auto_approve(self) -> None:
        deadline = self.deadline
        if deadline is not None and self._ports.clock() >= deadline:
            if not adaptive.is_adaptive(self.state):
                self._writer.submit(c.SelectIdeas(), ENGINE)
            while chosen := adaptive.approval_due(self.state):
                self.record(chosen)

    def _wanted(self) -> tuple[w.Work, ...]:
        return self._preparing() if self._prepare_again else rules.wanted_work(self.state)

    def _owed(self) -> tuple[w.Work, ...]:
        return self._preparing() if self._prepare_again else rules.next_work(self.state)

    def _preparing(self) -> tuple[w.Work, ...]:
        return () if self.state.closed is not None or w.Prepare().key in self.state.broken else (w.Prepare(),)

    def _start_owed(self) -> None:
        closed_lanes = {scheduler.lane(key) for key in self.state.broken if key not in self.state.called_off}
        for work in scheduler.work_to_start(
            self._owed(), self._tasks.keys, self._lanes(), closed_lanes, self._awaiting_provider
        ):
            if work.key not in self._started_here or work.key not in self.state.started:
                self._started_here.add(work.key)
                self.record((e.WorkStarted(str(work.key)),))
            say = partial(self._progress.add, work.key)
            if work.key.kind in _CONFIRMING and stopping.is_out_of_time(self.state):
                say("time is over: confirming it before the search ends", lasting=True)
            calls = WorkCalls(work.key, self, self._writer.blobs, say)
            self._tasks.start(work, perform(work, self.state, self._effects, calls, say))

    def _lanes(self) -> scheduler.Lanes:
        if self._ports.lanes is not None:
            return self._ports.lanes
        device = self.state.device
        cores = os.cpu_count() or 1
        models, on_cores = self.state.models.concurrency, device is None or device.kind == "cpu"
        fleet = self._ports.workers
        if fleet is not None:
            builds = fleet.builders or max(fleet.workers, min(cores, _MOST_BUILDS))
            return scheduler.Lanes(builds, models, fleet.builds_alone, fleet.workers)
        return scheduler.Lanes(min(cores, _MOST_BUILDS), models, on_cores)

    def _outcome(self, until: Until, at_boundary: bool) -> Outcome | None:
        """The outcome while no work is running; ``None`` to wait."""
        state = self.state
        if state.closed is not None:
            return SessionEnded(state.closed)
        if at_boundary:
            return RoundEnded(queries.last_round(state))
        if state.broken:
            return EngineStopped(dict(state.broken))
        if until is Until.CLOSED or self.deadline is not None:
            return None
        calls = state.calls.values()
        prompts = tuple(call.id for call in calls if call.work in self._awaiting_engineer and call.status is CallStatus.OPEN)
        return AwaitingEngineer(tuple(idea.id for idea in queries.pending_ideas(state)), prompts, state.paused)

    async def _rest(self) -> None:
        """Wait for the end of work, a command, or the policy's deadline."""
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


def _closed_rounds(state: SessionState) -> int:
    return sum(1 for r in state.rounds.values() if r.closed and r.number > 0)
