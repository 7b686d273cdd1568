"""Reads and writes a module's outputs where it made them: in the memory of its runner, which is frozen. Imports torch.

``process_vm_readv`` and ``process_vm_writev`` need the right to trace the process: it has the judge's user id, and its user
namespace is a child of the judge's. Where the system denies it, runners copy outputs to lent memory instead.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

_MOST_PIECES = 512
"""Pieces per system call; Linux allows 1024."""
_MOST_BYTES = 1 << 30
"""Bytes per system call; Linux reads at most 2 GiB."""
_FILL = 1 << 15
"""Bytes of the block that outputs are filled from. It stays in the first cache: 64 KiB took four times as long."""


class _MemoryPiece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Outputs(Protocol):
    """A module's outputs where it made them."""

    @property
    def addresses(self) -> tuple[int, ...]: ...

    def of_call(self, call: int, calls: int) -> Outputs: ...

    def copy_to(self, output: int, target: torch.Tensor) -> None: ...

    def elements(self, output: int, where: torch.Tensor, words: torch.Tensor) -> torch.Tensor: ...

    def fill(self, output: int, count: int, byte: int) -> None: ...


def addresses_of_call(addresses: tuple[int, ...], call: int, calls: int) -> tuple[int, ...]:
    """One call's share of the addresses that a burst reported, those of its last ``calls`` calls in order. Raises OSError."""
    each, surplus = divmod(len(addresses), calls)
    if surplus:
        raise OSError(0, f"{len(addresses)} outputs of {calls} calls")
    return addresses[call * each : (call + 1) * each]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = _libc.process_vm_writev.restype = ctypes.c_ssize_t


@dataclass(frozen=True, slots=True)
class _MappedPart:
    """A part of a process's memory."""

    start: int
    end: int
    rights: str
    file: tuple[str, str]
    """The device and the inode of what it maps."""


def _mappings(process: int) -> list[_MappedPart]:
    """Those of a process; none if they cannot be read."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        (start, _, end), rights, _, device, inode = line.split()[0].partition("-"), *line.split()[1:5]
        found.append(_MappedPart(int(start, 16), int(end, 16), rights, (device, inode)))
    return found


def _is_lent(mapping: _MappedPart) -> bool:
    """Whether this process, the judge, maps the same file. What else a process can only read may be its own."""
    return mapping.file in {one.file for one in _mappings(os.getpid()) if one.rights.endswith("s")}


@dataclass(frozen=True, slots=True)
class RunnerMemory:
    """Addresses in the memory of one process, one per output."""

    process: int
    addresses: tuple[int, ...]

    def of_call(self, call: int, calls: int) -> RunnerMemory:
        """The outputs of one of the last ``calls`` calls of a burst, whose outputs these are. Raises OSError."""
        return replace(self, addresses=addresses_of_call(self.addresses, call, calls))

    def copy_to(self, output: int, target: torch.Tensor) -> None:
        """Copy the output to ``target``, bytes of the same size. Raises OSError."""
        source, place, size = self.addresses[output], target.data_ptr(), target.numel()
        for start in range(0, size, _MOST_BYTES):
            count = min(_MOST_BYTES, size - start)
            self._read([_MemoryPiece(place + start, count)], [_MemoryPiece(source + start, count)], count)

    def elements(self, output: int, where: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The elements at ``where``; ``words`` has the output's size and the elements' width. Raises OSError."""
        width, start = words.element_size(), self.addresses[output]
        found = torch.empty(where.numel(), dtype=words.dtype)
        offsets = [int(i) * width for i in where.tolist()]
        for first in range(0, len(offsets), _MOST_PIECES):
            pieces = [_MemoryPiece(start + offset, width) for offset in offsets[first : first + _MOST_PIECES]]
            count = len(pieces) * width
            self._read([_MemoryPiece(found.data_ptr() + first * width, count)], pieces, count)
        return found

    def fill(self, output: int, count: int, byte: int) -> None:
        """Fill the output, of ``count`` bytes. One in an input's memory stays as it is. Raises OSError."""
        block, place = torch.full((min(count, _FILL),), byte, dtype=torch.uint8), self.addresses[output]
        try:
            for start in range(0, count, _MOST_PIECES * _FILL):
                end = min(start + _MOST_PIECES * _FILL, count)
                pieces = [_MemoryPiece(block.data_ptr(), min(_FILL, end - at)) for at in range(start, end, _FILL)]
                self._transfer(_libc.process_vm_writev, pieces, [_MemoryPiece(place + start, end - start)], end - start)
        except OSError:
            if not self.is_lent_input(output):
                raise

    def is_lent_input(self, output: int) -> bool:
        """Whether the output lies in an input's memory: of what is lent, its process can only read that."""
        mapping = self._mapping_of(output)
        return mapping is not None and mapping.rights.startswith("r--s") and _is_lent(mapping)

    def is_lent(self, output: int) -> bool:
        """Whether the output lies in memory that the judge has lent."""
        mapping = self._mapping_of(output)
        return mapping is not None and _is_lent(mapping)

    def _mapping_of(self, output: int) -> _MappedPart | None:
        address = self.addresses[output]
        return next((one for one in _mappings(self.process) if one.start <= address < one.end), None)

    def _read(self, here: list[_MemoryPiece], there: list[_MemoryPiece], count: int) -> None:
        self._transfer(_libc.process_vm_readv, here, there, count)

    def _transfer(self, call: Callable[..., int], here: list[_MemoryPiece], there: list[_MemoryPiece], count: int) -> None:
        local, remote = (_MemoryPiece * len(here))(*here), (_MemoryPiece * len(there))(*there)
        done = call(self.process, local, len(here), remote, len(there), 0)
        if done != count:
            error = ctypes.get_errno() if done < 0 else 0
            raise OSError(error, os.strerror(error) if error else "its memory ends there")
