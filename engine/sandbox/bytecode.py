"""Torch's bytecode for the processes of a trial, where the installation has none and they cannot write it.

Some installers compile nothing, many container images forbid Python to, and the file system of a trial is read-only: every
judge and host would compile torch again, for 3 to 10 s. Instead it is compiled once, outside the sandbox, to the user's cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.journal.user_folders import cache_root
from engine.sandbox.process import closing_pipes

VARIABLE = "PYTHONPYCACHEPREFIX"
_PROGRAM = """
import contextlib
import engine.trial.judge.server, engine.trial.runner.host, engine.trial.runner.launchers, engine.trial.runner.modules
import torch, torch._dynamo, torch._inductor.compile_fx
from torch._subclasses import FakeTensorMode
with FakeTensorMode(), torch.no_grad():
    torch.nn.Linear(2, 2)(torch.ones(2, 2))
with contextlib.suppress(Exception):
    import cuda.bindings.driver
with contextlib.suppress(Exception):
    import triton
"""
"""Imports what judges and runners import, also for the trace of a reference and for ``torch.compile``."""
_SEEN = "_subclasses/fake_tensor.py"
"""A file of torch that plain programs do not import."""
_LIMIT_S = 180.0
_UNFINISHED = ".unfinished-"


def folder() -> Path | None:
    """The bytecode of this installation in the user's cache; ``None`` if there is none or it stands beside torch's sources."""
    place = _place()
    return place if place is not None and place.is_dir() else None


def variables() -> dict[str, str]:
    """What has a Python process in the sandbox read it."""
    found = folder()
    return {VARIABLE: str(found)} if found is not None else {}


async def write(environment: dict[str, str]) -> None:
    """Compile torch if nobody has: import it in a process outside the sandbox that runs nothing else. Takes seconds, once.

    What an import that fails leaves out, or what cannot be written, the processes of the trial compile for themselves.
    """
    place = _place()
    if place is None or place.is_dir():
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        private = Path(tempfile.mkdtemp(dir=place.parent, prefix=_UNFINISHED))
        try:
            given = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
            await _import({**given, VARIABLE: str(private)})
            os.replace(private, place)  # refused if another process was first
        finally:
            shutil.rmtree(private, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    """Remove what processes that were killed have left: no import takes so long."""
    for folder in root.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > 2 * _LIMIT_S:
                shutil.rmtree(folder)


async def _import(environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-s", "-P", "-c", _PROGRAM, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT_S):
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            with closing_pipes(process):
                await process.wait()


def _file() -> Path | None:
    """The file of torch that is looked at; ``None`` without torch."""
    found = importlib.util.find_spec("torch")
    places = (found.submodule_search_locations or []) if found is not None else []
    files = [file for place in places if (file := Path(place) / _SEEN).is_file()]
    return files[0] if files else None


def _place() -> Path | None:
    """Where the bytecode of this Python and this torch is kept; ``None`` where it stands beside torch's sources."""
    seen = _file()
    if seen is None or Path(importlib.util.cache_from_source(str(seen))).exists():
        return None
    identity = f"{sys.version}\n{seen}\n{seen.stat().st_mtime_ns}"
    return cache_root() / "bytecode" / hashlib.sha256(identity.encode()).hexdigest()[:16]
