"""A worker: one device's bench as a process of its own, which an engine commands.

``python -m engine.fleet.worker FD DEVICE CORES`` serves one engine over the socket FD.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Blob, Device, Signature
from engine.domain.regimes import Regime
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet import readings
from engine.fleet.places import ranges
from engine.fleet.server import CallServer, SendFrame, serve, store
from engine.problem.graph_ir import TracedShape
from engine.toolchain.adopted import adopt
from engine.trial.assignment import Assignment
from engine.trial.bench import TrialBench
from engine.trial.kernel_builds import Binaries, BuildTarget

Say = Callable[[str], None]


class WorkerBench(Protocol):
    """What a worker needs of its bench: ``engine.session.ports.Bench``, and a description of the problem."""

    async def describe(self, say: Say, *, ceilings: bool) -> tuple[Device, Signature]: ...

    async def build_target(self) -> BuildTarget: ...

    async def adopt(self, kernel: Kernel, code: str, binaries: Binaries, say: Say) -> None: ...

    async def traced(self) -> tuple[TracedShape, ...]: ...

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible: ...

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Impossible: ...

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible: ...

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible: ...

    async def sustain(self, kernel: Kernel, code: str, say: Say) -> w.BackToBack | w.Failed | w.Impossible: ...

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible: ...

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.Impossible: ...

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.Impossible: ...

    async def close(self) -> None: ...


MakeBench = Callable[[Assignment, Callable[[bytes], Blob]], WorkerBench]


class WorkerServer(CallServer):
    """Serves one engine with the bench of a device."""

    def __init__(self, send: SendFrame, make_bench: MakeBench, device: str, cores: tuple[int, ...]) -> None:
        super().__init__(send)
        self._make_bench = make_bench
        self._device, self._cores = device, cores
        self._read = readings.reader(device, cores)
        self._bench: WorkerBench | None = None
        self._adopting = asyncio.Lock()

    def sign_of_life(self) -> m.Pulse:
        return m.Pulse(*self._read())

    async def obey(self, order: m.Calls) -> object:
        match order:
            case m.OpenProblem():
                return await self._open(order)
            case m.TraceProblem():
                return m.TracedShapes(await self._opened().traced())
            case m.DoWork(call):
                return await self._work(order, self.say(call))
        return await super().obey(order)

    async def _open(self, order: m.OpenProblem) -> m.OpenedWorker:
        if self._bench is not None:
            await self._bench.close()
        assignment = m.decode_assignment(self.payload(order.assignment))
        self._bench = self._make_bench(replace(assignment, device=self._device, cores=self._cores, unit=self._unit()), store)
        device, signature = await self._bench.describe(lambda _: None, ceilings=order.ceilings)
        prepared = getattr(self._bench, "is_prepared", False)
        return m.OpenedWorker(device, signature, prepared, await self._bench.build_target())

    def _unit(self) -> str:
        """Tells this device from others of its kind on this machine."""
        return ranges(self._cores) if self._cores else os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def _opened(self) -> WorkerBench:
        if self._bench is None:
            raise EspalierError("no problem is open on this worker")
        return self._bench

    async def _adopt(self, binaries: Binaries) -> None:
        """Move the payloads of a builder's binaries from memory to the build cache."""
        async with self._adopting:
            for name in {name for row in binaries for name in row}:
                if (content := self._blobs.pop(name, None)) is not None:
                    await asyncio.to_thread(adopt, content)

    async def _work(self, order: m.DoWork, say: Say) -> object:
        bench = self._opened()
        kernels = [self.kernel(sent) for sent in order.kernels]
        for sent, (kernel, code) in zip(order.kernels, kernels, strict=True):
            if sent.binaries:
                await self._adopt(sent.binaries)
                await bench.adopt(kernel, code, sent.binaries, say)
        match order.kind, kernels:
            case w.WorkKind.PREPARE, []:
                return await bench.prepare(say)
            case w.WorkKind.BUILD, [(kernel, code)]:
                return await bench.build(kernel, code, say)
            case w.WorkKind.VERIFY, [(kernel, code)]:
                return await bench.verify(kernel, code, say)
            case w.WorkKind.MEASURE, [(kernel, code)]:
                return await bench.measure(kernel, code, say)
            case w.WorkKind.SUSTAIN, [(kernel, code)]:
                return await bench.sustain(kernel, code, say)
            case w.WorkKind.SANITIZE, [(kernel, code)]:
                return await bench.sanitize(kernel, code, say)
            case w.WorkKind.PROFILE, [(kernel, code)]:
                return await bench.read_counters(kernel, code, say)
            case w.WorkKind.RACE, [(kernel, code), (other, other_code)]:
                return await bench.race(kernel, code, other, other_code, order.effort, order.regime, say)
        raise EspalierError(f"a worker does no {order.kind!r} of {len(kernels)} kernels")

    async def close(self) -> None:
        await super().close()
        if self._bench is not None:
            await self._bench.close()


def run(make_bench: MakeBench, arguments: Sequence[str]) -> None:
    """The program: descriptor of the socket, device, comma-separated cores or nothing."""
    descriptor, device, numbers = arguments
    cores = tuple(int(core) for core in numbers.split(",") if core)
    if cores:
        os.sched_setaffinity(0, cores)
    channel = socket.socket(fileno=int(descriptor))
    asyncio.run(serve(channel, lambda send: WorkerServer(send, make_bench, device, cores)))


if __name__ == "__main__":
    run(TrialBench, sys.argv[1:])
