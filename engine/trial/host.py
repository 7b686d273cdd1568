"""The host: a warm process inside the sandbox that forks one runner per trial and kills what it leaves behind.

It imports torch once and holds no device context, so a fork is ready in milliseconds (CPU) or a third of a second (GPU). It
runs no code of a candidate's. ``python -m engine.trial.host FD`` serves the judge on an inherited socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable

from engine.trial import runner
from engine.trial.wire import (
    NOBODY,
    PRIVATE,
    Channel,
    ChannelClosed,
    Done,
    Ended,
    Freeze,
    HostRequest,
    Moving,
    Reap,
    Rests,
    Spawn,
    Spawned,
    Still,
    Thaw,
    ThawCompany,
)

_ALONE = "ESPALIER_ALONE"
"""Set in the environment by the sandbox when the host has a process-id space of its own."""
_PATIENCE_S = 2.0
"""How long a sweep may chase processes that keep forking; the host then ends itself and with it the whole sandbox."""
_STOPPING_S = 0.5
"""How long processes may take to stop; one that still runs then is being woken by another."""
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve the judge until it closes the channel."""
    _fortify()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    _warm_up()
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # nobody reads it from now on: what runners print must go somewhere
    channel.send(Done())
    runners: set[int] = set()
    try:
        while True:
            request: HostRequest
            request, fds = channel.receive(HostRequest)
            _answer(channel, runners, request, fds)
    except ChannelClosed:
        _sweep(set())


def _fortify() -> None:
    """Runners have our user id: none may trace us, read our memory or interrupt us, and their orphans become our children."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _warm_up() -> None:
    """Import what every runner needs, so that a fork has it: no device context, no threads started."""
    import torch  # noqa: F401

    import engine.problem.reference
    import engine.trial.launchers
    import engine.trial.modules  # noqa: F401

    if os.environ.get("ESPALIER_DEVICE", "cpu") != "cpu":
        from engine.trial.gpu import driver

        driver.preload()


def _answer(channel: Channel, runners: set[int], request: HostRequest, fds: list[int]) -> None:
    match request:
        case Spawn():
            pid = os.fork()
            if pid == 0:
                _become_runner(channel, fds[0])
            for fd in fds:
                os.close(fd)
            runners.add(pid)
            channel.send(Spawned(pid))
        case Freeze():
            _signal_all(signal.SIGSTOP)
            channel.send(Done())
        case Still():
            channel.send(Rests(not runners.issuperset(_others())) if _come_to_rest(runners) else Moving())
        case Thaw(pid):
            _wake(set() if pid == NOBODY else runners - {pid})
            channel.send(Done())
        case ThawCompany():
            _wake(runners)
            channel.send(Done())
        case Reap(pid):
            runners.discard(pid)
            channel.send(_reap(pid, runners))


def _become_runner(channel: Channel, fd: int) -> None:
    status = 1
    try:
        channel.close()
        runner.confine_child()
        runner.serve(socket.socket(fileno=fd))
        status = 0
    finally:
        os._exit(status)


def _signal_all(number: int) -> None:
    """Signal everything but ourselves: at one stroke where the process-id space is ours alone, else one after the other."""
    if os.environ.get(_ALONE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        return
    for pid in _others():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wake(asleep: set[int]) -> None:
    """Let everything run but these."""
    if not asleep:
        _signal_all(signal.SIGCONT)
        return
    for pid in _others():
        if pid not in asleep:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _come_to_rest(runners: set[int]) -> bool:
    """Whether every thread of every other process has stopped: seen twice, so that none can have woken another meanwhile."""
    deadline = time.monotonic() + _STOPPING_S
    seen = 0
    while seen < 2:
        if all((pid in runners and _stopped(pid)) or _threads_at_rest(pid) for pid in _others()):
            seen += 1
        elif time.monotonic() > deadline:
            return False
        else:
            seen = 0
            if not os.environ.get(_ALONE):  # one of them was forking when it was stopped: its child was not
                _signal_all(signal.SIGSTOP)
            time.sleep(0.0002)
    return True


def _stopped(runner: int) -> bool:
    """Whether a child of ours has stopped as a whole: the kernel reports that once its last thread has, and takes the report
    back when it is woken. Many times faster than to look at each thread."""
    try:
        return os.waitid(os.P_PID, runner, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _threads_at_rest(pid: int) -> bool:
    return all(_state(f"/proc/{pid}/task/{task}") in _AT_REST for task in _tasks(pid))


def _reap(pid: int, runners: set[int]) -> Ended:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return Ended(-1, 0, 0)
    left = _sweep(runners)
    if not runners and os.environ.get(_ALONE):
        _empty_folders()
    return Ended(status, left, usage.ru_maxrss * 1024)


def _sweep(runners: set[int]) -> int:
    """Kill what a runner left behind (it may have forked away from its group) and count it; ``runners`` and what they started
    are left alone.

    Ends the host when they fork faster than they can be killed.
    """
    left = 0
    deadline = time.monotonic() + _PATIENCE_S
    while orphans := [pid for pid in _strangers(runners) if not _gone(pid)]:
        left = max(left, len(orphans))
        if not runners:
            _signal_all(signal.SIGKILL)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            sys.exit("a kernel left processes that cannot be ended")
        time.sleep(0.001)
    for pid in _strangers(runners):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return left


def _gone(pid: int) -> bool:
    """Whether nothing of a process runs any more. Its first thread can have ended, and look dead, while others go on."""
    return all(_state(f"/proc/{pid}/task/{task}") in _GONE for task in _tasks(pid))


def _strangers(runners: set[int]) -> list[int]:
    """What descends from no living runner: the dead one's orphans have become children of ours."""
    known = _family(runners)
    return [pid for pid in _others() if pid not in known]


def _empty_folders() -> None:
    """What a kernel wrote is gone before the next one runs; where that fails, so is the host. What the sandbox mounted there no
    kernel could write to."""
    for folder in PRIVATE:
        for entry in os.scandir(folder):
            if os.path.ismount(entry.path):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, onerror=_open_and_retry)
            else:
                os.unlink(entry.path)


def _open_and_retry(remove: Callable[[str], object], path: str, _: object) -> None:
    for place in (os.path.dirname(path), path):
        os.chmod(place, 0o700)
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        remove(path)


def _others() -> list[int]:
    """Every other process of our process-id space, or, where that is shared, every descendant."""
    mine = os.getpid()
    pids = _pids() if os.environ.get(_ALONE) else _family({mine})
    return sorted(pid for pid in pids if pid not in (1, mine))


def _family(roots: set[int]) -> set[int]:
    """``roots`` with all their descendants."""
    parents = {pid: _parent(pid) for pid in _pids()} if roots else {}
    family = set(roots)
    while found := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= found
    return family


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


_GONE = "ZX"
_AT_REST = _GONE + "Tt"


def _fields(place: str) -> list[str]:
    """The fields of ``/proc/…/stat`` behind the command's name; a process that has gone is dead."""
    try:
        with open(f"{place}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ["X", "0"]


def _state(place: str) -> str:
    return _fields(place)[0]


def _parent(pid: int) -> int:
    return int(_fields(f"/proc/{pid}")[1])


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


if __name__ == "__main__":
    main()
