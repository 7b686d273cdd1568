"""The host: a warm process inside the sandbox that forks one runner per trial and kills what it leaves behind.

It imports torch once and holds no device context, so a fork is ready in milliseconds (CPU) or a third of a second (GPU). It
runs no code of a candidate's. ``python -m engine.trial.host FD`` serves the judge on an inherited socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time

from engine.trial import runner
from engine.trial.wire import Channel, ChannelClosed, Done, Ended, Freeze, HostRequest, Reap, Spawn, Spawned, Thaw

_ALONE = "ESPALIER_ALONE"
"""Set in the environment by the sandbox when the host has a process-id space of its own."""
_PATIENCE_S = 2.0
"""How long a sweep may chase processes that keep forking; the judge then ends the whole sandbox."""


def main() -> None:
    """Serve the judge until it closes the channel."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    _warm_up()
    channel.send(Done())
    runners: set[int] = set()
    try:
        while True:
            request: HostRequest
            request, fds = channel.receive(HostRequest)
            _answer(channel, runners, request, fds)
    except ChannelClosed:
        _sweep(set())


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
        case Freeze(pid):
            _signal_all(pid, signal.SIGSTOP)
            channel.send(Done())
        case Thaw(pid):
            _signal_all(pid, signal.SIGCONT)
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


def _signal_all(pid: int, number: int) -> None:
    """Signal everything but ourselves: all of the process-id space where it is ours alone, else the runner's group."""
    with contextlib.suppress(ProcessLookupError):
        if os.environ.get(_ALONE):
            os.kill(-1, number)
        else:
            os.killpg(pid, number)


def _reap(pid: int, runners: set[int]) -> Ended:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return Ended(-1, 0, 0)
    return Ended(status, _sweep(runners), usage.ru_maxrss * 1024)


def _sweep(runners: set[int]) -> int:
    """Kill what a runner left behind (it may have forked away from its group) and count it; ``runners`` are left alone."""
    if not os.environ.get(_ALONE):
        return 0
    left = 0
    deadline = time.monotonic() + _PATIENCE_S
    while others := [pid for pid in _others() if pid not in runners]:
        left = max(left, len(others))
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            for pid in others:
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    return left


def _others() -> list[int]:
    """Processes of this process-id space besides init and ourselves."""
    mine = (1, os.getpid(), os.getppid())
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in mine and _alive(int(name))]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


if __name__ == "__main__":
    main()
