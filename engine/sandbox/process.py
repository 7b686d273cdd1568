"""Runs one command with a time limit and leaves none of its processes behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.sandbox.watchdog import Excess, TreeLimits, watch

KEPT_OUTPUT = 1 << 20
"""Bytes of output kept by default."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
_POLL_S = 0.005
_STOPPING_S = 1.0
Started = TypeVar("Started")
_RUNNING = "RSDI"
"""States in ``/proc/…/stat`` of a process that has neither stopped nor ended."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a command ended. ``status`` is negative for a signal; ``output`` is standard output and error together."""

    status: int
    output: str
    seconds: float
    timed_out: bool
    exceeded: Excess | None = None
    """The limit of ``TreeLimits`` for which it was killed."""


async def run(
    argv: Sequence[str],
    *,
    seconds: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    output_bytes: int = KEPT_OUTPUT,
    limits: TreeLimits | None = None,
) -> ProcessResult:
    """Run ``argv`` in its own process group; kill the whole group when ``seconds`` have passed, when its processes together
    exceed ``limits``, or on cancellation.

    The first ``output_bytes`` of its output are kept. The rest is read and dropped: the command never blocks on a full pipe.

    Raises:
        OSError: the command cannot be started.
        asyncio.CancelledError: after the group has ended.
    """
    began = time.monotonic()
    process = await _started(argv, folder, environment)
    output = bytearray()
    timed_out = False
    exceeded = None
    try:
        async with asyncio.timeout(seconds):
            exceeded = await _ended_or_exceeded(process, folder, output, output_bytes, limits)
    except TimeoutError:
        timed_out = True
    finally:
        await to_its_end(_end(process, GRACE if exceeded is None else 0))
    status = process.returncode if process.returncode is not None else -signal.SIGKILL
    return ProcessResult(status, output.decode("utf-8", "replace"), time.monotonic() - began, timed_out, exceeded)


async def _started(
    argv: Sequence[str], folder: Path | None, environment: Mapping[str, str] | None
) -> asyncio.subprocess.Process:
    starting = asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    return await started(starting, lambda process: _end(process, GRACE))


async def started(starting: Coroutine[object, object, Started], end: Callable[[Started], Awaitable[None]]) -> Started:
    """What ``starting`` starts. Cancelled meanwhile, asyncio would kill its leader and leave the children: ``end`` ends it.

    Raises:
        OSError: it cannot be started.
    """
    task = asyncio.ensure_future(starting)

    async def end_once_started() -> None:
        with contextlib.suppress(OSError):
            await end(await task)

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await to_its_end(end_once_started())
        raise


async def to_its_end(ending: Coroutine[object, object, None]) -> None:
    """Await ``ending``, which goes on if this is cancelled, however often; it is raised then.

    Closing a session cancels its work, and SIGINT then cancels the closing: a process that was being ended must not stay.
    """
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def _ended_or_exceeded(
    process: asyncio.subprocess.Process, folder: Path | None, output: bytearray, kept: int, limits: TreeLimits | None
) -> Excess | None:
    """Wait until the command has ended, or until it exceeds a limit, which is returned."""
    waits = [asyncio.create_task(_drain(process, output, kept, limits.printed_bytes if limits else None))]
    if limits is not None:
        waits.append(asyncio.create_task(watch(process.pid, folder, limits)))
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return next((excess for wait in done if (excess := wait.result())), None)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _drain(process: asyncio.subprocess.Process, output: bytearray, kept: int, most: int | None) -> Excess | None:
    assert process.stdout is not None
    read = 0
    while chunk := await process.stdout.read(1 << 16):
        output += chunk[: kept - len(output)]
        read += len(chunk)
        if most is not None and read > most:
            return Excess.OUTPUT
    await process.wait()
    return None


async def _end(process: asyncio.subprocess.Process, grace: float) -> None:
    """End the group: SIGTERM while its leader lives, after ``grace`` seconds SIGKILL, also for what a dead leader left behind.

    Descendants in other groups are killed too: bubblewrap may die before its children are set to die with it. Cancelled, as by
    an event loop that closes, it sends SIGKILL at once.
    """
    descendants: list[tuple[int, str]] = []
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)  # no forks between listing and killing
            await _stopped(process.pid)
            descendants = _descendants(process.pid)
            if grace:
                signal_group(process.pid, signal.SIGTERM)
                signal_group(process.pid, signal.SIGCONT)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(_exited(process), grace)
    finally:
        signal_group(process.pid, signal.SIGKILL)
        for pid, born in descendants:
            if _stat(pid)[2] == born:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        with closing_pipes(process):
            await _exited(process)


async def end_group(process: asyncio.subprocess.Process, grace: float) -> None:
    """Wait ``grace`` seconds for a process that was asked to end, then kill its group, and close its pipes.

    Cancelled, as by an event loop that closes, it kills at once.
    """
    try:
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
    finally:
        signal_group(process.pid, signal.SIGKILL)
        with closing_pipes(process):
            await process.wait()


def kill_tree(leader: int, seconds: float) -> None:
    """Kill a process, its group and everything below it, and wait until they have ended, at most ``seconds``. Blocks.

    The leader stays for its parent to reap. For a thread that cannot wait for an event loop.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGSTOP)
    tree = [(leader, _stat(leader)[2]), *_descendants(leader)]
    signal_group(leader, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while alive := [pid for pid, born in tree if _stat(pid)[2] == born and _stat(pid)[0] not in "ZX"]:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Wait until the leader has ended. ``Process.wait`` also waits until its output has been read, which nobody may do now."""
    while process.returncode is None:
        await asyncio.sleep(_POLL_S)


async def _stopped(pid: int) -> None:
    """Wait until a stop signal has arrived: until then the process may fork."""
    deadline = time.monotonic() + _STOPPING_S
    while _stat(pid)[0] in _RUNNING and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)


def _descendants(leader: int) -> list[tuple[int, str]]:
    """All processes below ``leader``, each with its start time, which tells it from a later process with the same id."""
    known = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    tree = {leader}
    while children := {pid for pid, (_, parent, _) in known.items() if parent in tree} - tree:
        tree |= children
    return [(pid, known[pid][2]) for pid in tree if pid != leader]


def _stat(pid: int) -> tuple[str, int, str]:
    """State, parent and start time; ``X``, -1 and an empty string for a process that has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return "X", -1, ""
    return fields[0], int(fields[1]), fields[19]


@contextlib.contextmanager
def closing_pipes(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Close the pipes of a process that ends within, even if other processes still hold their other end.

    Also if that is cancelled: a transport that is open when its event loop has closed ends in a traceback.
    """
    try:
        yield
    finally:
        transport: asyncio.SubprocessTransport | None = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()


async def last_bytes(stream: asyncio.StreamReader, most: int) -> bytes:
    """The last bytes written to ``stream``, which is read continuously: the writer never blocks."""
    kept = b""
    while text := await stream.read(most):
        kept = (kept + text)[-most:]
    return kept


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if there is one that may be signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
