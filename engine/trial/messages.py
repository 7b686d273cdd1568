"""Messages between the engine, the judge, the host and the runner, and the channel that carries them.

A channel is a Unix stream socket: each message is a 4-byte length and a msgpack body; file descriptors (lent memory, artefacts)
travel with the first byte. A runner's messages are *claims*: the judge uses nothing in them that it has not checked itself.
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
"""Time limit for the other side to read a message."""

NOBODY = 0
"""Not a process id."""
PROFILED = "ESPALIER_PROFILED"
"""Environment variable that makes ``engine.trial.runner.profile_target`` mark where a call starts and ends."""
COUNTED_CALLS = "espalier: counted calls: "
"""``engine.trial.runner.profile_loop`` prints this and the number of calls that were counted."""

M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class name travels as the tag."""


class Slot(msgspec.Struct, frozen=True):
    """The place of one copy (slot) of an operand in lent memory."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Bytes from the start of its arena: outputs are in one, everything else in the other."""
    nbytes: int


class ArenaHandle(msgspec.Struct, frozen=True):
    """How a runner maps lent memory. ``kind``: ``memfd``, ``cuda-fd`` or ``cuda-ipc``. Descriptors travel with the message."""

    kind: str
    size: int
    writable: bool
    header: bytes = b""


# judge → host, host → judge


class Spawn(Message, frozen=True):
    """Fork a runner; its channel travels as a descriptor."""


class Spawned(Message, frozen=True):
    pid: int


class Freeze(Message, frozen=True):
    """Stop every process of the sandbox but the host: nothing is written while outputs are judged."""

    pid: int


class CheckStopped(Message, frozen=True):
    """Whether every process has stopped since ``Freeze``: answered by ``AllStopped`` or ``StillRunning``."""

    pid: int


class AllStopped(Message, frozen=True):
    """Every process has stopped. ``children``: whether some of them were started by a runner."""

    children: bool


class StillRunning(Message, frozen=True):
    """A process of the candidate's could not be stopped."""


class Thaw(Message, frozen=True):
    """Resume one runner, and every process that is not a runner. ``NOBODY`` resumes all runners."""

    pid: int


class ThawChildren(Message, frozen=True):
    """Resume every process that is not a runner."""


class Reap(Message, frozen=True):
    """Kill a runner and everything it left behind. Answered by ``RunnerEnded``."""

    pid: int


class Done(Message, frozen=True):
    pass


class RunnerEnded(Message, frozen=True):
    """``status`` as from ``waitpid``; ``killed``: further processes that had to be killed."""

    status: int
    killed: int


# judge → runner, runner → judge


class LoadKernel(Message, frozen=True):
    """Everything a runner may know: the artefact, the operands, the arenas. No input seed, expected value or phase."""

    contract: str
    """``plan``, ``host``, ``module``, ``baseline`` or ``null``."""
    device: str
    slots: tuple[tuple[Slot, ...], ...]
    inputs: ArenaHandle
    outputs: ArenaHandle
    threads: int
    scalars: tuple[Any, ...] = ()
    """For modules: arguments of ``Model`` by position and by name, and the template of the call (``argument_codec``)."""
    stateful: bool = False
    """The reference changes its own state: a module's buffers are reset to the lent ones before every call."""
    source: str = ""
    """Module source (``module``), reference source with its settings (``baseline``)."""
    filename: str = "kernel.py"
    settings: Mapping[str, float | int] = {}
    tunables: Mapping[str, int] = {}
    baseline: str = ""
    init_seed: int = 0
    plan: bytes = b""
    """A resolved launch plan, as ``engine.toolchain.resolution`` encodes it."""
    starts_threads: bool = False
    """Whether the artefact starts threads: on a CPU its process is then not pinned to one core."""
    cold: bool = True
    stopwatch: bytes = b""
    """Machine code of the stopwatch's hold kernel."""


class RunnerReady(Message, frozen=True):
    """Sent once the device context exists, and after each ``LoadKernel``; ``seconds`` is the time it took."""

    seconds: float
    notes: tuple[str, ...] = ()


class RunKernel(Message, frozen=True):
    """Run the kernel once on a slot. The same message for a check, a warm-up and a sample."""

    slot: int
    hold_us: float = 0.0
    """Microseconds to hold the device while the host enqueues the call; 0 in some samples."""


class ClaimedTimes(Message, frozen=True):
    """Times by the runner's own clock: claims."""

    device_us: float
    wall_us: float
    idle_us: float
    """Time that the device stayed busy after the kernel's last event."""
    enqueue_us: float = 0.0
    """Time until the call returned on the host."""
    held: bool = False
    """Whether the device was held until the call was enqueued."""


class Fault(Message, frozen=True):
    """The kernel could not be loaded or raised; ``kind`` is a FailureKind value."""

    kind: str
    text: str


HostRequest = Spawn | Freeze | CheckStopped | Thaw | ThawChildren | Reap
HostReply = Spawned | Done | AllStopped | StillRunning | RunnerEnded
RunnerRequest = LoadKernel | RunKernel
RunnerReply = RunnerReady | ClaimedTimes | Fault


class ChannelClosed(Exception):
    """The other side crashed, exited or was killed."""


class ChannelTimeout(Exception):
    """The other side did not reply in time."""


class ChannelGarbled(Exception):
    """The other side sent something that is not a message of the protocol."""


class Channel:
    """One end of a Unix stream socket that carries messages and file descriptors. Blocking; every read has a deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._fds: list[int] = []

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel, and the raw socket of its other end for another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(ours), theirs

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Raises ChannelClosed when the other side has ended or stops reading."""
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
        """Whether something has arrived that was not received yet."""
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
            self._fds = [*fds, *self._fds]  # closed with the channel
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
        """Close the socket, and descriptors of messages that were not received."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.sock.close()
