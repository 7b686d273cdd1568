"""A CUDA driver with a context, memory and code, emulated on the host: for runners that load one kernel after the other.

``python -m support.emulated_driver FD`` is a host process whose runners use it. Kernels are named by their image: each of
``KERNELS`` is called with the addresses that its launch passes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from support.plan_bench import WORKSPACE

from engine.sandbox import python_process
from engine.trial.judge.runners.host_client import Host
from engine.trial.messages import ArenaHandle
from engine.trial.shared.arena import SharedArena
from engine.trial.shared.cuda.device_memory import DeviceHandle, Means

PAGE = 4096
_LIMIT = 227 * 1024
_LIBC = ctypes.CDLL(None)
_LIBC.mmap.restype = ctypes.c_void_p
_MAP = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mmap.argtypes = _MAP
_LIBC.munmap.argtypes = _LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FIXED, _PRIVATE_ANONYMOUS = 0x10, 0x22


class Result(IntEnum):
    """``CUresult``."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


@dataclass
class _Context:
    """What ends with a context."""

    number: int
    variables: dict[int, int] = field(default_factory=dict)
    """The ``__device__`` variable of each loaded image."""
    functions: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Handle → image and name of a kernel."""
    images: dict[int, str] = field(default_factory=dict)
    memory: dict[int, ctypes.Array[ctypes.c_char]] = field(default_factory=dict)
    free: list[ctypes.Array[ctypes.c_char]] = field(default_factory=list)
    """Freed memory, which is lent again as it is."""
    error: Result = Result.CUDA_SUCCESS
    """Of a kernel: every later call returns it."""


class EmulatedDriver:
    """``cuda.bindings.driver`` and ``libcuda`` of one process."""

    CUresult = Result

    def __init__(self) -> None:
        self._context: _Context | None = None
        self._holds = 0
        self._made = 0
        self._handles = 0
        self.mapped = 0
        """Mappings of lent memory: they outlive a context."""
        self.lost = False
        """Whether no context can be made any more."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            return lambda *_: (0,)
        return _AnyType()

    def _handle(self) -> int:
        self._handles += 1
        return self._handles

    @property
    def context(self) -> _Context:
        assert self._context is not None
        return self._context

    # contexts

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    cuCtxGetDevice = cuDeviceGetCount

    def cuDeviceGetAttribute(self, *_: object) -> tuple[int, int]:
        return 0, _LIMIT

    def CUdevice(self, device: int) -> int:
        return device

    CUfunction = CUdevice

    def cuDevicePrimaryCtxRetain(self, _: int) -> tuple[Any, ...]:
        if self.lost:
            return Result.CUDA_ERROR_DEVICE_UNAVAILABLE, None
        self._holds += 1
        if self._context is None:
            self._made += 1
            self._context = _Context(self._made)
        return 0, self._context.number

    def cuDevicePrimaryCtxReset(self, _: int) -> tuple[int]:
        self._context = None
        return (0,)

    def cuDevicePrimaryCtxRelease(self, _: int) -> tuple[int]:
        self._holds -= 1
        assert self._holds == 0, "another part of the process holds the context"
        self._context = None
        return (0,)

    def cuGetErrorString(self, _: Result) -> tuple[int, bytes]:
        return 0, b"emulated"

    # memory

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        found = next((one for one in self.context.free if len(one) == size), None)
        if found is not None:
            self.context.free.remove(found)
        else:
            found = ctypes.create_string_buffer(size)
        address = ctypes.addressof(found)
        self.context.memory[address] = found
        return 0, address

    def cuMemFree(self, address: int) -> tuple[int]:
        self.context.free.append(self.context.memory.pop(address))
        return (0,)

    def cuMemsetD8(self, address: int, byte: int, size: int) -> tuple[int]:
        ctypes.memset(address, byte, size)
        return (0,)

    def cuMemcpyDtoH(self, target: bytearray, address: int, size: int) -> tuple[int]:
        target[:] = ctypes.string_at(address, size)
        return (0,)

    def cuMemGetAllocationGranularity(self, *_: object) -> tuple[int, int]:
        return 0, PAGE

    def cuMemImportFromShareableHandle(self, descriptor: int, _: object) -> tuple[int, int]:
        return 0, os.dup(descriptor)

    def cuMemRelease(self, descriptor: int) -> tuple[int]:
        os.close(descriptor)
        return (0,)

    def cuMemAddressReserve(self, size: int, *_: object) -> tuple[int, int]:
        return 0, _LIBC.mmap(None, size, 0, _PRIVATE_ANONYMOUS, -1, 0)

    def cuMemAddressFree(self, address: int, size: int) -> tuple[int]:
        _LIBC.munmap(address, size)
        return (0,)

    def cuMemMap(self, address: int, size: int, _: int, descriptor: int, __: int) -> tuple[int]:
        self.mapped += 1
        _LIBC.mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor, 0)
        return (0,)

    def cuMemSetAccess(self, address: int, size: int, access: Any, _: int) -> tuple[int]:
        if access[0].flags.endswith("READWRITE"):
            assert _LIBC.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        return (0,)

    def cuMemUnmap(self, address: int, size: int) -> tuple[int]:
        self.mapped -= 1
        _LIBC.mmap(address, size, 0, _PRIVATE_ANONYMOUS | _FIXED, -1, 0)
        return (0,)

    # code

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        handle = self._handle()
        self.context.images[handle] = image.decode()
        self.context.variables[handle] = 0
        return 0, handle

    def cuModuleGetFunction(self, image: int, _: bytes) -> tuple[int, int]:
        handle = self._handle()
        self.context.functions[handle] = image, self.context.images[image]
        return 0, handle

    def cuFuncGetAttribute(self, key: str, _: int) -> tuple[int, int]:
        return 0, 1024 if key.endswith("MAX_THREADS_PER_BLOCK") else 0

    def cuFuncGetParamInfo(self, _: int, index: int) -> tuple[int, int, int]:
        return int(index >= _PARAMETERS), 0, 8

    def cuLaunchKernelEx(self, _: object, function: ctypes.c_void_p, table: Any, __: object) -> int:
        if self.context.error:
            return self.context.error
        if function.value not in self.context.functions:
            return Result.CUDA_ERROR_INVALID_HANDLE  # of another context
        image, name = self.context.functions[function.value]
        values = (ctypes.c_uint64.from_address(table[index]).value for index in range(_PARAMETERS))
        KERNELS[name](self, image, *values)
        return 0

    def synchronise(self) -> int:
        """``cuCtxSynchronize`` of the foreign functions: the code alone."""
        return self.context.error


_PARAMETERS = 2
LEFT = 0x77
"""What the kernel ``count`` leaves in its workspace."""


def _count(driver: EmulatedDriver, image: int, out: int, workspace: int) -> None:
    """Writes how often it ran, its context, a byte of its workspace before it writes there, and how many arenas are mapped."""
    driver.context.variables[image] += 1
    found = driver.context.variables[image], driver.context.number, ctypes.string_at(workspace, 1)[0], driver.mapped
    ctypes.memset(workspace, LEFT, WORKSPACE)
    ctypes.memmove(out, (ctypes.c_float * len(found))(*found), 4 * len(found))


def _overrun(_: EmulatedDriver, __: int, ___: int, workspace: int) -> None:
    ctypes.memset(workspace + WORKSPACE, 0, 1)


def _fault(driver: EmulatedDriver, *_: int) -> None:
    driver.context.error = Result.CUDA_ERROR_ILLEGAL_ADDRESS


def _lose(driver: EmulatedDriver, *_: int) -> None:
    driver.lost = True


KERNELS: dict[str, Callable[..., None]] = {"count": _count, "overrun": _overrun, "fault": _fault, "lose": _lose}


class _AnyType:
    """A structure that can be made, or an enumeration with every member."""

    def __call__(self, *_: object) -> SimpleNamespace:
        return SimpleNamespace()

    def __getattr__(self, name: str) -> str:
        return name


class _Clock:
    """In place of the stopwatch."""

    def __init__(self, *_: object, **__: object) -> None:
        """It needs nothing."""

    def sample(self, work: Callable[[], object], **_: object) -> Any:
        from engine.trial.runner.gpu_launch import LaunchFault, fault
        from engine.trial.runner.stopwatch import Sample
        from engine.trial.shared.cuda import driver

        if isinstance(failed := work(), LaunchFault):
            return failed
        if code := driver.bindings().synchronise():
            return fault(code, "running the kernel")
        return Sample(1.0, 1.0, 1.0, 0.0, held=False)


class LentByDescriptor(SharedArena):
    """Shared memory that is lent as if it were a device's."""

    def __init__(self, size: int, writable: bool) -> None:
        super().__init__(size, writable=writable)

    def handle(self) -> tuple[ArenaHandle, Sequence[int]]:
        given, fds = super().handle()
        return ArenaHandle("cuda-fd", given.size, given.writable, DeviceHandle(Means.DESCRIPTOR, 0, given.size).header()), fds


class EmulatedHost(Host):
    """A host whose runners use the emulated driver."""

    def __init__(self) -> None:
        super().__init__("cuda:0", 1, confined=False)

    def _started(self, channel: int) -> subprocess.Popen[bytes]:
        environment = python_process.environment("cuda:0", alone=False, threads=1)
        return subprocess.Popen(
            [sys.executable, "-m", "support.emulated_driver", str(channel)], pass_fds=(channel,),
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip


def main() -> None:
    """A host process; each of its forks has a driver of its own."""
    from engine.trial.runner import device_context, host
    from engine.trial.shared.cuda import driver

    emulated = EmulatedDriver()
    replaced: dict[Any, dict[str, Any]] = {
        driver: {"bindings": lambda: emulated, "native": lambda: _Native(emulated), "preload": lambda: None},
        device_context: {"Stopwatch": _Clock},
        host: {"_warm_up": _warm_up},
    }
    for module, names in replaced.items():
        for name, value in names.items():
            setattr(module, name, value)
    host.main()


class _Native:
    """The foreign functions, which return a code alone."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self.cuLaunchKernelEx = driver.cuLaunchKernelEx

    def __getattr__(self, _: str) -> Callable[..., int]:
        return lambda *_: 0


def _warm_up() -> None:
    """Without compilers, which no kernel here needs."""
    import engine.trial.runner.launchers
    import engine.trial.runner.modules  # noqa: F401


if __name__ == "__main__":
    main()
