"""The device context of a runner, which all that it loads shares, and its replacement for the next kernel. No torch."""

from __future__ import annotations

from functools import cache

from engine.trial.runner.stopwatch import Stopwatch
from engine.trial.shared.cuda import device_memory
from engine.trial.shared.cuda.driver import Context


@cache
def context_of(device: int) -> Context:
    """The context on ``cuda:device``, made at first use and retained once. Raises :class:`DeviceError`."""
    return Context.open(device)


@cache
def stopwatch_of(device: int, tools: bytes) -> Stopwatch:
    """The stopwatch of the context, for all kernels that it loads: its buffer takes twice the size of the L2 cache."""
    return Stopwatch(context_of(device), tools=tools)


def open_context(device: int) -> None:
    """Make the context, ready for kernels. Raises :class:`DeviceError`."""
    context_of(device).keep_pool_memory()


def renew_context(device: int) -> None:
    """Replace the context by a fresh one. Raises :class:`DeviceError`.

    Nothing of the kernel before is left: code with its variables, memory and its limits, heap and errors of the device are the
    context's. Lent memory is unmapped here, and a workspace is filled before its first use. On the host only trusted code has
    run.
    """
    stopwatch_of.cache_clear()  # its memory, events and code end with the context
    device_memory.give_back_all()
    context_of(device).reset()
    context_of.cache_clear()
    open_context(device)
