"""Runs one command with a time limit and leaves none of its processes behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KEPT_OUTPUT = 1 << 20
"""Bytes of output kept by default."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a command ended. ``status`` is negative for a signal; ``output`` is standard output and error together."""

    status: int
    output: str
    seconds: float
    timed_out: bool


async def run(
    argv: Sequence[str],
    *,
    seconds: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    output_bytes: int = KEPT_OUTPUT,
) -> ProcessResult:
    """Run ``argv`` in its own process group; kill the whole group when ``seconds`` have passed or on cancellation.

    The first ``output_bytes`` of its output are kept. The rest is read and dropped: the command never blocks on a full pipe.

    Raises:
        OSError: the command cannot be started.
        asyncio.CancelledError: after the group has ended.
    """
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    output = bytearray()
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await _drain(process, output, output_bytes)
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        await asyncio.shield(_end(process))
    status = process.returncode if process.returncode is not None else -signal.SIGKILL
    return ProcessResult(status, output.decode("utf-8", "replace"), time.monotonic() - began, timed_out)


async def _drain(process: asyncio.subprocess.Process, output: bytearray, most: int) -> None:
    if process.stdout is None:
        return
    while chunk := await process.stdout.read(1 << 16):
        output += chunk[: most - len(output)]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the group: SIGTERM while its leader lives, then SIGKILL, also for what a dead leader left behind.

    Descendants in other groups are killed too: bubblewrap may die before its children are set to die with it.
    """
    descendants: list[tuple[int, str]] = []
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)  # no forks between listing and killing
        descendants = _descendants(process.pid)
        _signal(process.pid, signal.SIGTERM)
        _signal(process.pid, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
    _signal(process.pid, signal.SIGKILL)
    for pid, born in descendants:
        if _stat(pid)[1] == born:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    await process.wait()
    close_pipes(process)


def _descendants(leader: int) -> list[tuple[int, str]]:
    """All processes below ``leader``, each with its start time, which tells it from a later process with the same id."""
    known = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    tree = {leader}
    while children := {pid for pid, (parent, _) in known.items() if parent in tree} - tree:
        tree |= children
    return [(pid, known[pid][1]) for pid in tree if pid != leader]


def _stat(pid: int) -> tuple[int, str]:
    """Parent and start time; -1 and an empty string for a process that has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return -1, ""
    return int(fields[1]), fields[19]


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close an ended process's pipes now, even if other processes still hold their other end."""
    transport: asyncio.SubprocessTransport | None = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
