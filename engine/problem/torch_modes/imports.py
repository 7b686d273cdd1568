"""Imports of large packages, as torch, in a process that goes on for long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Within, imports run without garbage collection, which takes a fifth of their time and frees nothing.

    What they leave is never collected: later collections do not walk it, and do not copy its pages in forked processes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
