"""Bubblewrap: checks whether it works here, and builds the arguments that all sandboxes share.

A sandbox has no network, no capabilities, its own PID namespace and a read-only view of the system. When its first process
dies, every process in it dies. ``confinement`` (compilers, tools) and ``python_process`` (hosts) add what their programs need.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from engine.sandbox import seccomp

_LOG = logging.getLogger(__name__)

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
NO_TERMINALS = ("--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts")
"""After ``DEV``. The operating system sends a stopped session ``SIGCONT`` when its terminal closes, which may be long after the
last process closed it: a descriptor that is on its way through a socket is closed some ms later."""
_NO_DEVICES = ("bwrap", "--dev-bind", "/", "/", *DEV, "--die-with-parent")
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
"""Folders that every program reads: system files, Debian's compiler links, the loader's cache."""
PRIVATE = ("/tmp", "/dev/shm")
"""Folders that are private to a sandbox. The host empties them when the last runner of a kernel has ended."""
_PRIVATE_BYTES = 1 << 30
"""Size limit of one private folder, in bytes."""
_PROBE_S = 20.0
_WORKING: set[tuple[str, bool]] = set()
"""Executables that worked, with or without a private /proc."""
_NAME = "bwrap: "
"""How every message of bubblewrap begins."""


def own_error(output: str) -> str:
    """Bubblewrap's message, if a command's output begins with one: the command was not run. Else empty."""
    return output.splitlines()[0].removeprefix(_NAME) if output.startswith(_NAME) else ""


def will_retry(reason: str) -> None:
    """Say in the log why bubblewrap is started once more."""
    _LOG.warning("bubblewrap did not start and is tried once more: %s", reason)


def tried_twice(probe: Callable[[], str]) -> str:
    """The error of a probe, which is repeated once if it fails: on a machine under load a start of bubblewrap can fail.

    Empty if one of them worked. Two equal errors are given once. Raises OSError where ``probe`` does.
    """
    first = probe()
    if not first:
        return ""
    will_retry(first)
    second = probe()
    return second if second in ("", first) else f"{second}; before: {first}"


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
    """Why bubblewrap cannot be used here; ``None`` if it works. Runs it; what worked once is not tried again.

    Some containers forbid mounting /proc. Compilers do not need it: their sandbox is probed with ``proc=False``.
    """
    path = shutil.which(executable)
    if path is None:
        return "bubblewrap (bwrap) is not installed"
    if (path, proc) in _WORKING:
        return None
    try:
        error = tried_twice(lambda: _probe_error([path, *(PROC if proc else ())]))
    except OSError as failed:
        return f"bubblewrap does not start: {failed.strerror}"
    if error:
        return f"bubblewrap does not work here: {error}"
    _WORKING.add((path, proc))
    return None


@cache
def filter_reason() -> str | None:
    """Why bubblewrap cannot install a system-call filter here; ``None`` if it can. Runs it."""
    try:
        error = tried_twice(_filter_error)
    except OSError as failed:
        error = str(failed)
    return f"system calls are not filtered: {error}" if error else None


def _filter_error() -> str:
    fd = seccomp.descriptor()
    if fd is None:
        return "no filter for this CPU architecture"
    try:
        return _probe_error(["bwrap", *PROC], fd)
    finally:
        os.close(fd)


def without_devices(command: Sequence[str]) -> list[str]:
    """``command`` where no device file of hardware exists, and all else as it is; unchanged where sandboxes cannot nest.

    For trusted programs whose own children are sandboxed.
    """
    return [*_NO_DEVICES, "--", *command] if _nests() else list(command)


@cache
def _nests() -> bool:
    """Whether a sandbox works in a process without devices. Runs one."""
    try:
        return shutil.which("bwrap") is not None and not tried_twice(lambda: _probe_error([*_NO_DEVICES, "--", "bwrap"]))
    except OSError:
        return False


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
