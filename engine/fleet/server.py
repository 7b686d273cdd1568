"""The part that workers and builders share: a process that an engine commands over an inherited socket.

It ends with the engine: when the socket closes, so does what it runs. Its environment holds no key, and nothing of whatever
carries the frames between machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from engine.domain.errors import EspalierError
from engine.domain.model import ENGINE, Blob
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.places import host_name
from engine.fleet.versions import versions

LENGTH = struct.Struct("<I")
PULSE_S = 2.0
"""Seconds between two signs of life."""
_GRACE_S = 8.0
"""Seconds that closing may take once the engine is gone."""

SendFrame = Callable[[bytes], None]

_stored: ContextVar[dict[Blob, bytes]] = ContextVar("stored")
"""The payloads of the running call."""


def store(payload: bytes) -> Blob:
    """Keep a payload for the answer of the running call."""
    name = m.blob_name(payload)
    _stored.get()[name] = payload
    return name


class CallServer:
    """Serves one engine: takes orders, sends reports. Workers and builders say what an order means."""

    def __init__(self, send: SendFrame) -> None:
        self._send = send
        self._blobs: dict[Blob, bytes] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    def report(self, report: m.Report) -> None:
        self._send(m.encode(report))

    def greet(self) -> None:
        """Say where this process is."""
        self.report(m.WorkerReady(host_name(), os.getpid(), versions()))

    async def pulse(self) -> None:
        """Give signs of life until cancelled."""
        while True:
            self.report(self.sign_of_life())
            await asyncio.sleep(PULSE_S)

    def sign_of_life(self) -> m.Pulse:
        return m.Pulse()

    def take(self, frame: bytes) -> None:
        """Obey one order. Raises msgspec.DecodeError if it is none."""
        match m.decode_order(frame):
            case m.PutBlob(content):
                self._blobs[m.blob_name(content)] = content
            case m.StopCall(call):
                if call in self._calls:
                    self._calls[call].cancel()
            case order:
                self._calls[order.call] = asyncio.create_task(self._answer(order))

    async def obey(self, order: m.Calls) -> object:
        """The result of a call. Raises EspalierError."""
        raise EspalierError(f"this process does no {type(order).__name__} ({getattr(order, 'kind', 'no kind')})")

    async def _answer(self, order: m.Calls) -> None:
        call = order.call
        stored: dict[Blob, bytes] = {}
        _stored.set(stored)
        try:
            self.report(m.answered(call, await self.obey(order), stored))
        except asyncio.CancelledError:
            self.report(m.Refused(call, "Cancelled", "cancelled"))
        except EspalierError as error:
            self.report(m.Refused(call, type(error).__name__, str(error)))
        except Exception as error:
            self.report(m.Refused(call, "EspalierError", f"{type(error).__name__}: {error}"))
        finally:
            del self._calls[call]

    def say(self, call: int) -> Callable[[str], None]:
        """Shows progress of a call."""
        return lambda text: self.report(m.CallProgress(call, text))

    def payload(self, name: Blob) -> bytes:
        """Raises EspalierError if it was not sent."""
        if name not in self._blobs:
            raise EspalierError(f"payload {name[:12]} was never sent to this worker")
        return self._blobs[name]

    def kernel(self, sent: m.SentKernel) -> tuple[Kernel, str]:
        """A kernel and its code. Raises EspalierError."""
        kernel = Kernel(
            sent.id, idea="", parent=None, round=0, author=ENGINE, name=sent.name, dialect=sent.dialect, contract=sent.contract,
            source=sent.source, tunables=sent.tunables, seed=False,
        )  # fmt: skip
        return kernel, self.payload(sent.source).decode("utf-8", "replace")

    async def close(self) -> None:
        """Cancel what runs."""
        running = list(self._calls.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def serve(channel: socket.socket, make_server: Callable[[SendFrame], CallServer]) -> None:
    """Serve the engine at the other end until it closes."""
    reader, writer = await asyncio.open_unix_connection(sock=channel)

    def send(frame: bytes) -> None:
        if not writer.is_closing():
            writer.write(LENGTH.pack(len(frame)) + frame)

    server = make_server(send)
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
