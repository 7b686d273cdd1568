"""Running one command to its end or to its time limit, leaving nothing of it behind.

Knows processes, groups and signals; not what is run, nor how it is confined.
"""

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
"""Bytes of output that are kept where nothing else is asked for: a thousand pages of compiler messages."""
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

    Of its output the first ``output_bytes`` are kept; the rest is read and dropped, so that it never blocks on it.

    Raises:
        OSError: the command cannot be started.
        asyncio.CancelledError: after the group is gone.
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
    """See the group off: asked first while its leader lives, then killed, stragglers of a dead leader included."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE)
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
