"""The bench of a session with a fleet: every worker has a bench of its own, and each work item goes to one of them.

Implements ``engine.session.ports.Bench`` without importing it. Both arms of a race run on one worker: the one on which the
incumbent was measured. Work of a worker that is lost goes to another one, once; a second loss counts against the kernel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import DeviceError, EspalierError, JournalError
from engine.domain.model import Blob, Device, Measurement, Signature
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.client import WorkerGone
from engine.fleet.links import WorkerLauncher
from engine.fleet.member import FleetMember, same_model
from engine.fleet.queue import WorkerQueue
from engine.problem.graph_ir import Graph, Unsupported
from engine.trial.assignment import Assignment

_LOG = logging.getLogger(__name__)
_TRIES = 2
"""How many workers one work item may lose before it is given up."""
_MOST_LOSSES = 3
"""How often in a row a worker may be lost without a result in between before it is not started again."""

Say = Callable[[str], None]
StoreBlob = Callable[[bytes], Blob]
Listener = Callable[[Sequence[e.Event]], None]
T = TypeVar("T")


def silent(_: str) -> None:
    """No progress is shown."""


class FleetBench:
    """A bench over several workers. Close it when done."""

    def __init__(self, assignment: Assignment, store: StoreBlob, launcher: WorkerLauncher) -> None:
        self._assignment = assignment.with_chance()
        self._store = store
        self._launcher = launcher
        self._members = {place.name: FleetMember(place, launcher) for place in launcher.places}
        self._queue = WorkerQueue(self._members)
        self._device: Device | None = None
        self._signature: Signature | None = None
        self._ceilings = False
        self._prepared = False
        self._told: list[e.Event] = []
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._closing = False

    # what a session does with its fleet

    def listen(self, listener: Listener) -> None:
        """Tell what happens to workers, with what has happened so far."""
        self._listener = listener
        told, self._told = self._told, []
        if told:
            listener(told)

    @property
    def workers(self) -> int:
        """How many work items can run at a time."""
        return max(1, len(self._queue.slots))

    @property
    def builds_alone(self) -> bool:
        """Whether a build needs a worker for itself."""
        return self._assignment.device == "cpu"

    def _tell(self, *events: e.Event) -> None:
        if self._listener is None:
            self._told.extend(events)
            return
        try:
            self._listener(events)
        except JournalError as error:
            _LOG.warning("the journal does not say what happened to the fleet: %s", error)

    # workers

    async def describe(self, say: Say = silent, *, ceilings: bool = False) -> tuple[Device, Signature]:
        """The device, and what a kernel is called with. Opens the problem on every worker.

        Raises ProblemError, DeviceError, SandboxError, EspalierError as the first worker reports it.
        """
        async with self._opening:
            if self._device is None or self._signature is None:
                self._ceilings = ceilings
                first, *others = self._members
                say(f"starting {len(self._members)} workers")
                opened = await self._begin(first)
                self._device, self._signature = opened.device, opened.signature
                self._joined(first, opened)
                await asyncio.gather(*(self._begin_another(name) for name in others))
            return self._device, self._signature

    async def _begin(self, name: str) -> m.OpenedWorker:
        return await self._members[name].begin(self._assignment, ceilings=self._ceilings)

    def _joined(self, name: str, opened: m.OpenedWorker) -> None:
        member = self._members[name]
        self._tell(e.WorkerJoined(name, opened.device, member.host, member.notes))
        self._queue.set_ready(name, ready=True)
        self._spawn(self._watch(name))

    def _spawn(self, effect: Any) -> None:
        task = asyncio.create_task(effect)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_another(self, name: str) -> None:
        """Start a worker; one that does not suit the session is left out, and the journal says why."""
        assert self._device is not None
        member = self._members[name]
        try:
            opened = await self._begin(name)
            if not same_model(opened.device, self._device):
                raise DeviceError(f"refused: it has {opened.device.name}, the session's device is {self._device.name}")
            if self._prepared:
                await self._prepare_member(name, silent)
        except EspalierError as error:
            await member.end()
            if not self._closing:
                self._left(name, str(error), again=isinstance(error, WorkerGone))
            return
        self._joined(name, opened)

    async def _watch(self, name: str) -> None:
        """Wait until a worker is lost."""
        member = self._members[name]
        gone = await member.lost()
        if self._closing:
            return
        self._queue.set_ready(name, ready=False)
        await member.end()
        self._left(name, str(gone), again=not gone.lied)

    def _left(self, name: str, reason: str, *, again: bool) -> None:
        """A worker is gone: start it again unless that is useless."""
        member = self._members[name]
        member.losses += 1
        again = again and member.losses <= _MOST_LOSSES
        self._tell(e.WorkerLost(name, reason if again else f"{reason}; it is not started again"))
        if again:
            self._spawn(self._begin_another(name))
            return
        self._queue.drop(name)
        if not self._queue.slots:
            self._queue.fail(f"no worker is left: {name} {reason}")

    @asynccontextmanager
    async def _worker(
        self, *, alone: bool, prefer: str = "", avoid: frozenset[str] = frozenset()
    ) -> AsyncIterator[FleetMember]:  # fmt: skip
        slot = await self._queue.take(alone=alone, prefer=prefer, avoid=avoid)
        try:
            yield self._members[slot.name]
        finally:
            self._queue.give_back(slot, alone=alone)

    async def graph(self) -> Graph | Unsupported:
        """The reference's graph, from which the naive port is generated."""
        async with self._worker(alone=True) as member:
            found: m.TracedGraph = await member.ask("trace", m.TraceProblem, silent)
            return found.graph

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible:
        """Every worker calibrates the check and measures the baselines on its own device; the first one's are the session's."""
        await self.describe(say, ceilings=True)
        names = [name for name, slot in self._queue.slots.items() if slot.ready]
        outcomes = await asyncio.gather(*(self._prepare_one(name, say) for name in names))
        found = [outcome for outcome in outcomes if isinstance(outcome, w.Prepared)]
        self._prepared = bool(found)
        if found:
            return found[0]
        return next((one for one in outcomes if isinstance(one, w.Impossible)), w.Impossible("no worker is left"))

    async def _prepare_one(self, name: str, say: Say) -> w.Prepared | w.Impossible | None:
        slot = await self._queue.take(alone=True, prefer=name)
        try:
            if slot.name != name:  # it was lost meanwhile: the new one prepares when it joins
                return None
            return await self._prepare_member(name, say)
        except WorkerGone:
            return None
        finally:
            self._queue.give_back(slot, alone=True)

    async def _prepare_member(self, name: str, say: Say) -> w.Prepared | w.Impossible:
        found = await self._members[name].work(w.WorkKind.PREPARE, (), 0, _prefixed(say, name), self._store)
        if isinstance(found, w.Prepared):
            times = {baseline: one.time_us for baseline, one in found.preparation.baselines.items()}
            self._tell(e.WorkerPrepared(name, times, found.preparation.same))
        return found  # type: ignore[no-any-return]

    # engine.session.ports.Bench

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.BUILD, (kernel.id,), kernel.attempt)
        outcome: w.Built | w.Failed | w.NoVerdict = await self._run(key, ((kernel, code),), say, alone=self.builds_alone)
        return outcome

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.VERIFY, (kernel.id,), kernel.attempt)
        outcome: w.Verified | w.Suspected | w.Failed | w.NoVerdict = await self._run(key, ((kernel, code),), say)
        return outcome

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.MEASURE, (kernel.id,), kernel.attempt)
        outcome: w.Measured | w.Suspected | w.Failed | w.NoVerdict = await self._run(key, ((kernel, code),), say)
        return outcome

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, say: Say
    ) -> w.Raced | w.Failed | w.NoVerdict:
        """On the worker on which ``other``, the incumbent of a race for the lead, was measured."""
        key = w.WorkKey(w.WorkKind.RACE, (kernel.id, other.id), effort)
        pair = ((kernel, code), (other, other_code))
        outcome: w.Raced | w.Failed | w.NoVerdict = await self._run(key, pair, say, effort=effort, prefer=other.worker)
        return outcome

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.SANITIZE, (kernel.id,), kernel.attempt)
        outcome: w.Sanitized | w.NoVerdict = await self._run(key, ((kernel, code),), say)
        return outcome

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.PROFILE, (kernel.id,), kernel.attempt)
        outcome: w.Profiled | w.NoVerdict = await self._run(key, ((kernel, code),), say)
        return outcome

    async def _run(
        self, key: w.WorkKey, kernels: Sequence[tuple[Kernel, str]], say: Say, *, effort: int = 0, prefer: str = "",
        alone: bool = True,
    ) -> Any:  # fmt: skip
        """The result of one work item, from the worker that did it."""
        if self._device is None:
            await self.describe(say)
        lost: list[str] = []
        while True:
            async with self._worker(alone=alone, prefer=prefer, avoid=frozenset(lost)) as member:
                pulse = member.pulse
                self._tell(e.WorkAssigned(str(key), member.name, pulse.clock_mhz, pulse.celsius))
                try:
                    result = await member.work(key.kind, kernels, effort, _prefixed(say, member.name), self._store)
                except WorkerGone as gone:
                    lost.append(member.name)
                    if len(lost) >= _TRIES:
                        return _given_up(key, lost, gone)
                    self._queue.set_ready(member.name, ready=False)
                    self._tell(e.WorkRequeued(str(key), member.name))
                    continue
                member.losses = 0
                return _from_worker(result, member.name)

    async def close(self) -> None:
        """End all workers; idempotent."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.end() for member in self._members.values()))
        await self._launcher.close()


def _prefixed(say: Say, name: str) -> Say:
    return lambda text: say(f"{name}: {text}")


def _given_up(key: w.WorkKey, lost: Sequence[str], gone: WorkerGone) -> w.Abandoned:
    reason = f"{len(lost)} workers were lost during this {key.kind} step: {', '.join(lost)}; the last: {gone}"
    return w.Abandoned(reason, lost[-1])


def _from_worker(result: T, name: str) -> T:
    """The result with the worker's name, also among the conditions of what it measured."""
    match result:
        case w.Verified(_, screen):
            return replace(result, screen=_measured_on(screen, name), worker=name)
        case w.Measured(measurement):
            return replace(result, measurement=_measured_on(measurement, name), worker=name)
        case w.Suspected(_, _, measurement) if measurement is not None:
            return replace(result, measurement=_measured_on(measurement, name), worker=name)
        case w.Raced(note=note):
            return replace(result, note="; ".join(filter(None, (note, f"measured on {name}"))), worker=name)
        case w.Failed() | w.Sanitized() | w.Suspected():
            return replace(result, worker=name)
    return result


def _measured_on(measurement: Measurement, name: str) -> Measurement:
    return replace(measurement, conditions=(*measurement.conditions, f"measured on {name}"))
