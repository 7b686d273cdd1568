"""The device context of a runner, which all that it loads shares, and its replacement for the next kernel. No torch."""

from __future__ import annotations

import secrets
from functools import cache

from engine.trial.runner.stopwatch import Stopwatch
from engine.trial.shared.cuda import device_memory
from engine.trial.shared.cuda.device_memory import OwnMemory
from engine.trial.shared.cuda.driver import Context

_PAGE_BYTES = 2 << 20
_MOST_PAGES = 16
_offset: OwnMemory | None = None
"""Memory that nothing uses: what is allocated after it lies elsewhere in each process."""


@cache
def context_of(device: int) -> Context:
    """The context on ``cuda:device``, made at first use and retained once. Raises :class:`DeviceError`."""
    return Context.open(device)


@cache
def stopwatch_of(device: int, tools: bytes) -> Stopwatch:
    """The stopwatch of the context, for all kernels that it loads: its buffer takes twice the size of the L2 cache."""
    return Stopwatch(context_of(device), tools=tools)


@cache
def _offset_bytes() -> int:
    """Drawn once for each process: its later kernels take no more memory than the first."""
    return (1 + secrets.randbelow(_MOST_PAGES)) * _PAGE_BYTES


def open_context(device: int) -> None:
    """Make the context, ready for kernels. Raises :class:`DeviceError`.

    Its memory starts at a random place. Some kernels are a third slower at some places: KernelBench's level 2, 77 takes 4.9 or
    6.4 ms on an H200, by where its convolution's workspace lies. Processes that allocate alike could lie alike, and a kernel's
    pairs would then agree on what is due to the place.
    """
    global _offset
    context_of(device).keep_pool_memory()
    _offset = OwnMemory(_offset_bytes(), "the offset of a process's memory")


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
