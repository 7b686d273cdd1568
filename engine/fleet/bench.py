"""The bench of a session with a fleet: every worker has a bench of its own, and each work item goes to one of them.

Implements ``engine.session.ports.Bench`` without importing it. Both arms of a race run on one worker: the one on which the
incumbent was measured. Work of a worker that is lost goes to another one, once; a second loss counts against the kernel. Where
there are builders, kernels are built there, ahead of the devices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import DeviceError, JournalError
from engine.domain.model import Blob, Device, Measurement, Signature
from engine.domain.regimes import Regime
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.builders import BuilderPool, build_key
from engine.fleet.client import WorkerGone
from engine.fleet.links import WorkerLauncher
from engine.fleet.member import ONCE, Builder, FleetWorker, KernelParcel, Terms, same_model
from engine.fleet.pool import TRIES, MemberPool, given_up, prefixed
from engine.problem.graph_ir import TracedShape
from engine.trial.assignment import Assignment

_LOG = logging.getLogger(__name__)

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
        self._workers = MemberPool(
            [FleetWorker(place, launcher) for place in launcher.places], self._join, self._tell, "no worker is left"
        )
        self._builders = BuilderPool([Builder(place, launcher) for place in launcher.builders], self._tell, store)
        self._device: Device | None = None
        self._signature: Signature | None = None
        self._ceilings = False
        self._prepared = False
        self._unheard: list[e.Event] = []
        """What happened to workers before there was a listener."""
        self._listener: Listener | None = None
        self._opening = asyncio.Lock()
        self._early: dict[str, asyncio.Task[m.OpenedWorker]] = {}
        """Workers that start beside the first one."""

    # what a session does with its fleet

    def listen(self, listener: Listener) -> None:
        """Report what happens to workers from now on, and what has happened so far."""
        self._listener = listener
        unheard, self._unheard = self._unheard, []
        if unheard:
            listener(unheard)

    @property
    def workers(self) -> int:
        """How many work items can run at a time."""
        return max(1, len(self._workers.queue.slots))

    @property
    def builders(self) -> int:
        """How many builds can run at a time on builders."""
        return self._builders.count

    @property
    def builds_alone(self) -> bool:
        """Whether a build needs a worker for itself."""
        return self._assignment.device == "cpu" and not self._builders.count

    def _tell(self, *events: e.Event) -> None:
        if self._listener is None:
            self._unheard.extend(events)
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
                say(f"starting {len(self._workers.members)} workers")
                try:
                    self._start_others()
                    opened, others = await self._open_first()
                    self._device, self._signature = opened.device, opened.signature
                    joining = (self._workers.begin(other.name) for other in others)
                    await asyncio.gather(*joining, self._builders.open(opened.target))
                finally:
                    await self._drop_early()
            return self._device, self._signature

    def _start_others(self) -> None:
        """On GPUs all workers start together. On a CPU the first one measures the machine's ceilings alone."""
        if self._assignment.device == "cpu":
            return
        _, *others = self._workers.members.values()
        self._early = {other.name: asyncio.create_task(self._begin(other)) for other in others}

    async def _begin(self, worker: FleetWorker) -> m.OpenedWorker:
        return await worker.begin(self._assignment, ceilings=self._ceilings)

    async def _opened(self, worker: FleetWorker) -> m.OpenedWorker:
        """A worker with the problem open: it is started, unless it starts already."""
        early = self._early.pop(worker.name, None)
        return await (self._begin(worker) if early is None else early)

    async def _drop_early(self) -> None:
        """End the workers that nobody has waited for: the session did not open."""
        early, self._early = self._early, {}
        for task in early.values():
            task.cancel()
        await asyncio.gather(*early.values(), return_exceptions=True)
        await asyncio.gather(*(self._workers.members[name].end() for name in early))

    async def _open_first(self) -> tuple[m.OpenedWorker, list[FleetWorker]]:
        """Start one worker, which decides on the session's device; and those that were not tried."""
        others, gone = list(self._workers.members.values()), dict[str, WorkerGone]()
        while True:
            worker = others.pop(0)
            try:
                opened = await self._opened(worker)
                break
            except WorkerGone as why:
                await worker.end()
                gone[worker.name] = why
                if not others:
                    raise
        self._device = opened.device  # those that are lost start again, and are compared with it
        self._workers.joined(worker.name, _joined(worker, opened))
        for name, error in gone.items():
            self._workers.left(name, str(error), again=not error.final)
        return opened, others

    async def _join(self, worker: FleetWorker) -> e.WorkerJoined:
        """Start a worker that is not the session's first one. Raises DeviceError if it is of another model."""
        opened = await self._opened(worker)
        assert self._device is not None
        if not same_model(opened.device, self._device):
            raise DeviceError(f"refused: it has {opened.device.name}, the session's device is {self._device.name}")
        if self._prepared:
            await self._prepare_worker(worker, silent)
        return _joined(worker, opened)

    async def traced(self) -> tuple[TracedShape, ...]:
        """The reference's graph on each workload, from which the naive port is generated."""
        async with self._workers.member() as worker:
            return (await worker.trace()).shapes

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible:
        """Every worker calibrates the check and measures the baselines on its own device; the first one's are the session's."""
        await self.describe(say, ceilings=True)
        names = [name for name, slot in self._workers.queue.slots.items() if slot.ready]
        outcomes = await asyncio.gather(*(self._prepare_one(name, say) for name in names))
        found = [outcome for outcome in outcomes if isinstance(outcome, w.Prepared)]
        self._prepared = bool(found)
        if found:
            return found[0]
        return next((one for one in outcomes if isinstance(one, w.Impossible)), w.Impossible("no worker is left"))

    async def _prepare_one(self, name: str, say: Say) -> w.Prepared | w.Impossible | None:
        async with self._workers.member(prefer=name) as worker:
            if worker.name != name:  # it was lost meanwhile: the new one prepares when it joins
                return None
            try:
                return await self._prepare_worker(worker, say)
            except WorkerGone:
                return None

    async def _prepare_worker(self, worker: FleetWorker, say: Say) -> w.Prepared | w.Impossible:
        found = await worker.work(w.WorkKind.PREPARE, (), ONCE, prefixed(say, worker.name), self._store)
        if isinstance(found, w.Prepared):
            times = {baseline: one.time_us for baseline, one in found.preparation.baselines.items()}
            self._tell(e.WorkerPrepared(worker.name, times, found.preparation.same))
        return found  # type: ignore[no-any-return]

    # engine.session.ports.Bench

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.NoVerdict:
        """On a builder, where there is one; on a worker, if its compilers need the device, or no builder is left."""
        if self._device is None:
            await self.describe(say)
        outcome: w.Built | w.Failed | w.NoVerdict | None = await self._builders.build(kernel, code, say)
        if outcome is None:
            key = build_key(kernel)
            outcome = await self._run(key, (KernelParcel(kernel, code),), say, alone=self.builds_alone)
        return outcome

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.NoVerdict:
        key, parcels = w.WorkKey(w.WorkKind.VERIFY, (kernel.id,), kernel.attempt), await self._parcels((kernel, code), say=say)
        outcome: w.Verified | w.Suspected | w.Failed | w.NoVerdict = await self._run(key, parcels, say)
        return outcome

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.NoVerdict:
        key, parcels = w.WorkKey(w.WorkKind.MEASURE, (kernel.id,), kernel.attempt), await self._parcels((kernel, code), say=say)
        outcome: w.Measured | w.Suspected | w.Failed | w.NoVerdict = await self._run(key, parcels, say)
        return outcome

    async def sustain(self, kernel: Kernel, code: str, say: Say) -> w.BackToBack | w.Failed | w.NoVerdict:
        """On the worker on which the kernel was measured."""
        key, parcels = w.WorkKey(w.WorkKind.SUSTAIN, (kernel.id,), kernel.attempt), await self._parcels((kernel, code), say=say)
        outcome: w.BackToBack | w.Failed | w.NoVerdict = await self._run(key, parcels, say, prefer=kernel.worker)
        return outcome

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.NoVerdict:
        """On the worker on which ``other``, the incumbent of a race for the lead, was measured."""
        key = w.WorkKey(w.WorkKind.RACE, (kernel.id, other.id), effort)
        pair = await self._parcels((kernel, code), (other, other_code), say=say)
        outcome: w.Raced | w.Failed | w.NoVerdict = await self._run(key, pair, say, how=(effort, regime), prefer=other.worker)
        return outcome

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.SANITIZE, (kernel.id,), kernel.attempt)
        outcome: w.Sanitized | w.NoVerdict = await self._run(key, (KernelParcel(kernel, code),), say)
        return outcome

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.NoVerdict:
        key = w.WorkKey(w.WorkKind.PROFILE, (kernel.id,), kernel.attempt)
        outcome: w.Profiled | w.NoVerdict = await self._run(key, (KernelParcel(kernel, code),), say)
        return outcome

    async def _parcels(self, *kernels: tuple[Kernel, str], say: Say) -> tuple[KernelParcel, ...]:
        """The kernels with what builders built of them."""
        if self._device is None:
            await self.describe(say)
        return tuple([await self._builders.parcel(kernel, code, say) for kernel, code in kernels])

    async def _run(
        self, key: w.WorkKey, kernels: Sequence[KernelParcel], say: Say, *, how: Terms = ONCE, prefer: str = "",
        alone: bool = True,
    ) -> Any:  # fmt: skip
        """The result of one work item, from the worker that did it."""
        if self._device is None:
            await self.describe(say)
        lost: list[str] = []
        while True:
            async with self._workers.member(alone=alone, prefer=prefer, avoid=frozenset(lost)) as worker:
                pulse = worker.pulse
                self._tell(e.WorkAssigned(str(key), worker.name, pulse.clock_mhz, pulse.celsius))
                try:
                    result = await worker.work(key.kind, kernels, how, prefixed(say, worker.name), self._store)
                except WorkerGone as gone:
                    lost.append(worker.name)
                    if len(lost) >= TRIES:
                        return given_up(key, lost, gone)
                    self._workers.queue.set_ready(worker.name, ready=False)
                    self._tell(e.WorkRequeued(str(key), worker.name))
                    continue
                worker.losses = 0
                return _from_worker(result, worker.name)

    async def close(self) -> None:
        """End all workers and builders; idempotent."""
        try:
            await asyncio.gather(self._workers.close(), self._builders.close())
        finally:
            await self._launcher.close()


def _joined(worker: FleetWorker, opened: m.OpenedWorker) -> e.WorkerJoined:
    return e.WorkerJoined(worker.name, opened.device, worker.host, worker.notes)


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
        case w.BackToBack(times) if times is not None:
            named = replace(times, conditions=(*times.conditions, f"measured on {name}"))
            return replace(result, times=named, worker=name)
        case w.Failed() | w.Sanitized() | w.Suspected() | w.BackToBack():
            return replace(result, worker=name)
    return result


def _measured_on(measurement: Measurement, name: str) -> Measurement:
    return replace(measurement, conditions=(*measurement.conditions, f"measured on {name}"))
