"""Keeps garbage collections short, and full ones apart from other work: the screen stands still during each.

A full collection looks at every object that is not frozen: 40 ms for the 100,000 of an idle program. What is loaded to stay
is frozen, so that only what changes is looked at. Freezing takes no time. Frozen objects still go when nothing refers to
them; only cycles among them stay.

Python begins a full collection in the middle of what allocates most, and drawing a screen takes twice as long then. Here the
event loop does it between two acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator, Mapping

MANY_NEW = 20_000
"""New objects that would lengthen the next collection by some 10 ms."""
MANY_KEPT = 150_000
"""Blocks of memory more than at the last freezing that most screens do not have: those of some 50,000 objects, as a search of
many kernels keeps."""
_NEVER = 1 << 30
_DUE = 10
"""After so many collections of the younger objects a full one is due, as Python has it."""


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """While something large is read or imported, nothing is collected: its objects all stay, and looking at them again and
    again takes as long as reading does. Afterwards no collection looks at them."""
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > MANY_NEW:
            _freeze()
        gc.enable()


def shorten_collections() -> None:
    """Freeze what is loaded by now, and from now on what grows beyond ``MANY_KEPT``; leave full collections to the event loop.
    Calling it again freezes once more."""
    _freeze()
    if _freeze_many not in gc.callbacks:
        gc.callbacks += [_freeze_many, _collect_soon]
        gc.set_threshold(*gc.get_threshold()[:2], _NEVER)


def _collect_soon(phase: str, about: Mapping[str, int]) -> None:
    """Once a full collection is due, let the event loop of this thread do it next."""
    global _is_due
    if phase == "stop" and about["generation"] == 1 and gc.get_count()[2] >= _DUE and not _is_due:
        with contextlib.suppress(RuntimeError):  # another thread: this one's next collection is as good
            asyncio.get_running_loop().call_soon(_collect)
            _is_due = True


def _collect() -> None:
    global _is_due
    _is_due = False
    gc.collect()


_is_due = False


def _freeze_many(phase: str, about: Mapping[str, int]) -> None:
    if phase == "stop" and about["generation"] == 2 and sys.getallocatedblocks() - _frozen_blocks > MANY_KEPT:
        _freeze()


_frozen_blocks = 0
"""How many blocks of memory were allocated at the last freezing. ``gc.get_objects`` would count objects, but also refer to each
of them for a moment: a tuple that another thread fills meanwhile raises SystemError then."""


def _freeze() -> None:
    global _frozen_blocks
    gc.freeze()
    _frozen_blocks = sys.getallocatedblocks()
