"""Keeps garbage collections short: the screen stands still during each.

A full collection looks at every object that is not frozen: 40 ms for the 100,000 of an idle program. What is loaded to stay
is frozen, so that only what changes is looked at. Freezing takes no time. Frozen objects still go when nothing refers to
them; only cycles among them stay.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Mapping

MANY_NEW = 20_000
"""New objects that would lengthen the next collection by some 10 ms."""
MANY_KEPT = 150_000
"""Blocks of memory more than at the last freezing that most screens do not have: those of some 50,000 objects, as a search of
many kernels keeps."""


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
    """Freeze what is loaded by now, and from now on what grows beyond ``MANY_KEPT``. Calling it again freezes once more."""
    _freeze()
    if _freeze_many not in gc.callbacks:
        gc.callbacks.append(_freeze_many)


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
