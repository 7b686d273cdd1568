"""The host: a warm process inside the sandbox that forks runners and kills what they leave behind.

It imports torch once and holds no device context: a fork is ready in milliseconds (CPU) or a third of a second (GPU). It runs
no candidate code. ``python -m engine.trial.runner.host FD`` serves the judge on an inherited socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable

from engine.problem.torch_modes.imports import without_collections
from engine.sandbox.bubblewrap import PRIVATE
from engine.trial.channel import Channel, ChannelClosed
from engine.trial.messages import (
    NOBODY,
    AllStopped,
    Done,
    Freeze,
    HostRequest,
    Reap,
    RunnerEnded,
    Spawn,
    Spawned,
    StillRunning,
    Stop,
    Thaw,
    ThawChildren,
)
from engine.trial.runner import runner

_ALONE = "ESPALIER_ALONE"
"""Environment variable set by the sandbox if the host has its own PID namespace."""
_PATIENCE_S = 2.0
"""Time limit for killing processes that keep forking and for removing files. Then the host exits, and its sandbox with it."""
_STOPPING_S = 0.5
"""Time limit for processes to stop. One that has run for ``_RUNNING_S`` since is being woken by another."""
_RUNNING_S, _RUNNING_ON_GPU_S = 0.2, 2.0
"""Beside a GPU a process does not stop while the driver works for it: the baseline of a softmax once took longer than 0.2 s."""
_WORKING_S = 0.05
"""Processor time of all processes until they have stopped, from the first look on: a signal takes microseconds, and what they
work meanwhile is in no call's time. Clock ticks are counted, of 10 ms. On a GPU the device's events time a call."""
_STARVED_S = 10.0
"""Time limit for processes that do not run: on a busy machine each waits for a core before it can stop."""
_MOST_TEXT = 4000
"""Bytes of a runner's standard error that are kept: the last ones of what its pipe holds."""
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve the judge until it closes the channel."""
    _fortify()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    _warm_up()
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # stderr is no longer read: nothing may block
    channel.send(Done())
    runners: set[int] = set()
    errors: dict[int, int] = {}
    try:
        while True:
            request: HostRequest
            request, fds = channel.receive(HostRequest)
            _answer(channel, runners, errors, request, fds)
    except ChannelClosed:
        _sweep(set())


def _fortify() -> None:
    """Runners have the same user id: deny them tracing this process and reading its memory, and adopt their orphans."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _warm_up() -> None:
    """Import what every runner needs, without a device context or threads."""
    with without_collections():
        import torch  # noqa: F401

        import engine.problem.reference
        import engine.trial.runner.launchers
        import engine.trial.runner.modules  # noqa: F401
        from engine.problem.torch_modes import vector_math

        vector_math.settle()
        if _on_gpu():
            from engine.trial.shared.cuda import driver

            driver.preload()
            # A dispatch mode imports dynamo: a second for every process with weights.
            for name in ("triton", "torch._dynamo"):
                with contextlib.suppress(Exception):  # missing, or made for another torch: a module that needs it will say so
                    importlib.import_module(name)


def _on_gpu() -> bool:
    return os.environ.get("ESPALIER_DEVICE", "cpu") != "cpu"


def _answer(channel: Channel, runners: set[int], errors: dict[int, int], request: HostRequest, fds: list[int]) -> None:
    """``errors``: the pipe from each runner's standard error."""
    match request:
        case Spawn(few_queues):
            read, write = os.pipe()
            os.set_blocking(read, False)
            os.set_blocking(write, False)  # a kernel that writes more than the pipe holds must not block
            pid = os.fork()
            if pid == 0:
                if few_queues:
                    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "2"
                _become_runner(channel, fds[0], write, (read, *errors.values()))
            for fd in (write, *fds):
                os.close(fd)
            runners.add(pid)
            errors[pid] = read
            channel.send(Spawned(pid))
        case Freeze():
            _signal_all(signal.SIGSTOP)
            channel.send(Done())
        case Stop():
            _signal_all(signal.SIGSTOP)
            channel.send(AllStopped(not runners.issuperset(_other_pids())) if _come_to_rest(runners) else StillRunning())
        case Thaw(pid):
            _wake(set() if pid == NOBODY else runners - {pid})
            channel.send(Done())
        case ThawChildren():
            _wake(runners)
            channel.send(Done())
        case Reap(pid):
            runners.discard(pid)
            channel.send(_reap(pid, runners, errors.pop(pid, None)))


def _become_runner(channel: Channel, fd: int, errors: int, others: Iterable[int]) -> None:
    """Serve the judge on ``fd``; standard error goes to the pipe ``errors``, and the host's ends of pipes are closed."""
    status = 1
    try:
        channel.close()
        os.dup2(errors, sys.stderr.fileno())
        for pipe in (errors, *others):
            os.close(pipe)
        runner.confine_child()
        runner.serve(socket.socket(fileno=fd))
        status = 0
    finally:
        os._exit(status)


def _signal_all(number: int) -> None:
    """Signal every other process: all at once in our own PID namespace, else one by one."""
    if os.environ.get(_ALONE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        return
    for pid in _other_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wake(asleep: set[int]) -> None:
    """Resume every process but these."""
    if not asleep:
        _signal_all(signal.SIGCONT)
        return
    for pid in _other_pids():
        if pid not in asleep:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _come_to_rest(runners: set[int]) -> bool:
    """Whether every thread of every other process has stopped: seen twice, to exclude that one wakes another in between.

    On a CPU also false if they went on working before they stopped.
    """
    began = time.monotonic()
    before: dict[int, float] = {}
    on_gpu = _on_gpu()
    running_s = _RUNNING_ON_GPU_S if on_gpu else _RUNNING_S
    seen = 0
    while seen < 2:
        if all((pid not in runners or _stopped(pid)) and _threads_at_rest(pid) for pid in _other_pids()):
            seen += 1
            continue
        seen = 0
        before = before or _processor_seconds()
        waited = time.monotonic() - began
        if waited > _STARVED_S or (waited > _STOPPING_S and _used_since(before) > running_s):
            return False
        if not os.environ.get(_ALONE):  # the child of a process that was just forking is not stopped yet
            _signal_all(signal.SIGSTOP)
        time.sleep(0.0002)
    return on_gpu or not before or _used_since(before) <= _WORKING_S


def _processor_seconds() -> dict[int, float]:
    """What every other process has used so far."""
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: sum(map(int, _fields(f"/proc/{pid}")[11:13])) / tick for pid in _other_pids()}


def _used_since(before: dict[int, float]) -> float:
    return sum(used - before.get(pid, 0.0) for pid, used in _processor_seconds().items())


def _stopped(runner: int) -> bool:
    """Whether a child has stopped with all its threads but those that have begun to end: Linux reports it once the last thread
    has stopped, until the child is resumed. Faster than reading every thread's state. True for one that is gone."""
    try:
        return os.waitid(os.P_PID, runner, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _threads_at_rest(pid: int) -> bool:
    """Whether every thread has stopped or ended. One that ends may sleep for long meanwhile, as it closes what watches files;
    then its children get a signal, which may be ``SIGCONT``."""
    return all(_state(f"/proc/{pid}/task/{task}") in _AT_REST for task in _tasks(pid))


def _reap(pid: int, runners: set[int], errors: int | None) -> RunnerEnded:
    text = "" if errors is None else _written(errors)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return RunnerEnded(-1, 0, text)
    killed = _sweep(runners)
    if not runners and os.environ.get(_ALONE):
        _empty_folders()
    return RunnerEnded(status, killed, text)


def _written(pipe: int) -> str:
    """The last of what a runner wrote to its standard error, as far as its pipe held it."""
    with os.fdopen(pipe, "rb", buffering=0) as source:
        return (source.read(1 << 20) or b"")[-_MOST_TEXT:].decode(errors="replace")


def _sweep(runners: set[int]) -> int:
    """Kill and count what a runner left behind (also outside its process group), except ``runners`` and their descendants.

    Exits if processes fork faster than they can be killed.
    """
    killed = 0
    deadline = time.monotonic() + _PATIENCE_S
    while orphans := [pid for pid in _orphans(runners) if not _has_ended(pid)]:
        killed = max(killed, len(orphans))
        if not runners:
            _signal_all(signal.SIGKILL)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            sys.exit("a kernel left processes that cannot be killed")
        time.sleep(0.001)
    for pid in _orphans(runners):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return killed


def _has_ended(pid: int) -> bool:
    """Whether every thread of a process has ended: a process whose first thread has ended looks dead while others run."""
    return all(_state(f"/proc/{pid}/task/{task}") in _GONE for task in _tasks(pid))


def _orphans(runners: set[int]) -> list[int]:
    """Processes that descend from no living runner: orphans of a dead runner are children of the host."""
    known = _with_descendants(runners)
    return [pid for pid in _other_pids() if pid not in known]


def _empty_folders() -> None:
    """Remove what a kernel wrote before the next one runs, or raise. Mounts in these folders are read-only to kernels.

    Exits if there is more than can be removed in a moment: a new host starts sooner, with empty folders.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
    for folder in PRIVATE:
        for entry in os.scandir(folder):
            if os.path.ismount(entry.path):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, onerror=_open_and_retry)
            else:
                os.unlink(entry.path)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _open_and_retry(remove: Callable[[str], object], path: str, _: object) -> None:
    for place in (os.path.dirname(path), path):
        os.chmod(place, 0o700)
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        remove(path)


def _other_pids() -> list[int]:
    """Every other process of our PID namespace; every descendant if the namespace is shared."""
    mine = os.getpid()
    pids = _pids() if os.environ.get(_ALONE) else _with_descendants({mine})
    return sorted(pid for pid in pids if pid not in (1, mine))


def _with_descendants(roots: set[int]) -> set[int]:
    """``roots`` with all their descendants."""
    parents = {pid: _parent(pid) for pid in _pids()} if roots else {}
    tree = set(roots)
    while found := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= found
    return tree


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


_GONE = "ZX"
_AT_REST = _GONE + "Tt"


def _fields(place: str) -> list[str]:
    """The fields of ``/proc/…/stat`` after the command's name; those of a dead process if it does not exist."""
    try:
        with open(f"{place}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ["X", "0"]


def _state(place: str) -> str:
    """The first of ``_fields``. Hundreds of threads may be looked at between two calls: not as slow as reading a text."""
    try:
        fd = os.open(f"{place}/stat", os.O_RDONLY)
    except OSError:
        return "X"
    try:
        return chr(os.read(fd, 512).rpartition(b") ")[2][0])
    except (OSError, IndexError):
        return "X"
    finally:
        os.close(fd)


def _parent(pid: int) -> int:
    return int(_fields(f"/proc/{pid}")[1])


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


if __name__ == "__main__":
    main()
