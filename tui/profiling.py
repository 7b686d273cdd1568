"""Reads the hardware counters of a kernel in a process of its own: this one loads no torch and runs no kernel."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from engine.domain.errors import EspalierError

_PROGRAM = (sys.executable, "-m", "espalier")


async def profile_kernel(folder: Path, kernel: str) -> str:
    """The likely bottleneck, or why nothing was counted, in one line. The session keeps the profile.

    Waits for the device while it is in use. Raises EspalierError if the kernel cannot be profiled at all.
    """
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, "kernel", "profile", str(folder), kernel, "--json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    try:
        found = json.loads(output)
    except json.JSONDecodeError as error:
        said = errors.decode(errors="replace").strip().splitlines()
        raise EspalierError(said[-1].removeprefix("espalier: ") if said else "the profiler ended without a result") from error
    return str(found["summary"] or found["reason"] or "the counters name no bottleneck")
