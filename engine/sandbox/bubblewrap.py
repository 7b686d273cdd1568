"""Bubblewrap: checks whether it works here, and builds the arguments that all sandboxes share.

A sandbox has no network, no capabilities, its own PID namespace and a read-only view of the system. When its first process
dies, every process in it dies. ``confinement`` (compilers, tools) and ``python_process`` (hosts) add what their programs need.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from engine.sandbox import seccomp

ISOLATION = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
"""Namespaces and capabilities of a sandbox."""
SUPERVISOR = (
    "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--as-pid-1", "--die-with-parent",
    "--new-session",
)  # fmt: skip
"""The same for the sandbox around a trial (``trial_sandbox``), whose first process starts further ones."""
NESTED = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
"""A sandbox inside it that shares its namespaces."""
NESTED_ALONE = (
    "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1", *NESTED,
)  # fmt: skip
"""One with its own namespaces, but for the user namespace."""
PROC = (
    "--proc", "/proc", "--ro-bind-try", "/proc/sys", "/proc/sys", "--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger",
)  # fmt: skip
"""A private /proc. Files in it that root can write without any capability are mounted read-only."""
DEV = ("--dev", "/dev")
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
"""Folders that every program reads: system files, Debian's compiler links, the loader's cache."""
PRIVATE = ("/tmp", "/dev/shm")
"""Folders that are private to a sandbox. The host empties them when the last runner of a kernel has ended."""
_PRIVATE_BYTES = 1 << 30
"""Size limit of one private folder, in bytes."""
_PROBE_S = 20.0


def readable(folders: Sequence[str]) -> list[str]:
    """Arguments that mount those of ``folders`` that exist, read-only at the same path."""
    return [word for folder in folders for word in ("--ro-bind-try", folder, folder)]


def mounted(option: str, paths: Iterable[object]) -> list[str]:
    """Arguments that mount ``paths`` at the same path with ``option``, such as ``--bind``; a missing path is an error."""
    return [word for path in paths for word in (option, str(path), str(path))]


def empty(folders: Iterable[str], *, limited: bool = False) -> list[str]:
    """Arguments that mount an empty tmpfs on ``folders``; ``limited``: of bounded size, where this bubblewrap supports it."""
    return [word for folder in folders for word in (*(_size_limit() if limited else ()), "--tmpfs", folder)]


def private_folders() -> list[str]:
    """Arguments for the private folders, which are of bounded size."""
    return empty(PRIVATE, limited=True)


def bubblewrap_reason(executable: str = "bwrap", *, proc: bool = True) -> str | None:
    """Why bubblewrap cannot be used here; ``None`` if it works. Runs it once.

    Some containers forbid mounting /proc. Compilers do not need it: their sandbox is probed with ``proc=False``.
    """
    path = shutil.which(executable)
    if path is None:
        return "bubblewrap (bwrap) is not installed"
    try:
        error = _probe_error([path, *(PROC if proc else ())])
    except OSError as failed:
        return f"bubblewrap does not start: {failed.strerror}"
    return f"bubblewrap does not work here: {error}" if error else None


@cache
def filter_reason() -> str | None:
    """Why bubblewrap cannot install a system-call filter here; ``None`` if it can. Runs it once."""
    fd = seccomp.descriptor()
    if fd is None:
        return "system calls are not filtered: no filter for this CPU architecture"
    try:
        error = _probe_error(["bwrap", *PROC], fd)
    except OSError as failed:
        error = str(failed)
    finally:
        os.close(fd)
    return f"system calls are not filtered: {error}" if error else None


def _probe_error(bwrap: Sequence[str], filter_fd: int | None = None) -> str:
    """The first error line of a minimal sandbox; empty if it works. Raises OSError."""
    filtered = () if filter_fd is None else ("--seccomp", str(filter_fd))
    command = [*bwrap, *ISOLATION, *readable(SYSTEM), *DEV, *empty(["/tmp"]), *filtered, "--", "/bin/true"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False,
            pass_fds=() if filter_fd is None else (filter_fd,),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer in {_PROBE_S:g} s"
    if done.returncode == 0:
        return ""
    return (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"])[0]


@cache
def _size_limit() -> tuple[str, ...]:
    """The size arguments of a private folder, which is in memory; empty where this bubblewrap has no ``--size``."""
    usage = subprocess.run(["bwrap", "--help"], capture_output=True, timeout=_PROBE_S, check=False).stdout
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ("--size", str(min(_PRIVATE_BYTES, memory // 16))) if b"--size" in usage else ()


@contextlib.contextmanager
def system_calls(*, filtered: bool) -> Iterator[int | None]:
    """The filter's descriptor, open while one bubblewrap is started; ``None`` without a filter."""
    fd = seccomp.descriptor() if filtered and filter_reason() is None else None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
