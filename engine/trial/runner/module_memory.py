"""Device memory in which a module allocates while it is called, so that the judge can read its outputs there. Imports torch.

Torch's allocator takes its segments for this pool from allocations that can be exported. The judge gets each segment's
descriptor when it is made. Nothing is copied between a module's last kernel and the judge's comparison.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine.trial.messages import ArenaHandle, Segment, SegmentFreed
from engine.trial.runner.calls import Send
from engine.trial.shared.cuda.device_memory import LentArena

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class ModuleMemory:
    """The pool of one process: torch cannot replace it."""

    _of_process: ModuleMemory | None = None

    def __init__(self, device: int, send: Send) -> None:
        self._device = device
        self._send = send
        self._segments: dict[int, LentArena] = {}
        self._allocate, self._free = _ALLOCATE(self._new_segment), _FREE(self._drop_segment)
        allocate, free = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (self._allocate, self._free))
        self._allocator = torch._C._cuda_customAllocator(allocate, free)
        _release_lock_while_allocating()
        self._pool = torch.cuda.MemPool(self._allocator)

    @classmethod
    def of_process(cls, device: int, send: Send) -> ModuleMemory:
        """The process's pool, made at first use."""
        if cls._of_process is None:
            cls._of_process = cls(device, send)
        return cls._of_process

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Torch allocates in this pool, in every thread: a backward pass runs in one of its own."""
        with _in_every_thread(self._device, self._pool):
            yield

    def held(self, value: Any) -> Any:
        """``value``, copied if it is a tensor outside of the pool: a graph's own output, a parameter. Call it ``in_use``."""
        if type(value) is not torch.Tensor or not value.is_cuda or not value.numel():
            return value
        place = value.data_ptr()
        inside = any(start <= place < start + arena.size for start, arena in self._segments.items())
        return value if inside else value.clone()

    def _new_segment(self, size: int, _: int, __: int) -> int | None:
        try:
            arena = LentArena.create(self._device, size)
            handle = arena.handle()
            try:
                self._send(Segment(arena.pointer, ArenaHandle("cuda-fd", size, False, handle.header())), (handle.descriptor,))
            finally:
                os.close(handle.descriptor)
        except Exception:  # torch reports an allocation that failed
            return None
        self._segments[arena.pointer] = arena
        return arena.pointer

    def _drop_segment(self, address: int, _: int, __: int, ___: int) -> None:
        arena = self._segments.pop(address, None)
        if arena is not None:
            arena.close()
            self._send(SegmentFreed(address))


@contextmanager
def _in_every_thread(device: int, pool: torch.cuda.MemPool) -> Iterator[None]:
    """As ``torch.cuda.use_mem_pool``, which newer versions of torch limit to the thread that calls it."""
    if not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"):
        with torch.cuda.use_mem_pool(pool, device):
            yield
        return
    torch._C._cuda_beginAllocateToPool(device, pool.id)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device, pool.id)
        torch._C._cuda_releasePool(device, pool.id)


def _release_lock_while_allocating() -> None:
    """Make torch release its allocator's lock around ``_new_segment``, which waits for the interpreter's lock: a thread that
    frees a tensor holds the latter and waits for the former."""
    new, old = "_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"
    getattr(torch._C, new if hasattr(torch._C, new) else old)("release_lock_on_cudamalloc:True")
