"""The runner: one forked child that holds the kernel under test and the inputs, and never the expected output.

It sends ``RunnerReady`` once its device context exists, then serves the judge's requests on one channel. All its replies are
claims. The host kills it with its whole process group. Nothing here enforces a limit that the judge relies on.
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
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.domain.errors import head_and_tail
from engine.trial.channel import Channel, ChannelClosed
from engine.trial.messages import (
    WANTS_GPU,
    CheckWorkspace,
    ClaimedTimes,
    Fault,
    LoadKernel,
    Renew,
    RunKernel,
    RunnerReady,
    RunnerRequest,
    Switch,
)

if TYPE_CHECKING:
    from engine.trial.runner.calls import Launcher

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_MIB = 1 << 20
_RLIMIT_SIGPENDING = 11
"""Not in ``resource``. Each POSIX timer counts as one pending signal."""
_MOST_TIMERS = 64
"""Timers expire while their process is stopped: the interrupts of thousands would slow the baseline's calls."""


def confine_child() -> None:
    """Prepare a fresh child before it runs untrusted code: own session, killed with the host, resource limits."""
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_DUMPABLE, 1)
    limits = [
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 2048 * _MIB), (resource.RLIMIT_NOFILE, 1024),
        (_RLIMIT_SIGPENDING, _MOST_TIMERS),
    ]  # fmt: skip
    if os.environ.get("ESPALIER_ALONE"):
        limits.append((resource.RLIMIT_NPROC, 4096))
    if os.environ.get("ESPALIER_DEVICE", "cpu") == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits.append((resource.RLIMIT_DATA, memory // 4 * 3))
    for what, limit in limits:
        _, hard = resource.getrlimit(what)
        ceiling = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (ceiling, ceiling))
    # If memory runs out anyway, the operating system kills this process first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def serve(sock: socket.socket) -> None:
    """Answer the judge until the channel closes. The exit status means nothing: a missing reply is a crash."""
    channel = Channel(sock)
    launcher: Launcher | None = None
    kept: dict[int, Launcher] = {}
    start, process = time.perf_counter(), os.getpid()
    _open_device()
    try:
        channel.send(RunnerReady(time.perf_counter() - start))
        plain_call: Callable[[int], float] | None = None
        while True:
            if plain_call is not None:
                channel.answer_orders(plain_call)
            request: RunnerRequest
            request, fds = channel.receive_order(RunnerRequest)
            match request:
                case RunKernel():
                    assert launcher is not None
                    called = _call(launcher, request)
                    if os.getpid() != process:
                        return  # one that the code under test has forked: it does not answer beside this one
                    if isinstance(called, ClaimedTimes):
                        channel.send_times(called)
                    else:
                        channel.send(called)
                case CheckWorkspace():
                    channel.send(_checked_workspace(launcher))
                case Switch(number):
                    launcher = kept[number]
                    plain_call = launcher.plain_call()
                    channel.send(RunnerReady(0.0))
                case Renew():
                    launcher = plain_call = None
                    kept.clear()
                    channel.send(_renewed())
                case LoadKernel():
                    launcher = plain_call = None
                    if not request.kept:
                        kept.clear()
                    launcher, reply = _load(request, fds, channel)
                    if os.getpid() != process:
                        return
                    if request.kept and launcher is not None:
                        kept[request.kept] = launcher
                    plain_call = launcher.plain_call() if launcher is not None else None
                    channel.send(reply)
    except ChannelClosed:
        return


def _device() -> str:
    return os.environ.get("ESPALIER_DEVICE", "cpu")


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _open_device() -> None:
    """Create the device context ahead of the first ``LoadKernel``, which reports errors that occur here."""
    device = _device()
    if device == "cpu":
        return
    from engine.domain.errors import DeviceError
    from engine.trial.runner.device_context import open_context

    with contextlib.suppress(DeviceError):
        open_context(_index(device))


def _renewed() -> RunnerReady | Fault:
    """Replace the device context; a fault ends this process."""
    from engine.trial.runner.device_context import renew_context

    start = time.perf_counter()
    try:
        renew_context(_index(_device()))
    except BaseException as error:
        return Fault("crashed", _error_text(error))
    return RunnerReady(time.perf_counter() - start)


def _load(load: LoadKernel, fds: list[int], channel: Channel) -> tuple[Launcher | None, RunnerReady | Fault]:
    from engine.domain.errors import EspalierError
    from engine.trial.runner.calls import LauncherError, LentOperands, OutputError
    from engine.trial.runner.launchers import make_launcher
    from engine.trial.runner.modules import ModuleLauncher
    from engine.trial.shared.arena import borrow, close_descriptors

    start = time.perf_counter()
    try:
        import torch

        torch.set_num_threads(load.threads)
        if load.device != "cpu":
            from engine.trial.runner.device_context import context_of

            context_of(_index(load.device))
        inputs = borrow(load.inputs, fds)
        outputs = borrow(load.outputs, fds)
        lent = LentOperands(load.slots, inputs, outputs)
        gate = borrow(load.gate, fds) if load.gate is not None else None
        launcher = make_launcher(load, lent, fds.pop(0) if fds else None, gate, channel.send)
    except (LauncherError, OutputError) as error:
        return None, Fault("rejected" if isinstance(error, OutputError) else "crashed", str(error))
    except EspalierError as error:
        return None, Fault("impossible", str(error))
    except BaseException as error:
        return None, Fault("crashed", _error_text(error))
    finally:
        close_descriptors(fds)
    weights = (launcher.unmatched, launcher.different) if isinstance(launcher, ModuleLauncher) else ()
    return launcher, RunnerReady(time.perf_counter() - start, *weights)


def _call(launcher: Launcher, order: RunKernel) -> ClaimedTimes | Fault:
    try:
        return launcher.call(order)
    except BaseException as error:
        from engine.trial.runner.calls import OutputError

        if isinstance(error, OutputError):
            return Fault("mismatch", str(error))
        return Fault("crashed", _error_text(error))


def _checked_workspace(launcher: Launcher | None) -> RunnerReady | Fault:
    from engine.trial.runner.launchers import HostLauncher, PlanLauncher

    try:
        overrun = isinstance(launcher, HostLauncher | PlanLauncher) and launcher.workspace.is_overrun()
    except BaseException as error:
        return Fault("crashed", _error_text(error))
    return Fault("rejected", "wrote past the end of its workspace") if overrun else RunnerReady(0.0)


def _error_text(error: BaseException) -> str:
    """The traceback with the line in the candidate's file; the last line is the error, and what it means on a CPU.

    Of a long message (a compiler's, for example) the first two lines are repeated there: its end is advice on options.
    The candidate's exception may refuse to become a text, or become one that no encoding has.
    """
    last = head_and_tail(_encodable("".join(traceback.format_exception(error)[-6:])), _LONGEST_TEXT)
    said = _message(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if _device() == "cpu" and (wants := next(filter(_asks_for_gpu, lines), "")):
        return f"{last}\n{WANTS_GPU}: {type(error).__name__}: {wants[:_LONGEST_LINES]}"
    if type(error) is NameError:
        return f"{last}\nNameError: {said} in the kernel's file: import or define it there, even if the reference does"
    return last if len(lines) < 2 else f"{last}\n{type(error).__name__}: {' '.join(lines[:2])[:_LONGEST_LINES]}"


def _message(error: BaseException) -> str:
    """What the error says; nothing if it fails to say it."""
    try:
        return _encodable(str(error))
    except Exception:
        return ""


def _encodable(text: str) -> str:
    """The text with lone surrogates, which no message can carry, as ``\\udc80``."""
    return text.encode(errors="backslashreplace").decode()


def _asks_for_gpu(line: str) -> bool:
    from engine.problem.loading import asks_for_gpu

    return asks_for_gpu(line)


_LONGEST_TEXT, _LONGEST_LINES = 4000, 600
