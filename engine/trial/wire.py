"""Messages between the engine, the judge, the host and the runner, and the channel that carries them.

A channel is a Unix stream socket: each message is a 4-byte length and a msgpack body; file descriptors (lent memory, artefacts)
ride along with the first byte. A runner's messages are *claims*: the judge believes nothing in them that it has not borne out
itself.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 256 << 20
_MAX_FDS = 16
_SEND_S = 20.0
"""How long the other side may take to read one message."""

PRIVATE = ("/tmp", "/dev/shm")
"""Folders that are a sandbox's own: the host empties them when the last runner of a kernel is gone."""

NOBODY = 0
"""No process has this number."""

M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class name travels as the tag."""


class Slot(msgspec.Struct, frozen=True):
    """Where one operand of one slot lies in the lent memory."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Bytes from the start of its arena (inputs and parameters in one, outputs in the other)."""
    nbytes: int


class ArenaLoan(msgspec.Struct, frozen=True):
    """How the runner reaches lent memory. ``kind``: ``memfd``, ``cuda-fd`` or ``cuda-ipc``; fds travel with the message."""

    kind: str
    size: int
    writable: bool
    handle: bytes = b""


# judge → host, host → judge


class Spawn(Message, frozen=True):
    """Fork a runner; its channel travels as a descriptor."""


class Spawned(Message, frozen=True):
    pid: int


class Freeze(Message, frozen=True):
    """Stop every process of the sandbox but the host, so that nothing can still be written while outputs are judged."""

    pid: int


class Still(Message, frozen=True):
    """Say whether everything that was sent a ``Freeze`` has stopped: ``Rests`` when it has, ``Moving`` if something runs on."""

    pid: int


class Rests(Message, frozen=True):
    """Everything of the candidate's has stopped; ``company`` says whether some of it is no runner but a process of its own."""

    company: bool


class Moving(Message, frozen=True):
    """Something of the candidate's could not be stopped."""


class Thaw(Message, frozen=True):
    """Let one runner run again, and what is no runner; the others stay as they are. ``NOBODY`` lets all of them run."""

    pid: int


class ThawCompany(Message, frozen=True):
    """Let run what is no runner: the processes of those that are awake."""


class Reap(Message, frozen=True):
    """Kill a runner with everything it left behind and say how it ended."""

    pid: int


class Done(Message, frozen=True):
    pass


class Ended(Message, frozen=True):
    """``status`` as ``waitpid`` gives it; ``left`` processes had to be killed besides the runner."""

    status: int
    left: int
    max_rss_bytes: int


# judge → runner, runner → judge


class Load(Message, frozen=True):
    """Everything a runner may know: the artefact, the operands, the arenas. No seed, no expected value, no phase."""

    contract: str
    """``plan``, ``host``, ``module``, ``baseline`` or ``null``."""
    device: str
    slots: tuple[tuple[Slot, ...], ...]
    inputs: ArenaLoan
    outputs: ArenaLoan
    threads: int
    scalars: tuple[Any, ...] = ()
    """The call's arguments for module contracts: ``None`` stands where a tensor operand goes, in order."""
    stateful: bool = False
    """The reference changes its own state: a module's buffers are as lent before every call."""
    source: str = ""
    """Module source (``module``), reference source with its settings (``baseline``)."""
    filename: str = "kernel.py"
    settings: Mapping[str, float | int] = {}
    tunables: Mapping[str, int] = {}
    baseline: str = ""
    init_seed: int = 0
    plan: bytes = b""
    """A resolved launch plan, as ``engine.build`` encodes it."""
    cold: bool = True
    stopwatch: bytes = b""
    """Machine code of the stopwatch's own kernel."""


class Ready(Message, frozen=True):
    """Said once when the device context stands, and after each ``Load`` when the artefact is loaded; ``seconds`` it took."""

    seconds: float
    notes: tuple[str, ...] = ()


class Call(Message, frozen=True):
    """Run the kernel once on a slot. The same message for a check, a warm-up and a sample."""

    slot: int
    hold_us: float = 0.0
    """How long the device is to be held busy, so that the host can enqueue the call meanwhile; some samples are without."""


class Called(Message, frozen=True):
    """What the runner's own clock says: a claim."""

    device_us: float
    wall_us: float
    idle_us: float
    """How long the device was still busy after the kernel's last event had completed."""
    enqueue_us: float = 0.0
    """How long the call took to return on the host."""
    held: bool = False
    """Whether the device was held until the call was enqueued."""


class Fault(Message, frozen=True):
    """The kernel could not be loaded or raised; ``kind`` is a FailureKind value."""

    kind: str
    text: str


HostRequest = Spawn | Freeze | Still | Thaw | ThawCompany | Reap
HostReply = Spawned | Done | Rests | Moving | Ended
RunnerRequest = Load | Call
RunnerReply = Ready | Called | Fault


class ChannelClosed(Exception):
    """The other side is gone: crashed, exited or was killed."""


class ChannelTimeout(Exception):
    """The other side did not answer in time."""


class ChannelGarbled(Exception):
    """The other side sent what is no message of the protocol."""


class Channel:
    """One end of a Unix stream socket that carries messages and file descriptors. Blocking, with a deadline for each read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._fds: list[int] = []

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel and the raw socket of its other end, to be handed to another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(ours), theirs

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Raises ChannelClosed when nobody reads, or nobody goes on reading."""
        body = self._encoder.encode(message)
        data = _LENGTH.pack(len(body)) + body
        try:
            self.sock.settimeout(_SEND_S)
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                sent = self.sock.sendmsg([data], rights)
                data = data[sent:]
            if data:
                self.sock.sendall(data)
            self.sock.settimeout(None)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def waiting(self) -> bool:
        """Whether something has arrived that nobody has received yet."""
        try:
            return bool(self._buffer or self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def receive(self, kind: type[M] | Any, timeout_s: float | None = None) -> tuple[M, list[int]]:
        """The next message, checked against ``kind`` (a union of messages), and the descriptors that came with it.

        Raises ChannelTimeout, ChannelClosed, ChannelGarbled.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self._buffer) < _LENGTH.size:
            self._fill(deadline)
        (length,) = _LENGTH.unpack(self._buffer[: _LENGTH.size])
        if length > _MAX_MESSAGE:
            raise ChannelGarbled(f"a message of {length} bytes")
        while len(self._buffer) < _LENGTH.size + length:
            self._fill(deadline)
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        fds, self._fds = self._fds, []
        try:
            return msgspec.msgpack.decode(body, type=kind), fds
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fds = [*fds, *self._fds]  # closed with the channel: nobody else will ever see them
            raise ChannelGarbled(str(error)) from error

    def _fill(self, deadline: float | None) -> None:
        if deadline is not None:
            remaining = deadline - time.monotonic()
            poller = select.poll()
            poller.register(self.sock, select.POLLIN)
            if remaining <= 0 or not poller.poll(remaining * 1000):
                raise ChannelTimeout
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 20, _MAX_FDS)
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        self._fds.extend(fds)
        if not data:
            raise ChannelClosed("closed by the other side")
        self._buffer += data

    def close(self) -> None:
        """Close the socket, and descriptors that came with messages nobody received."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.sock.close()
