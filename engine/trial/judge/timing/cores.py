"""Where the judge waits for a reply on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress


@contextmanager
def on_first_core() -> Iterator[None]:
    """The calling thread on the first of its cores: a runner's main thread is bound there, and leaves it once it has replied.

    Woken on another core the judge may wait for an OpenMP thread that spins there after its work: up to a tick of the kernel,
    4 ms, where a woken process does not interrupt a running one. Null kernels then seemed to cost so much that less than
    nothing was left of a kernel's time.
    """
    cores = os.sched_getaffinity(0)
    _move(frozenset({min(cores)}))
    try:
        yield
    finally:
        _move(cores)


def _move(cores: Set[int]) -> None:
    with suppress(OSError):  # a system that forbids it: the judge waits anywhere
        os.sched_setaffinity(0, cores)
