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

from engine.domain.errors import DeviceError
from engine.trial.runner.calls import LauncherError
from engine.trial.shared.cuda.device_memory import OwnMemory
from engine.trial.shared.layout import GUARD, POISONS


class KernelWorkspace:
    """So many bytes for one kernel; no memory at all for none. Raises LauncherError if the device has too little."""

    def __init__(self, size: int, device: str, *, guarded: bool = True) -> None:
        """``guarded``: filled, and followed by the guard region. Otherwise memory as it comes, which tools can watch."""
        self._size = size
        self._fill = next(_fills()) if guarded and size else None
        guard = GUARD if self._fill is not None else 0
        self._memory = _memory(size + guard, device) if size else None
        if self._memory is not None and self._fill is not None:
            self._memory.fill(self._fill)

    @property
    def pointer(self) -> int:
        """Its address; 0 for none."""
        return self._memory.pointer if self._memory is not None else 0

    def is_overrun(self) -> bool:
        """Whether the guard region has changed. Waits for the device."""
        if self._memory is None or self._fill is None:
            return False
        guard = self._memory.read(self._size)
        return guard.count(self._fill) != len(guard)


class _HostMemory:
    def __init__(self, size: int) -> None:
        self._bytes = torch.empty(size, dtype=torch.uint8)
        self.pointer = self._bytes.data_ptr()

    def fill(self, byte: int) -> None:
        self._bytes.fill_(byte)

    def read(self, start: int) -> bytes:
        return self._bytes[start:].numpy().tobytes()


def _memory(size: int, device: str) -> _HostMemory | OwnMemory:
    if device == "cpu":
        return _HostMemory(size)
    try:
        return OwnMemory(size, "the workspace")
    except DeviceError as error:
        raise LauncherError(str(error)) from error


@cache
def _fills() -> Iterator[int]:
    """The fill bytes of this process's workspaces: in turn, so that a kernel that is loaded twice begins with both."""
    return itertools.cycle(random.SystemRandom().sample(POISONS, len(POISONS)))
