"""Device memory that one process lends to another, and its view as a tensor.

An allocation crosses the process and sandbox boundary as a file descriptor over a Unix socket, which allows a read-only
mapping, or as a CUDA IPC token where descriptors cannot be passed. Imports torch only inside :func:`as_tensor`.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from engine.domain.errors import DeviceError
from engine.trial.shared.cuda import driver as cuda

if TYPE_CHECKING:
    import torch

_TOKEN_BYTES = 64
_HEADER = struct.Struct(f"<BIQ{_TOKEN_BYTES}s")
_DEDICATED = 2 << 20
"""The driver serves smaller requests from shared blocks of this size, and a token would lend the whole block."""
_MEANS_NUMBERS = {1: "descriptor", 2: "token"}
_held: weakref.WeakSet[BorrowedArena | OwnMemory] = weakref.WeakSet()
"""What this process has borrowed or allocated and not given back."""


class Means(StrEnum):
    """How an arena travels."""

    DESCRIPTOR = "descriptor"
    """A file descriptor of a virtual-memory allocation; it can be mapped read-only, with guard pages around it."""
    TOKEN = "token"
    """A CUDA IPC handle; the borrower can always write, so inputs must be compared afterwards."""


@dataclass(frozen=True, slots=True)
class DeviceHandle:
    """What the borrower needs to map an arena; :meth:`BorrowedArena.map` closes its descriptor."""

    means: Means
    device: int
    size: int
    descriptor: int = -1
    token: bytes = b""

    def header(self) -> bytes:
        """Everything but the descriptor, as fixed-size bytes."""
        number = next(n for n, name in _MEANS_NUMBERS.items() if name == self.means)
        return _HEADER.pack(number, self.device, self.size, self.token)

    @classmethod
    def parse(cls, header: bytes, descriptor: int = -1) -> DeviceHandle:
        """The inverse of :meth:`header`. Raises :class:`DeviceError` for invalid bytes."""
        if len(header) != _HEADER.size or header[0] not in _MEANS_NUMBERS:
            raise DeviceError("invalid device memory handle: the other side closed the channel or sent something else")
        number, device, size, token = _HEADER.unpack(header)
        means = Means(_MEANS_NUMBERS[number])
        return cls(means, device, size, descriptor, token if means is Means.TOKEN else b"")


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A range of addresses with an unmapped granule on either side: an overrun faults instead of hitting other memory."""

    reserved: int
    guard: int
    length: int

    @property
    def pointer(self) -> int:
        return self.reserved + self.guard

    @classmethod
    def create(cls, device: int, allocation: Any, length: int, *, writable: bool) -> _Mapping:
        driver = cuda.bindings()
        guard = _granularity(device)
        base = cuda.check(driver.cuMemAddressReserve(length + 2 * guard, guard, 0, 0), "reserving device addresses")
        mapping = cls(int(base), guard, length)
        cuda.check(driver.cuMemMap(mapping.pointer, length, 0, allocation, 0), "mapping an arena", asked=length)
        access = driver.CUmemAccessDesc()
        access.location = _location(device)
        flags = driver.CUmemAccess_flags
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        cuda.check(driver.cuMemSetAccess(mapping.pointer, length, [access], 1), "opening an arena for access")
        return mapping

    def undo(self) -> None:
        driver = cuda.bindings()
        driver.cuMemUnmap(self.pointer, self.length)
        driver.cuMemAddressFree(self.reserved, self.length + 2 * self.guard)


def _location(device: int) -> Any:
    driver = cuda.bindings()
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return location


def _properties(device: int) -> Any:
    driver = cuda.bindings()
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location(device)
    properties.requestedHandleTypes = _handle_type()
    return properties


def _handle_type() -> Any:
    return cuda.bindings().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _granularity(device: int) -> int:
    driver = cuda.bindings()
    flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    found = driver.cuMemGetAllocationGranularity(_properties(device), flag)
    return int(cuda.check(found, f"asking for the granularity of cuda:{device}"))


def rounded(size: int, granule: int) -> int:
    """``size`` rounded up to whole granules, at least one."""
    return max(1, -(-size // granule)) * granule


class LentArena:
    """The judge's side: memory it owns, reads and writes, and can lend any number of times.

    The current context must be on ``device``. ``size`` is the requested size in bytes; ``pointer`` is aligned to 2 MiB.
    """

    def __init__(self, device: int, size: int, means: Means, pointer: int, kept: tuple[Any, _Mapping] | None) -> None:
        self.device = device
        self.size = size
        self.means = means
        self.pointer = pointer
        self._kept = kept
        self._open = True

    @classmethod
    def create(cls, device: int, size: int, means: Means = Means.DESCRIPTOR) -> LentArena:
        """Allocates ``size`` bytes that can be lent by ``means``, rounded up to whole granules.

        Raises :class:`DeviceError` if the device is full or does not support ``means``.
        """
        driver = cuda.bindings()
        if means is Means.TOKEN:
            length = rounded(size, _DEDICATED)
            pointer = cuda.check(driver.cuMemAlloc(length), "allocating an arena", asked=length)
            return cls(device, size, means, int(pointer), None)
        length = rounded(size, _granularity(device))
        allocation = cuda.check(driver.cuMemCreate(length, _properties(device), 0), "allocating an arena", asked=length)
        try:
            mapping = _Mapping.create(device, allocation, length, writable=True)
        except DeviceError:
            driver.cuMemRelease(allocation)
            raise
        return cls(device, size, means, mapping.pointer, (allocation, mapping))

    def handle(self) -> DeviceHandle:
        """A fresh handle of this arena for one borrower. Raises :class:`DeviceError` if the driver cannot export it."""
        driver = cuda.bindings()
        if self._kept is not None:
            exported = driver.cuMemExportToShareableHandle(self._kept[0], _handle_type(), 0)
            descriptor = int(cuda.check(exported, "exporting an arena"))
            return DeviceHandle(self.means, self.device, self.size, descriptor)
        token = cuda.check(driver.cuIpcGetMemHandle(self.pointer), "exporting an arena")
        return DeviceHandle(self.means, self.device, self.size, token=ctypes.string_at(token.getPtr(), _TOKEN_BYTES))

    def close(self) -> None:
        """Frees this side; a live borrower keeps its own mapping. Never raises; idempotent."""
        if not self._open:
            return
        self._open = False
        driver = cuda.bindings()
        if self._kept is None:
            driver.cuMemFree(self.pointer)
            return
        allocation, mapping = self._kept
        mapping.undo()
        driver.cuMemRelease(allocation)


class BorrowedArena:
    """The runner's side: the same memory at its own address, as long as this object lives or until ``close``.

    A runner loads many kernels, and a mapping that stays keeps memory on the device that the judge has freed.

    ``protected``: whether a kernel's write faults.

    That holds for device code. Host code in the same process can make the mapping writable again (seen on an H200): under
    contracts with host code the inputs must be compared afterwards nevertheless.
    """

    def __init__(self, handle: DeviceHandle, pointer: int, mapping: _Mapping | None, *, protected: bool) -> None:
        self.device = handle.device
        self.size = handle.size
        self.pointer = pointer
        self.protected = protected
        self._unmap = weakref.finalize(self, _give_back, pointer, mapping)
        self._unmap.atexit = False  # the driver gives back what a process leaves
        _held.add(self)

    @classmethod
    def map(cls, handle: DeviceHandle, *, writable: bool) -> BorrowedArena:
        """Maps a handle into this process and closes its descriptor.

        Without ``writable`` a kernel that writes to it faults (only if lent by descriptor: see ``protected``). Raises
        :class:`DeviceError` if the handle is not valid here.
        """
        driver = cuda.bindings()
        if handle.means is Means.TOKEN:
            token = driver.CUipcMemHandle()
            ctypes.memmove(token.getPtr(), handle.token, _TOKEN_BYTES)
            flags = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            opened = driver.cuIpcOpenMemHandle(token, int(flags))
            return cls(handle, int(cuda.check(opened, "mapping a lent arena")), None, protected=False)
        try:
            imported = driver.cuMemImportFromShareableHandle(handle.descriptor, _handle_type())
        finally:
            os.close(handle.descriptor)
        allocation = cuda.check(imported, "importing a lent arena")
        length = rounded(handle.size, _granularity(handle.device))
        mapping = _Mapping.create(handle.device, allocation, length, writable=writable)
        driver.cuMemRelease(allocation)
        return cls(handle, mapping.pointer, mapping, protected=not writable)

    def close(self) -> None:
        """Unmaps it. Never raises; idempotent."""
        self._unmap()


def _give_back(pointer: int, mapping: _Mapping | None) -> None:
    """Unmap borrowed memory."""
    if mapping is None:
        cuda.bindings().cuIpcCloseMemHandle(pointer)
    else:
        mapping.undo()


class OwnMemory:
    """Memory of this process alone in the current context, freed with its last use. Raises :class:`DeviceError`.

    Torch's allocator would keep it, with a state of torch's own that no reset of the context clears.
    """

    def __init__(self, size: int, what: str) -> None:
        """``what`` it is, for the message if it does not fit."""
        self.size = size
        self.pointer = int(cuda.check(cuda.bindings().cuMemAlloc(size), f"allocating {what}", asked=size))
        self._free = weakref.finalize(self, _free, self.pointer)
        self._free.atexit = False  # the driver frees what a process leaves
        _held.add(self)

    def fill(self, byte: int) -> None:
        """Fill it, and wait: a kernel may use streams that do not wait for this one."""
        cuda.check(cuda.bindings().cuMemsetD8(self.pointer, byte, self.size), "filling device memory")
        cuda.check(cuda.bindings().cuCtxSynchronize(), "filling device memory")

    def read(self, start: int) -> bytes:
        """The bytes from ``start``, once all work on the device has ended."""
        found = bytearray(self.size - start)
        cuda.check(cuda.bindings().cuCtxSynchronize(), "waiting for the device")
        cuda.check(cuda.bindings().cuMemcpyDtoH(found, self.pointer + start, len(found)), "reading device memory")
        return bytes(found)

    def close(self) -> None:
        """Free it. Never raises; idempotent."""
        self._free()


def _free(pointer: int) -> None:
    cuda.bindings().cuMemFree(pointer)


def give_back_all() -> None:
    """Unmap and free all that this process holds, before its context ends: done later, it would hit the next one's memory."""
    for one in list(_held):
        one.close()


_TYPE_CODES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1",
    "uint8": "|u1", "bool": "|b1", "complex64": "<c8", "complex128": "<c16",
}  # fmt: skip
_VIEWED_AS = {
    "bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
}  # fmt: skip
"""Types that the interface lacks are passed as integers of the same width and reinterpreted."""


class ArrayInterface:
    """Device memory as ``__cuda_array_interface__`` describes it; keeps ``owner`` alive as long as a tensor uses it."""

    def __init__(self, pointer: int, count: int, dtype: str, owner: object = None) -> None:
        code = _TYPE_CODES.get(_VIEWED_AS.get(dtype, dtype))
        if code is None:
            raise DeviceError(f"unsupported type {dtype} for a tensor in lent device memory")
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": code, "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


def as_tensor(pointer: int, shape: Sequence[int], dtype: str, device: int, owner: object = None) -> torch.Tensor:
    """The memory at ``pointer`` as a contiguous tensor on ``cuda:device``, without a copy.

    The tensor's storage keeps ``owner`` alive. Raises :class:`DeviceError` for an unsupported type.
    """
    import torch

    count = math.prod(shape)
    interface = ArrayInterface(pointer, count, dtype, owner)
    target = getattr(torch, dtype)
    if count == 0:
        return torch.empty(tuple(shape), dtype=target, device=f"cuda:{device}")
    flat = torch.as_tensor(interface, device=f"cuda:{device}")
    return flat.view(target).view(tuple(shape))
