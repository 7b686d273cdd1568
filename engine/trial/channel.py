"""The channel that carries messages between the engine, the judge, the host and the runner.

A Unix stream socket: each message is a 4-byte length and a msgpack body; file descriptors (lent memory, artefacts) travel with
the first byte.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from engine.trial.messages import ClaimedTimes, Message, RunKernel

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 256 << 20
_MAX_REPLY = 1 << 20
"""Bytes of a message from a host or a runner."""
_MAX_FDS = 16
_MAX_WAITING_FDS = 64
"""Descriptors that have arrived for messages that were not received yet."""
_RIGHTS_BYTES = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
_BYTES_AT_ONCE = 1 << 18
_SEND_S = 20.0
"""Time limit in seconds for the other side to read a message."""
_TIMEVAL = struct.Struct("@ll")

M = TypeVar("M")


class ChannelClosed(Exception):
    """The other side crashed, exited or was killed."""


class ChannelTimeout(Exception):
    """The other side did not reply in time."""


class ChannelGarbled(Exception):
    """The other side sent something that is not a message of the protocol."""


_QUICK = 0xFFFF_FFFF
"""In place of a length: an order or its times follow in fixed binary form."""
_ORDER = struct.Struct("<IIdII?")
_TIMES = struct.Struct("<Idddd?H")
_ADDRESS = struct.Struct("<Q")


class Channel:
    """One end of a Unix stream socket that carries messages and file descriptors. Blocking; every read has a deadline.

    What happens between an order and the call, and between the call and its reply, is part of the time by the judge's clock.
    ``RunKernel`` and ``ClaimedTimes`` therefore travel in fixed binary form, with one system call each (``send_order``,
    ``receive_order``, ``send_times``, ``receive_times``).
    """

    def __init__(self, sock: socket.socket, largest: int = _MAX_MESSAGE) -> None:
        self.sock = sock
        self._largest = largest
        self._encoder = msgspec.msgpack.Encoder()
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._room = memoryview(bytearray(_BYTES_AT_ONCE))
        self._buffer = bytearray()
        self._fds: list[int] = []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(_SEND_S), int(_SEND_S % 1 * 1e6)))

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel to a host or runner, and the raw socket of its other end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(ours, _MAX_REPLY), theirs

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Raises ChannelClosed when the other side has ended or stops reading."""
        body = self._encoder.encode(message)
        data = memoryview(_LENGTH.pack(len(body)) + body)
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                data = data[self.sock.sendmsg([data], rights) :]
            while data:
                data = data[self.sock.send(data) :]
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def send_order(self, order: RunKernel) -> None:
        """Raises ChannelClosed."""
        self._send_quickly(_ORDER.pack(_QUICK, order.slot, order.hold_us, order.gate, order.calls, order.holding))

    def receive_order(self, kind: Any) -> tuple[Any, list[int]]:
        """The next message: a ``RunKernel``, or what ``receive`` returns. Raises ChannelClosed, ChannelGarbled."""
        buffer = self._buffer
        if not buffer:
            self._fill(None)
        if len(buffer) >= _ORDER.size:
            head, slot, hold_us, gate, calls, holding = _ORDER.unpack_from(buffer)
            if head == _QUICK:
                del buffer[: _ORDER.size]
                return RunKernel(slot, hold_us, gate, calls, holding), []
        return self.receive(kind)

    def answer_orders(self, call: Callable[[int], float]) -> None:
        """Answer orders for a single call with the microseconds of ``call(slot)``, until another message is next.

        A kernel shares its process with all that happens here between an order and its reply, and could do without it. It is
        therefore as little as possible: after a flush of the caches every step takes microseconds. Raises ChannelClosed.
        """
        receive, send, read, written = self.sock.recv_into, self.sock.send, _ORDER.unpack, _TIMES.pack
        size, room = _ORDER.size, bytearray(_ORDER.size)
        try:
            # Other messages may bring descriptors: they are looked at, and left to ``receive``.
            while not self._buffer and receive(room, size, socket.MSG_PEEK) == size:
                head, slot, _, gate, calls, _ = read(room)
                if head != _QUICK or gate or calls != 1:
                    return
                receive(room, size)
                took = call(slot)
                send(written(_QUICK, took, took, 0.0, 0.0, False, 0))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def send_times(self, times: ClaimedTimes) -> None:
        """Raises ChannelClosed."""
        outputs = times.outputs
        head = _TIMES.pack(_QUICK, times.device_us, times.wall_us, times.idle_us, times.enqueue_us, times.held, len(outputs))
        self._send_quickly(head + b"".join(map(_ADDRESS.pack, outputs)) if outputs else head)

    def receive_times(self, kind: Any, timeout_s: float) -> tuple[Any, list[int]]:
        """The next message: a ``ClaimedTimes``, or what ``receive`` returns. Raises what that raises."""
        deadline = time.monotonic() + timeout_s
        buffer = self._buffer
        if not buffer:
            self._fill(deadline)
        if len(buffer) >= _TIMES.size:
            head, device_us, wall_us, idle_us, enqueue_us, held, count = _TIMES.unpack_from(buffer)
            end = _TIMES.size + count * _ADDRESS.size
            if head == _QUICK and len(buffer) >= end:
                outputs = tuple(one for (one,) in _ADDRESS.iter_unpack(bytes(buffer[_TIMES.size : end])))
                del buffer[:end]
                return ClaimedTimes(device_us, wall_us, idle_us, enqueue_us, held, outputs), []
        return self.receive(kind, deadline - time.monotonic())

    def _send_quickly(self, data: bytes) -> None:
        try:
            if self.sock.send(data) != len(data):
                raise ChannelClosed("the other side does not read")
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether something has arrived that was not received yet, or arrives in time."""
        if self._buffer:
            return True
        try:
            return bool(self._poller.poll(timeout_s * 1000) and self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def has_ended(self) -> bool:
        """Whether the other side has closed it and nothing is left to receive."""
        if self._buffer:
            return False
        try:
            return bool(self._poller.poll(0)) and not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self, kind: type[M] | Any, timeout_s: float | None = None) -> tuple[M, list[int]]:
        """The next message, checked against ``kind`` (a union of messages), and the descriptors that came with it.

        Raises ChannelTimeout, ChannelClosed, ChannelGarbled.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        buffer = self._buffer
        while len(buffer) < _LENGTH.size:
            self._fill(deadline)
        (length,) = _LENGTH.unpack_from(buffer)
        if length > self._largest:
            raise ChannelGarbled(f"a message of {length} bytes")
        while len(buffer) < _LENGTH.size + length:
            self._fill(deadline)
        body = bytes(memoryview(buffer)[_LENGTH.size : _LENGTH.size + length])
        del buffer[: _LENGTH.size + length]
        fds, self._fds = self._fds, []
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.msgpack.Decoder(kind)
        try:
            return decoder.decode(body), fds
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fds = [*fds, *self._fds]  # closed with the channel
            raise ChannelGarbled(str(error)) from error

    def _fill(self, deadline: float | None) -> None:
        if deadline is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._poller.poll(remaining * 1000):
                raise ChannelTimeout
        try:
            count, rights, flags, _ = self.sock.recvmsg_into([self._room], _RIGHTS_BYTES)
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        for _, _, data in rights:
            found = array.array("i")
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
            self._fds.extend(found)
        if flags & socket.MSG_CTRUNC or len(self._fds) > _MAX_WAITING_FDS:
            raise ChannelGarbled("too many descriptors")
        if not count:
            raise ChannelClosed("closed by the other side")
        self._buffer += self._room[:count]

    def close(self) -> None:
        """Close the socket, and descriptors of messages that were not received."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.sock.close()
