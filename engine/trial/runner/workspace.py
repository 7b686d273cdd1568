"""The workspace of a kernel: scratch memory that begins as nonsense, with a guard region after it. Imports torch.

Fresh memory is zero on a CPU, and often on a GPU. A kernel that reads its workspace before it writes there, or past the end,
would be right in a trial and wrong in a program that uses its memory again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache

import torch

from engine.trial.shared.layout import GUARD, POISONS


class KernelWorkspace:
    """So many bytes for one kernel; no memory at all for none."""

    def __init__(self, size: int, device: str, *, guarded: bool = True) -> None:
        """``guarded``: filled, and followed by the guard region. Otherwise memory as it comes, which tools can watch."""
        self._size = size
        self._fill = next(_fills()) if guarded and size else None
        guard = GUARD if self._fill is not None else 0
        self._memory = torch.empty(size + guard, dtype=torch.uint8, device=device) if size else None
        if self._memory is not None and self._fill is not None:
            _fill(self._memory, self._fill)

    @property
    def pointer(self) -> int:
        """Its address; 0 for none."""
        return self._memory.data_ptr() if self._memory is not None else 0

    def is_overrun(self) -> bool:
        """Whether the guard region has changed. Waits for the device."""
        if self._memory is None or self._fill is None:
            return False
        return bool((self._memory[self._size :].cpu() != self._fill).any())


@cache
def _fills() -> Iterator[int]:
    """The fill bytes of this process's workspaces: in turn, so that a kernel that is loaded twice begins with both."""
    return itertools.cycle(random.SystemRandom().sample(POISONS, len(POISONS)))


def _fill(memory: torch.Tensor, byte: int) -> None:
    """Fill memory, and wait: a kernel may use streams that do not wait for this one.

    On a GPU by the driver: torch would load a kernel first, which takes longer than most workspaces take to fill.
    """
    if memory.device.type == "cpu":
        memory.fill_(byte)
        return
    from engine.trial.shared.cuda import driver

    bindings = driver.bindings()
    driver.check(bindings.cuMemsetD8(memory.data_ptr(), byte, memory.numel()), "filling the workspace")
    driver.check(bindings.cuCtxSynchronize(), "filling the workspace")
