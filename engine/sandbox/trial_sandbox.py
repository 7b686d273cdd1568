"""The sandbox of a trial: command lines of the supervisor, the judge and the hosts, and whether it works here.

    bwrap ── supervisor                        first process of a PID namespace, every capability of its user namespace
               ├── bwrap ── judge              the supervisor's files and processes; no capability, filtered system calls
               └── bwrap ── host ── runners    own PID namespace, /tmp and network; a user namespace below the supervisor's

The outer sandbox has no network, no home and a read-only file system. The judge is in the PID namespace around the runners': it
resumes them, and reads their times in /proc and their memory. Inner bubblewrap processes see no more than the outer sandbox: a
judge that takes one over gains nothing. Hosts enter their user namespace last, because Linux mounts no new /proc in one where
parts of an earlier /proc are covered.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import engine
from engine.sandbox import bubblewrap, python_process
from engine.sandbox.supervisor import CHANNEL, FILTER, NAMESPACE, Orders, SandboxedCommand

_PROBE_S = 20.0
_CPU_INFORMATION = Path("/sys/devices/system")
"""Where the judge reads the sizes of caches."""


def outer(command: Sequence[str], device: str) -> list[str]:
    """The command line that runs ``command`` as the supervisor of a trial on ``device``."""
    readable = [_CPU_INFORMATION] if device == "cpu" else []
    return [_bwrap(), *bubblewrap.SUPERVISOR, *python_process.file_system(device, readable), "--", *command]


def supervisor(lifeline: int) -> list[str]:
    """The supervisor's command."""
    return [sys.executable, "-S", "-s", "-P", "-m", "engine.sandbox.supervisor", str(lifeline)]


def judge(command: Sequence[str], environment: Mapping[str, str], *, filtered: bool) -> SandboxedCommand:
    """The judge, started by the supervisor."""
    shared = ["--dev-bind", "/", "/", "--chdir", "/tmp"]
    argv = [_bwrap(), *bubblewrap.NESTED, *_filter(filtered=filtered), *shared, "--", *command]
    return SandboxedCommand(argv, environment)


def host(device: str, *, filtered: bool, command: Sequence[str] = ()) -> SandboxedCommand:
    """A host of runners, started by the supervisor."""
    command = command or [sys.executable, "-s", "-P", "-m", "engine.trial.runner.host", CHANNEL]
    argv = [_bwrap(), *bubblewrap.NESTED_ALONE, *_filter(filtered=filtered), "--userns2", NAMESPACE]
    argv += [*python_process.file_system(device), "--", *command]
    return SandboxedCommand(argv, python_process.environment(device, alone=True, threads=1))


def _bwrap() -> str:
    return shutil.which("bwrap") or "bwrap"


def _filter(*, filtered: bool) -> list[str]:
    return ["--seccomp", FILTER] if filtered else []


def supervisor_environment() -> dict[str, str]:
    """The supervisor's environment."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    package_root = str(Path(engine.__file__).parent.parent)
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**kept, "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(dict.fromkeys([package_root, *others]))}


@cache
def judge_reason() -> str | None:
    """Why the judge, and with it the reference, cannot run in the sandbox here; ``None`` if it can. Runs it, once or twice."""
    reason = bubblewrap.bubblewrap_reason()
    if reason is not None:
        return reason
    filtered = bubblewrap.filter_reason() is None
    try:
        return bubblewrap.tried_twice(lambda: _nesting_error(filtered=filtered)) or None
    except OSError as failed:
        return f"bubblewrap does not start: {failed.strerror}"


def _nesting_error(*, filtered: bool) -> str:
    """Why nested sandboxes do not start; empty if they do. Raises OSError."""
    nothing = ["/bin/true"]
    orders = Orders(
        judge(nothing, {}, filtered=filtered), host("cpu", filtered=filtered, command=nothing), -1, filtered, probe=True
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(orders.encode())
        try:
            done = subprocess.run(
                outer(supervisor(theirs.fileno()), "cpu"), pass_fds=(theirs.fileno(),), env=supervisor_environment(),
                stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"nested sandboxes do not start within {_PROBE_S:g} s"
    if done.returncode == 0:
        return ""
    words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
    return f"nested sandboxes do not work here: {words[-1]}"


async def find_judge_reason() -> str | None:
    """``judge_reason``, without blocking the event loop."""
    return await asyncio.to_thread(judge_reason)
