"""Carries frames between an engine and one worker. ``ProcessLink`` is a child process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import engine
from engine.domain.errors import EspalierError
from engine.fleet.messages import LONGEST_FRAME, one_line
from engine.fleet.places import WorkerPlace
from engine.fleet.server import LENGTH
from engine.sandbox.bubblewrap import without_devices
from engine.sandbox.process import end_group, kill_tree, last_bytes, started, to_its_end

_KEPT_STDERR = 4000
_GRACE_S = 10.0
"""Seconds that a worker may take to end by itself."""
_KILL_S = 3.0
_ALLOWED = (
    "PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "TMPDIR", "VIRTUAL_ENV", "OMP_NUM_THREADS",
    "ESPALIER_HOME", "ESPALIER_CACHE", "ESPALIER_CACHE_GB", "ESPALIER_CACHE_DAYS", "ESPALIER_LEASES", "ESPALIER_INCLUDE",
    "ESPALIER_BUILD_GB", "ESPALIER_MEMORY_GB",
)  # fmt: skip
"""What a worker inherits of the environment: nothing that could hold a key or a token."""


class LinkClosed(EspalierError):
    """The other end is gone; the message says why, as far as it is known."""


class Link(Protocol):
    """A two-way stream of frames to one worker."""

    async def send(self, frame: bytes) -> None:
        """Raises LinkClosed."""
        ...

    async def receive(self) -> bytes:
        """The next frame. Raises LinkClosed."""
        ...

    def kill(self) -> None:
        """End the worker at once, with everything below it."""
        ...

    async def close(self) -> None:
        """End the worker and wait until nothing of it runs; idempotent."""
        ...


class WorkerLauncher(Protocol):
    """Starts workers at places."""

    @property
    def places(self) -> tuple[WorkerPlace, ...]: ...

    @property
    def builders(self) -> tuple[WorkerPlace, ...]:
        """Places of builders."""
        ...

    async def start(self, place: WorkerPlace) -> Link:
        """Raises EspalierError."""
        ...

    async def close(self) -> None:
        """Release what all its workers share."""
        ...


def worker_environment(place: WorkerPlace) -> dict[str, str]:
    """The environment of a worker's process: an allow-list."""
    kept = {name: os.environ[name] for name in _ALLOWED if name in os.environ}
    root = str(Path(engine.__file__).parent.parent)
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    visible = {"CUDA_VISIBLE_DEVICES": place.visible} if place.visible or place.builds else {}
    return {**kept, **visible, "PYTHONPATH": os.pathsep.join(dict.fromkeys([root, *others]))}


WORKER = (sys.executable, "-P", "-m", "engine.fleet.worker")
"""The command of a worker, without its arguments."""
BUILDER = (sys.executable, "-P", "-m", "engine.fleet.builder")
"""The same of a builder."""


class ProcessLink:
    """A worker as a child process."""

    def __init__(self, process: asyncio.subprocess.Process, ours: socket.socket) -> None:
        """Use ``start``."""
        self._process = process
        self._socket = ours
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        assert process.stderr is not None
        self._words = asyncio.create_task(last_bytes(process.stderr, _KEPT_STDERR))

    @classmethod
    async def start(
        cls, place: WorkerPlace, command: Sequence[str] = WORKER, environment: Mapping[str, str] | None = None
    ) -> ProcessLink:
        """Start the worker of a place. Raises EspalierError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        cores = ",".join(map(str, place.cores))
        with theirs:
            try:
                starting = asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), place.device, cores, pass_fds=(theirs.fileno(),),
                    env=dict(environment) if environment is not None else worker_environment(place),
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )  # fmt: skip
                process = await started(starting, lambda process: end_group(process, 0))
            except OSError as error:
                ours.close()
                raise EspalierError(f"the worker of {place.name} does not start: {error.strerror}") from error
        link = cls(process, ours)
        link._reader, link._writer = await asyncio.open_unix_connection(sock=ours)
        return link

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    async def send(self, frame: bytes) -> None:
        if self._writer is None:
            raise LinkClosed("the worker was closed")
        try:
            self._writer.write(LENGTH.pack(len(frame)) + frame)
            await self._writer.drain()
        except ConnectionError as error:
            raise LinkClosed(await self._last_words()) from error

    async def receive(self) -> bytes:
        if self._reader is None:
            raise LinkClosed("the worker was closed")
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > LONGEST_FRAME:
                raise LinkClosed(f"it announced a message of {length} bytes")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise LinkClosed(await self._last_words()) from error

    async def _last_words(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S):
                status = await self._process.wait()
                text = (await asyncio.shield(self._words)).decode(errors="replace").strip()
                words = one_line(text.splitlines()[-1]) if text else ""
                ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                return f"its process {ended}{': ' + words if words else ''}"
        return "its process does not answer"

    def kill(self) -> None:
        if self._process.returncode is None:
            kill_tree(self._process.pid, _KILL_S)

    async def close(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()
        try:
            await to_its_end(self._end())
        finally:
            self._words.cancel()

    async def _end(self) -> None:
        """The worker's whole tree: it has started processes with groups of their own."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._process.wait()
            await asyncio.to_thread(self.kill)
        finally:
            await end_group(self._process, 0)


class LocalLauncher:
    """Workers and builders of this machine, a process each."""

    def __init__(
        self, places: tuple[WorkerPlace, ...], builders: tuple[WorkerPlace, ...] = (), command: Sequence[str] = WORKER,
        build_command: Sequence[str] = BUILDER,
    ) -> None:  # fmt: skip
        self.places, self.builders = places, builders
        self._command, self._build_command = command, build_command

    async def start(self, place: WorkerPlace) -> Link:
        if not place.builds:
            return await ProcessLink.start(place, self._command)
        return await ProcessLink.start(place, await asyncio.to_thread(without_devices, self._build_command))

    async def close(self) -> None:
        """Nothing is shared."""
