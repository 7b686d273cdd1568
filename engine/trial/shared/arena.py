"""Memory that the judge owns and lends to runners: one interface over shared memory (CPU) and device memory (CUDA).

The judge's side is an ``Arena``, the runner's a ``Borrowed``. Inputs are lent read-only: on a CPU the memory is sealed against
writable mappings, on a GPU the runner's mapping has no write access. Imports torch.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import warnings
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from engine.domain.errors import DeviceError
from engine.trial.messages import ArenaHandle, Slot

_SEAL_FUTURE_WRITE = 0x0010
"""linux/fcntl.h: no new writable mapping; existing ones (the judge's own) remain."""


class Arena(Protocol):
    """The judge's side of lent memory."""

    def tensor(self, slot: Slot) -> torch.Tensor: ...

    def raw(self, start: int, stop: int) -> torch.Tensor:
        """Bytes ``start`` to ``stop`` as a uint8 tensor."""
        ...

    def handle(self) -> tuple[ArenaHandle, Sequence[int]]:
        """A handle for one runner, with its descriptors, which the caller closes after sending."""
        ...

    def close(self) -> None: ...


class Borrowed(Protocol):
    """The runner's side of lent memory."""

    def tensor(self, slot: Slot) -> torch.Tensor: ...

    def pointer(self, slot: Slot) -> int: ...


def sealed(data: bytes) -> int:
    """The descriptor of an immutable copy in memory; the caller closes it.

    With a file instead, the holder of its descriptor could reopen it, enlarge it, or remove its owner's read permission.
    """
    fd = os.memfd_create("artefact", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def close_descriptors(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message."""
    for fd in fds:
        os.close(fd)


def lend(device: str, size: int, *, writable: bool) -> Arena:
    """Memory for one arena of ``size`` bytes. Raises DeviceError if the device (or the machine) has too little."""
    if device == "cpu":
        return SharedArena(size, writable=writable)
    return DeviceArena(int(device.partition(":")[2] or 0), size, writable=writable)


def borrow(handle: ArenaHandle, fds: list[int]) -> Borrowed:
    """Map lent memory into this process; takes its descriptors from the front of ``fds``."""
    if handle.kind == "memfd":
        return SharedBorrowed(handle, fds.pop(0))
    return DeviceBorrowed(handle, fds.pop(0) if handle.kind == "cuda-fd" else -1)


def torch_dtype(slot: Slot) -> torch.dtype:
    """The torch dtype of an operand."""
    found = getattr(torch, slot.dtype)
    assert isinstance(found, torch.dtype)
    return found


def _view(flat: torch.Tensor, slot: Slot) -> torch.Tensor:
    piece = flat[slot.offset : slot.offset + slot.nbytes]
    return piece.view(torch_dtype(slot)).view(slot.shape)


def _bytes_of(buffer: mmap.mmap) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(buffer, dtype=torch.uint8)


class SharedArena:
    """Anonymous shared memory, lent by descriptor."""

    def __init__(self, size: int, *, writable: bool) -> None:
        self._size = size
        self._writable = writable
        self._fd = os.memfd_create("operands", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self._fd, 0, size)
            self._map = mmap.mmap(self._fd, size)
        except OSError as error:
            os.close(self._fd)
            why = f"no memory for operands of {size / 2**30:.1f} GiB: choose a smaller workload"
            if error.errno == errno.EFBIG:
                why = "the operands' memory is above this process's limit on files: raise it (`ulimit -f unlimited`)"
            raise DeviceError(why) from error
        # A holder of the descriptor can neither truncate the memory under the judge nor seal it against the next runner.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals if writable else seals | _SEAL_FUTURE_WRITE)
        self._flat = _bytes_of(self._map)

    def tensor(self, slot: Slot) -> torch.Tensor:
        return _view(self._flat, slot)

    def raw(self, start: int, stop: int) -> torch.Tensor:
        return self._flat[start:stop]

    def handle(self) -> tuple[ArenaHandle, Sequence[int]]:
        return ArenaHandle("memfd", self._size, self._writable), (os.dup(self._fd),)

    def close(self) -> None:
        del self._flat
        os.close(self._fd)


class SharedBorrowed:
    """A runner's mapping of shared memory."""

    def __init__(self, handle: ArenaHandle, fd: int) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if handle.writable else 0)
        # MAP_POPULATE: page faults would otherwise be timed as the kernel's work.
        self._map = mmap.mmap(fd, handle.size, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection)
        os.close(fd)
        self._flat = _bytes_of(self._map)
        self._base = int(np.frombuffer(self._map, dtype=np.uint8).ctypes.data)

    def tensor(self, slot: Slot) -> torch.Tensor:
        return _view(self._flat, slot)

    def pointer(self, slot: Slot) -> int:
        return self._base + slot.offset


class DeviceArena:
    """Device memory of the judge, lent by descriptor."""

    def __init__(self, index: int, size: int, *, writable: bool) -> None:
        from engine.trial.shared.cuda import device_memory

        self._arena = device_memory.LentArena.create(index, size)
        self._writable = writable
        self._flat = device_memory.as_tensor(self._arena.pointer, (size,), "uint8", index, self._arena)

    def tensor(self, slot: Slot) -> torch.Tensor:
        return _view(self._flat, slot)

    def raw(self, start: int, stop: int) -> torch.Tensor:
        return self._flat[start:stop]

    def handle(self) -> tuple[ArenaHandle, Sequence[int]]:
        handle = self._arena.handle()
        kind = "cuda-fd" if handle.descriptor >= 0 else "cuda-ipc"
        return ArenaHandle(kind, handle.size, self._writable, handle.header()), (
            (handle.descriptor,) if handle.descriptor >= 0 else ()
        )

    def close(self) -> None:
        del self._flat
        self._arena.close()


class DeviceBorrowed:
    """A runner's mapping of lent device memory."""

    def __init__(self, handle: ArenaHandle, fd: int) -> None:
        from engine.trial.shared.cuda import device_memory

        parsed = device_memory.DeviceHandle.parse(handle.header, fd)
        self._index = parsed.device
        self._arena = device_memory.BorrowedArena.map(parsed, writable=handle.writable)

    @property
    def base(self) -> int:
        """The address of its first byte."""
        return self._arena.pointer

    def tensor(self, slot: Slot) -> torch.Tensor:
        from engine.trial.shared.cuda import device_memory

        return device_memory.as_tensor(self.pointer(slot), slot.shape, slot.dtype, self._index, self._arena)

    def pointer(self, slot: Slot) -> int:
        return self._arena.pointer + slot.offset

    def close(self) -> None:
        """Unmap it; idempotent."""
        self._arena.close()
