"""The engine's side of the judge: starts its process, sends one request at a time, ends it with its children. No torch.

The judge runs in the sandbox of its trial (``trial_sandbox``), with the hosts of its runners. Where that does not work, it runs
outside, and whatever it reports says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

import msgspec

import engine
from engine.domain.errors import DeviceError, EspalierError, JournalError, ProblemError, ProposerError, SandboxError, printable
from engine.sandbox import bubblewrap, bytecode, python_process, trial_sandbox
from engine.sandbox.process import end_group, kill_tree, last_bytes, started, to_its_end
from engine.sandbox.supervisor import HOSTS, HOSTS_NOW, REQUESTS, Orders
from engine.trial import protocol as p

_LENGTH = struct.Struct("<I")
_ERRORS: dict[str, type[EspalierError]] = {
    error.__name__: error for error in (DeviceError, ProposerError, JournalError, ProblemError, SandboxError)
}
_GRACE_S = 3.0
_KEPT_STDERR = 4000
"""Bytes of a judge's standard error that are kept."""
_MAX_REPLY = 1 << 28
"""Most bytes of a valid reply."""
_LONGEST_LINE = 4000


class JudgeDied(EspalierError):
    """The judge's process ended or sent an invalid reply. The next request starts a new one."""

    def __init__(self, words: str = "") -> None:
        """``words``: the last line that it wrote."""
        super().__init__(f"the judge's process ended{': ' + words if words else ''}")
        self.words = words


class StartHosts(Enum):
    """When a judge on a GPU starts the hosts of runners: each imports torch."""

    LATER = ""
    """When a problem is opened."""
    WHEN_ASKED = HOSTS
    """With its first request, while it imports torch itself: it will prepare a problem."""
    NOW = HOSTS_NOW
    """With itself: cores are idle."""


class JudgeClient:
    """One judge process. ``ask`` is exclusive: one request uses the device at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._words: asyncio.Task[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._device = ""
        self._hosts = StartHosts.LATER
        self._answered = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """The process below which the whole trial runs."""
        return self._process.pid if self._process is not None else None

    async def start(self, device: str, hosts: StartHosts = StartHosts.LATER) -> None:
        """Start the process, after cleaning up one that died. Its environment is an allow-list that holds no key.

        It may open one problem only: a reference can change the process that it runs in.
        """
        await self.close()
        self._device, self._hosts, self._answered = device, hosts, False
        sandboxed = await trial_sandbox.find_judge_reason() is None
        if sandboxed:
            await bytecode.write(_environment(device))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            argv, environment, inherited = _outside(theirs.fileno(), device)
            if sandboxed:
                self._lifeline, lifeline = socket.socketpair()
                self._lifeline.sendall(_orders(theirs.fileno(), device, hosts).encode())
                inherited = (theirs.fileno(), lifeline.fileno())
                argv = trial_sandbox.outer(trial_sandbox.supervisor(lifeline.fileno()), device)
                environment = trial_sandbox.supervisor_environment()
            try:
                starting = asyncio.create_subprocess_exec(
                    *argv, pass_fds=inherited, env=environment, stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
                self._process = await started(starting, lambda process: end_group(process, 0))
            finally:
                if sandboxed:
                    lifeline.close()
        assert self._process.stderr is not None
        self._words = asyncio.create_task(last_bytes(self._process.stderr, _KEPT_STDERR))
        self._socket = ours.dup()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)

    async def ask(self, request: p.Request, say: Callable[[str], None], fds: Sequence[int] = ()) -> p.Reply:
        """The judge's reply; ``fds`` travel with the request. Raises the error that ``JudgeFailed`` names, or JudgeDied.

        Where bubblewrap did not start, the judge is started once more. Cancelling kills the judge and everything it started: no
        measurement keeps running on the device.
        """
        async with self._lock:
            try:
                return await self._exchange_or_end(request, say, fds)
            except JudgeDied as died:
                if self._answered or not (reason := bubblewrap.own_error(died.words)):
                    raise
                bubblewrap.will_retry(reason)
                await self.start(self._device, self._hosts)
                return await self._exchange_or_end(request, say, fds)

    async def _exchange_or_end(self, request: p.Request, say: Callable[[str], None], fds: Sequence[int]) -> p.Reply:
        """``_exchange``; a judge that cannot answer any more is ended."""
        try:
            return await self._exchange(request, say, fds)
        except (asyncio.CancelledError, TimeoutError):
            await self.close()
            raise
        except (ConnectionError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            words = await self._last_words()
            await self.close()
            raise JudgeDied(words) from error

    async def _exchange(self, request: p.Request, say: Callable[[str], None], fds: Sequence[int]) -> p.Reply:
        assert self._reader is not None
        assert self._writer is not None
        assert self._socket is not None
        body = msgspec.msgpack.encode(request)
        head = _LENGTH.pack(len(body))
        if fds:  # nothing is buffered: every earlier request was answered
            socket.send_fds(self._socket, [head], fds)
            head = b""
        self._writer.write(head + body)
        await self._writer.drain()
        while True:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _MAX_REPLY:
                raise ConnectionError("invalid reply from the judge")
            reply: p.Reply = msgspec.msgpack.decode(await self._reader.readexactly(length), type=p.Reply)
            self._answered = True
            match reply:
                case p.JudgeProgress(text):
                    say(_one_line(text))
                case p.JudgeFailed(kind, reason):
                    raise _ERRORS.get(kind, EspalierError)(_one_line(reason))
                case _ if isinstance(reply, p.ANSWERS[type(request)]):
                    return reply
                case _:
                    raise ConnectionError("a reply to another request: a reference has written to the judge's channel")

    async def _last_words(self) -> str:
        if self._words is None:
            return ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                text = (await asyncio.shield(self._words)).decode(errors="replace").strip()
                return _one_line(text.splitlines()[-1]) if text else ""
        return ""

    def kill(self) -> None:
        """End the process and everything it started, from any thread. ``close`` or ``start`` cleans up. Blocks for a moment."""
        process = self._process
        if process is not None and process.returncode is None:
            kill_tree(process.pid, _GRACE_S)

    async def close(self) -> None:
        """End the process and everything it started; idempotent."""
        process, self._process = self._process, None
        writer, self._writer, self._reader = self._writer, None, None
        words, self._words = self._words, None
        if writer is not None:
            writer.close()
        for sock in (self._socket, self._lifeline):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
        self._socket = self._lifeline = None
        if process is None:
            return
        try:
            await to_its_end(end_group(process, _GRACE_S))
        finally:
            if words is not None:
                words.cancel()


def _one_line(text: str) -> str:
    """A reference may have written it."""
    return printable(" ".join(text[:_LONGEST_LINE].split("\n")))


def _outside(channel: int, device: str) -> tuple[list[str], dict[str, str], tuple[int, ...]]:
    """Command line, environment and descriptors of a judge without a sandbox."""
    command = [sys.executable, "-P", "-m", "engine.trial.judge", str(channel), "engine", str(os.getpid()), device]
    return command, _environment(device), (channel,)


def _orders(channel: int, device: str, hosts: StartHosts) -> Orders:
    """What the supervisor starts: this judge, and hosts for runners on ``device``."""
    filtered = bubblewrap.filter_reason() is None
    command = [sys.executable, "-s", "-P", "-m", "engine.trial.judge", str(channel), "supervised", REQUESTS, device]
    command += [hosts.value] if hosts.value else []
    private = {"HOME": "/tmp", "TMPDIR": "/tmp", "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TRITON_CACHE_DIR": "/tmp/triton"}
    judge = trial_sandbox.judge(command, {**_environment(device), **private, **bytecode.variables()}, filtered=filtered)
    return Orders(judge, trial_sandbox.host(device, filtered=filtered), channel, filtered)


def _environment(device: str) -> dict[str, str]:
    """The environment of a judge: an allow-list without anything that could hold a key."""
    names = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "TMPDIR", "VIRTUAL_ENV")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    root = str(Path(engine.__file__).parent.parent)
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([root, *others])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_MODULE_LOADING": "LAZY",
        # The judge's threads must not spin on a core while a kernel is being timed.
        "OMP_WAIT_POLICY": "PASSIVE",
        # What a reference compiles runs as it is written: dynamo cannot trace below the modes that count and widen operators.
        "TORCHDYNAMO_DISABLE": "1",
        **({} if device == "cpu" else python_process.LARGE_PAGES),
    }
