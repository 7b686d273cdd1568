"""The engine's side of one worker: orders with their answers, payloads sent once, signs of life watched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.domain import errors
from engine.domain.errors import EspalierError
from engine.domain.model import Blob
from engine.fleet import messages as m
from engine.fleet.links import Link, LinkClosed

_ERRORS: dict[str, type[EspalierError]] = {
    one.__name__: one
    for one in (errors.DeviceError, errors.ProblemError, errors.SandboxError, errors.ToolchainError, errors.ProposerError)
}
SILENCE_S = 60.0
"""Seconds without a sign of life after which a worker counts as lost."""
_START_S = 120.0
"""Seconds that a worker may take to start."""
_CANCEL_S = 20.0
"""Seconds that a worker may take to stop a call."""

Say = Callable[[str], None]
Payloads = Mapping[Blob, bytes | Path]
"""Payloads by their SHA-256, or the files that hold them."""
NOTHING: Payloads = MappingProxyType({})


class WorkerGone(EspalierError):
    """The worker was lost during the call. ``final``: it is not to be started again, for instance because it lied."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class _Call:
    def __init__(self, say: Say) -> None:
        self.say = say
        self.answer: asyncio.Future[m.Answered | m.Refused] = asyncio.get_running_loop().create_future()


class WorkerClient:
    """One worker. ``start`` it, then ``call``; ``gone`` tells when and why it was lost."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._calls: dict[int, _Call] = {}
        self._sent: set[Blob] = set()
        self._numbers = itertools.count(1)
        self._sending = asyncio.Lock()
        self._heard = time.monotonic()
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[m.WorkerReady] = loop.create_future()
        self.gone: asyncio.Future[WorkerGone] = loop.create_future()
        self.pulse = m.Pulse()
        """Its latest sign of life."""
        self._tasks = (asyncio.create_task(self._listen()), asyncio.create_task(self._watch()))

    async def start(self) -> m.WorkerReady:
        """Wait until the worker is ready. Raises WorkerGone."""
        if not await self._first(self._ready, _START_S):
            self.lose(WorkerGone(f"it did not start within {_START_S:g} s"))
        if self._ready.done():
            return self._ready.result()
        raise self.gone.result()

    async def _first(self, answer: asyncio.Future[Any], seconds: float | None = None) -> bool:
        """Wait for the answer or the worker's loss; whether there was either in time."""
        waits: set[asyncio.Future[Any]] = {answer, self.gone}
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    async def call(
        self, order: Callable[[int], m.Order], expected: frozenset[type[Any]], say: Say, payloads: Payloads = NOTHING
    ) -> tuple[Any, Mapping[Blob, bytes]]:
        """Send an order with the payloads that the worker has not got; its result, and the payloads that that names.

        Cancelling stops the work there. Raises the error that ``Refused`` names, or WorkerGone.
        """
        number = next(self._numbers)
        call = self._calls[number] = _Call(say)
        try:
            await self._send(order(number), payloads)
            await self._first(call.answer)
        except asyncio.CancelledError:
            await self._stop(number, call)
            raise
        finally:
            del self._calls[number]
        if not call.answer.done():
            raise self.gone.result()
        answer = call.answer.result()
        if isinstance(answer, m.Refused):
            raise _ERRORS.get(answer.kind, EspalierError)(m.one_line(answer.reason))
        try:
            return m.decode_answer(answer, expected)
        except m.WorkerLied as lie:
            raise self.lose(WorkerGone(str(lie), final=True)) from lie

    async def _send(self, order: m.Order, payloads: Payloads = NOTHING) -> None:
        async with self._sending:
            try:
                for name, payload in payloads.items():
                    if name not in self._sent:
                        content = payload if isinstance(payload, bytes) else await asyncio.to_thread(payload.read_bytes)
                        await self._link.send(m.encode(m.PutBlob(content)))
                        self._sent.add(name)
                await self._link.send(m.encode(order))
            except LinkClosed as error:
                raise self.lose(WorkerGone(str(error))) from error

    async def _stop(self, number: int, call: _Call) -> None:
        """Have the worker stop a call; one that does not is killed."""
        if self.gone.done():
            return
        with contextlib.suppress(WorkerGone):
            await self._send(m.StopCall(number))
            if not await self._first(call.answer, _CANCEL_S):
                self.lose(WorkerGone(f"it did not stop a call within {_CANCEL_S:g} s"))

    async def _listen(self) -> None:
        try:
            while True:
                report = m.decode_report(await self._link.receive())
                self._heard = time.monotonic()
                self._hear(report)
        except LinkClosed as error:
            self.lose(WorkerGone(str(error)))
        except m.WorkerLied as lie:
            self.lose(WorkerGone(str(lie), final=True))

    def _hear(self, report: m.Reports) -> None:
        match report:
            case m.WorkerReady():
                if not self._ready.done():
                    self._ready.set_result(report)
            case m.Pulse():
                self.pulse = report
            case m.CallProgress(number, text):
                if number in self._calls:
                    self._calls[number].say(m.one_line(text))
            case m.Answered(number) | m.Refused(number):
                call = self._calls.get(number)
                if call is None or call.answer.done():
                    raise m.WorkerLied(f"it answered call {number}, which nobody made")
                call.answer.set_result(report)

    async def _watch(self) -> None:
        while not self.gone.done():
            left = self._heard + SILENCE_S - time.monotonic()
            if left <= 0:
                self.lose(WorkerGone(f"no sign of life for {SILENCE_S:g} s"))
                return
            await asyncio.sleep(left)

    def lose(self, gone: WorkerGone) -> WorkerGone:
        """Note that the worker is lost, and end it; the first reason stays."""
        if not self.gone.done():
            self.gone.set_result(gone)
        return self.gone.result()

    async def close(self) -> None:
        """End the worker; idempotent."""
        for task in self._tasks:
            task.cancel()
        if not self.gone.done():
            self.gone.set_result(WorkerGone("it was closed"))
        elif self.gone.result().final or "no sign of life" in str(self.gone.result()):
            await asyncio.to_thread(self._link.kill)
        await self._link.close()
