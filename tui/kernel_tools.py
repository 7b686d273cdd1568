"""Runs what needs a compiler or a device on one kernel, in a process of its own: this one loads no torch and runs no kernel."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.domain.errors import EspalierError
from engine.domain.hot_code import share, share_words

_PROGRAM = (sys.executable, "-m", "espalier")


async def profile_kernel(folder: Path, kernel: str) -> str:
    """The likely bottleneck and the hottest line, or why nothing was read, in one line. The session keeps the profile.

    Waits for the device while it is in use. Raises EspalierError if the kernel cannot be profiled at all.
    """
    found = await _answer("profile", str(folder), kernel)
    hot, bottleneck = found["hot_code"], found["summary"]
    if hot is None or not hot["lines"]:
        return str(bottleneck or found["reason"] or "the counters name no bottleneck")
    one = hot["lines"][0]
    words = share_words(share(one["samples"], hot["samples"]))
    hottest = f"line {one['line']} `{one['text']}` has {words} of {hot['samples']:,} samples."
    return f"{hottest} {bottleneck}".strip()


async def machine_code(folder: Path, kernel: str, against: str = "") -> Mapping[str, Any]:
    """The listing of a kernel, or its diff against another, as ``espalier kernel machine-code --json`` prints it.

    Raises EspalierError if there is none.
    """
    return await _answer("machine-code", str(folder), kernel, *(("--diff", against) if against else ()))


async def _answer(command: str, *arguments: str) -> Mapping[str, Any]:
    """Cancelled, it ends the process and does not wait: asyncio waits for its threads before the program ends. A process of
    asyncio's own would be told of its end on a loop that is closed by then."""
    process = subprocess.Popen(
        (*_PROGRAM, "kernel", command, *arguments, "--json"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await asyncio.to_thread(process.communicate)
    except asyncio.CancelledError:
        process.terminate()
        raise
    try:
        found: Mapping[str, Any] = json.loads(output)
    except json.JSONDecodeError as error:
        said = errors.decode(errors="replace").strip().splitlines()
        raise EspalierError(said[-1].removeprefix("espalier: ") if said else f"{command} ended without a result") from error
    return found
