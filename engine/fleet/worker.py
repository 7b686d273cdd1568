"""A worker: one device's bench as a process of its own, which an engine commands over an inherited socket.

``python -m engine.fleet.worker FD DEVICE CORES`` serves one engine and ends with it: when the socket closes, the judge and
everything below it end too. Its environment holds no key, and nothing of whatever carries the frames between machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import ENGINE, Blob, Device, Signature
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet import readings
from engine.fleet.places import host_name, ranges
from engine.fleet.versions import versions
from engine.problem.graph_ir import Graph, Unsupported
from engine.trial.assignment import Assignment
from engine.trial.bench import TrialBench

LENGTH = struct.Struct("<I")
PULSE_S = 2.0
"""Seconds between two signs of life."""
_GRACE_S = 8.0
"""Seconds that closing may take once the engine is gone."""

Say = Callable[[str], None]


class WorkerBench(Protocol):
    """What a worker needs of its bench: ``engine.session.ports.Bench``, and a description of the problem."""

    async def describe(self, say: Say, *, ceilings: bool) -> tuple[Device, Signature]: ...

    async def graph(self) -> Graph | Unsupported: ...

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible: ...

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Impossible: ...

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible: ...

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible: ...

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, say: Say
    ) -> w.Raced | w.Failed | w.Impossible: ...

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.Impossible: ...

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.Impossible: ...

    async def close(self) -> None: ...


MakeBench = Callable[[Assignment, Callable[[bytes], Blob]], WorkerBench]

_stored: ContextVar[dict[Blob, bytes]] = ContextVar("stored")
"""The payloads of the running call."""


def _store(payload: bytes) -> Blob:
    name = m.blob_name(payload)
    _stored.get()[name] = payload
    return name


class WorkerServer:
    """Serves one engine: takes orders, sends reports."""

    def __init__(self, send: Callable[[bytes], None], make_bench: MakeBench, device: str, cores: tuple[int, ...]) -> None:
        self._send = send
        self._make_bench = make_bench
        self._device, self._cores = device, cores
        self._read = readings.reader(device, cores)
        self._bench: WorkerBench | None = None
        self._blobs: dict[Blob, bytes] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    def _report(self, report: m.Report) -> None:
        self._send(m.encode(report))

    def greet(self) -> None:
        """Say where this worker is."""
        self._report(m.WorkerReady(host_name(), os.getpid(), versions()))

    async def pulse(self) -> None:
        """Give signs of life until cancelled."""
        while True:
            self._report(m.Pulse(*self._read()))
            await asyncio.sleep(PULSE_S)

    def take(self, frame: bytes) -> None:
        """Obey one order. Raises msgspec.DecodeError if it is none."""
        match m.decode_order(frame):
            case m.PutBlob(content):
                self._blobs[m.blob_name(content)] = content
            case m.StopCall(call):
                if call in self._calls:
                    self._calls[call].cancel()
            case m.OpenProblem(call) as order:
                self._start(call, self._open(order))
            case m.TraceProblem(call):
                self._start(call, self._trace())
            case m.DoWork(call) as order:
                self._start(call, self._work(order, lambda text: self._report(m.CallProgress(call, text))))

    def _start(self, call: int, effect: Coroutine[Any, Any, object]) -> None:
        self._calls[call] = asyncio.create_task(self._answer(call, effect))

    async def _answer(self, call: int, effect: Coroutine[Any, Any, object]) -> None:
        stored: dict[Blob, bytes] = {}
        _stored.set(stored)
        try:
            self._report(m.answered(call, await effect, stored))
        except asyncio.CancelledError:
            self._report(m.Refused(call, "Cancelled", "cancelled"))
        except EspalierError as error:
            self._report(m.Refused(call, type(error).__name__, str(error)))
        except Exception as error:
            self._report(m.Refused(call, "EspalierError", f"{type(error).__name__}: {error}"))
        finally:
            del self._calls[call]

    async def _open(self, order: m.OpenProblem) -> m.OpenedWorker:
        if self._bench is not None:
            await self._bench.close()
        assignment = m.decode_assignment(self._payload(order.assignment))
        self._bench = self._make_bench(replace(assignment, device=self._device, cores=self._cores, unit=self._unit()), _store)
        device, signature = await self._bench.describe(lambda _: None, ceilings=order.ceilings)
        return m.OpenedWorker(device, signature, getattr(self._bench, "is_prepared", False))

    def _unit(self) -> str:
        """Tells this device from others of its kind on this machine."""
        return ranges(self._cores) if self._cores else os.environ.get("CUDA_VISIBLE_DEVICES", "")

    async def _trace(self) -> m.TracedGraph:
        return m.TracedGraph(await self._opened().graph())

    def _opened(self) -> WorkerBench:
        if self._bench is None:
            raise EspalierError("no problem is open on this worker")
        return self._bench

    def _payload(self, name: Blob) -> bytes:
        if name not in self._blobs:
            raise EspalierError(f"payload {name[:12]} was never sent to this worker")
        return self._blobs[name]

    def _kernel(self, sent: m.SentKernel) -> tuple[Kernel, str]:
        kernel = Kernel(
            sent.id, "", None, 0, ENGINE, sent.name, sent.dialect, sent.contract, sent.source, sent.tunables, False
        )  # fmt: skip
        return kernel, self._payload(sent.source).decode("utf-8", "replace")

    async def _work(self, order: m.DoWork, say: Say) -> object:
        bench = self._opened()
        kernels = [self._kernel(sent) for sent in order.kernels]
        match order.kind, kernels:
            case w.WorkKind.PREPARE, []:
                return await bench.prepare(say)
            case w.WorkKind.BUILD, [(kernel, code)]:
                return await bench.build(kernel, code, say)
            case w.WorkKind.VERIFY, [(kernel, code)]:
                return await bench.verify(kernel, code, say)
            case w.WorkKind.MEASURE, [(kernel, code)]:
                return await bench.measure(kernel, code, say)
            case w.WorkKind.SANITIZE, [(kernel, code)]:
                return await bench.sanitize(kernel, code, say)
            case w.WorkKind.PROFILE, [(kernel, code)]:
                return await bench.read_counters(kernel, code, say)
            case w.WorkKind.RACE, [(kernel, code), (other, other_code)]:
                return await bench.race(kernel, code, other, other_code, order.effort, say)
        raise EspalierError(f"a worker does no {order.kind!r} of {len(kernels)} kernels")

    async def close(self) -> None:
        """Cancel what runs and close the bench."""
        running = list(self._calls.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._bench is not None:
            await self._bench.close()


async def serve(channel: socket.socket, make_bench: MakeBench, device: str, cores: tuple[int, ...]) -> None:
    """Serve the engine at the other end until it closes."""
    reader, writer = await asyncio.open_unix_connection(sock=channel)

    def send(frame: bytes) -> None:
        if not writer.is_closing():
            writer.write(LENGTH.pack(len(frame)) + frame)

    server = WorkerServer(send, make_bench, device, cores)
    server.greet()
    pulse = asyncio.create_task(server.pulse())
    try:
        while True:
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if length > m.LONGEST_FRAME:
                return
            server.take(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
        return
    finally:
        pulse.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.close(), _GRACE_S)
        writer.close()


def run(make_bench: MakeBench, arguments: Sequence[str]) -> None:
    """The program: descriptor of the socket, device, comma-separated cores or nothing."""
    descriptor, device, numbers = arguments
    cores = tuple(int(core) for core in numbers.split(",") if core)
    if cores:
        os.sched_setaffinity(0, cores)
    channel = socket.socket(fileno=int(descriptor))
    asyncio.run(serve(channel, make_bench, device, cores))


if __name__ == "__main__":
    run(TrialBench, sys.argv[1:])
