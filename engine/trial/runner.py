"""The runner: one forked child that holds the kernel under test and the inputs, and never the expected output.

It says ``Ready`` once its device context stands, then obeys two messages, ``Load`` and ``Call``, on one channel. Everything it
answers is a claim. It is killed by the host with its whole process group; nothing here enforces a limit that the judge relies
on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import time
import traceback
from typing import TYPE_CHECKING

from engine.trial.wire import Call, Called, Channel, ChannelClosed, Fault, Load, Ready, RunnerRequest

if TYPE_CHECKING:
    from engine.trial.launchers import Launcher

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_MIB = 1 << 20


def confine_child() -> None:
    """What a fresh child does before it touches anything of a stranger's: own process group, dies with the host, limits."""
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_DUMPABLE, 1)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 2048 * _MIB), (resource.RLIMIT_NOFILE, 1024)]
    if os.environ.get("ESPALIER_ALONE"):
        limits.append((resource.RLIMIT_NPROC, 4096))
    if os.environ.get("ESPALIER_DEVICE", "cpu") == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits.append((resource.RLIMIT_DATA, memory // 4 * 3))
    for what, limit in limits:
        _, hard = resource.getrlimit(what)
        ceiling = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (ceiling, ceiling))
    # Should memory run out all the same, this is the process to end.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def serve(sock: socket.socket) -> None:
    """Answer the judge until the channel closes. Never returns an error by exit status: silence is a crash."""
    channel = Channel(sock)
    launcher: Launcher | None = None
    start = time.perf_counter()
    _open_device()
    try:
        channel.send(Ready(time.perf_counter() - start))
        while True:
            request: RunnerRequest
            request, fds = channel.receive(RunnerRequest)
            match request:
                case Load():
                    launcher = None
                    launcher, reply = _load(request, fds)
                    channel.send(reply)
                case Call(slot, hold_us):
                    assert launcher is not None
                    channel.send(_called(launcher, slot, hold_us))
    except ChannelClosed:
        return


def _open_device() -> None:
    """Make the device context ahead of the first ``Load``; what goes wrong here shows again there, with words."""
    device = os.environ.get("ESPALIER_DEVICE", "cpu")
    if device == "cpu":
        return
    from engine.domain.errors import DeviceError
    from engine.trial.gpu import driver

    with contextlib.suppress(DeviceError):
        driver.Context.open(int(device.partition(":")[2] or 0))


def _load(load: Load, fds: list[int]) -> tuple[Launcher | None, Ready | Fault]:
    from engine.domain.errors import EspalierError
    from engine.trial.launchers import LauncherError, Loan, OutputError, make
    from engine.trial.lending import borrow

    start = time.perf_counter()
    try:
        import torch

        torch.set_num_threads(load.threads)
        if load.device != "cpu":
            from engine.trial.gpu import driver

            driver.Context.open(int(load.device.partition(":")[2] or 0))
        inputs = borrow(load.inputs, fds)
        outputs = borrow(load.outputs, fds)
        loan = Loan(load.slots, inputs, outputs)
        launcher = make(load, loan, fds.pop(0) if fds else None)
    except (LauncherError, OutputError) as error:
        return None, Fault("rejected" if isinstance(error, OutputError) else "crashed", str(error))
    except EspalierError as error:
        return None, Fault("impossible", str(error))
    except BaseException as error:
        return None, Fault("crashed", _told(error))
    return launcher, Ready(time.perf_counter() - start)


def _called(launcher: Launcher, slot: int, hold_us: float) -> Called | Fault:
    from engine.trial.launchers import OutputError

    try:
        return launcher.call(slot, hold_us)
    except OutputError as error:
        return Fault("mismatch", str(error))
    except BaseException as error:
        return Fault("crashed", _told(error))


def _told(error: BaseException) -> str:
    """The exception with the line of the candidate's file it came from; its last line is what happened, in a sentence.

    A message says that first. A long one, of a compiler's say, ends with advice on switches.
    """
    last = "".join(traceback.format_exception(error)[-6:])[-4000:]
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return last if len(said) < 2 else f"{last}\n{type(error).__name__}: {' '.join(said[:2])}"
