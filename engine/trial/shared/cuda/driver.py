"""The CUDA driver through ``cuda.bindings``: errors, device descriptions, and one context shared with torch.

Nothing is imported before its first use. In a process that will fork, only :func:`preload` is safe to call. Never imports torch
(its version is read from its files).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.domain.errors import DeviceError
from engine.domain.model import Device

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_NO_DRIVER = "no CUDA driver on this machine ({}): install NVIDIA's driver or use --device cpu"
_HINTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "the kernel read or wrote outside its operands, or wrote to an input",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "the kernel made a misaligned access",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use fewer threads per block, fewer registers or less shared memory",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "all blocks must be resident at once: shrink the grid",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the artefact was built for another architecture",
    "CUDA_ERROR_OPERATING_SYSTEM": "inside a sandbox, /dev/nvidia*, /proc and /sys must be visible",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver's library and its kernel module differ: restart the machine",
    "CUDA_ERROR_NO_DEVICE": "the driver sees no device: check nvidia-smi and CUDA_VISIBLE_DEVICES",
}


@cache
def bindings() -> Any:
    """The module ``cuda.bindings.driver``, imported on first use. Raises :class:`DeviceError` where it is not installed."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(f"the CUDA bindings cannot be imported ({error}): pip install 'espalier[gpu]'") from error


def preload() -> None:
    """Imports what a forked child needs, without calling the driver: a process that forks must hold no context."""
    bindings()


_RELEASE_THRESHOLD = 4
"""``CU_MEMPOOL_ATTR_RELEASE_THRESHOLD``."""
_NOT_SUPPORTED = 801
"""``CUDA_ERROR_NOT_SUPPORTED``: a device without memory pools."""


@cache
def native() -> ctypes.CDLL:
    """``libcuda`` itself, for the few calls between two clock readings: a foreign call costs less than a microsecond.

    Raises :class:`DeviceError` without a driver.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(_NO_DRIVER.format(error)) from error


def explain(code: int) -> str:
    """The message for a driver's result code: ``CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access …): hint``."""
    driver = bindings()
    try:
        result = driver.CUresult(code)
    except ValueError:
        return f"CUDA error {code}"
    _, text = driver.cuGetErrorString(result)
    return wording(result.name, text.decode() if text else "")


def wording(name: str, text: str) -> str:
    """An error's name, the driver's text and our hint, on one line."""
    words = f"{name} ({text})" if text else name
    return f"{words}: {_HINTS[name]}" if name in _HINTS else words


def error_name(code: int) -> str:
    """``CUDA_ERROR_…`` for a result code that is not success."""
    try:
        return str(bindings().CUresult(code).name)
    except ValueError:
        return f"CUDA_ERROR_{code}"


def check(result: Sequence[Any], action: str, *, asked: int = 0) -> Any:
    """Unwraps the result of a function of the bindings: nothing, one value, or a tuple.

    ``action`` completes "… failed", ``asked`` is the size in bytes of a memory request. Raises :class:`DeviceError` for every
    result but success; for out of memory with the device, the requested and the free size.
    """
    code, *values = result
    if int(code) != 0:
        if code.name == _OUT_OF_MEMORY:
            raise DeviceError(_out_of_memory(action, asked))
        raise DeviceError(f"{action} failed: {explain(int(code))}")
    match values:
        case []:
            return None
        case [value]:
            return value
        case _:
            return tuple(values)


def _out_of_memory(action: str, asked: int) -> str:
    driver = bindings()
    code, index = driver.cuCtxGetDevice()
    label = f"cuda:{int(index)}" if int(code) == 0 else "the device"
    code, free, total = driver.cuMemGetInfo()
    return memory_message(label, action, asked, (free, total) if int(code) == 0 else None)


def memory_message(label: str, action: str, asked: int, room: tuple[int, int] | None) -> str:
    """The message for a device without enough memory; ``room`` is (free, total) in bytes, if the driver reports it."""
    wanted = f" asked for {size_text(asked)};" if asked else ""
    there = f" {size_text(room[0])} of {size_text(room[1])} free" if room else " free memory unknown"
    return f"{label} is out of memory: {action}{wanted}{there}; use a smaller workload or free the device"


def size_text(size: int) -> str:
    """A number of bytes as text: ``1.5 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def initialise() -> None:
    """Starts the driver in this process (never before a fork). Raises :class:`DeviceError` without a driver."""
    driver = bindings()
    try:
        result = driver.cuInit(0)
    except RuntimeError as error:
        raise DeviceError(_NO_DRIVER.format(error)) from error
    check(result, "starting the CUDA driver")


def device_count() -> int:
    """The number of devices visible to this process. Raises :class:`DeviceError` without a driver."""
    initialise()
    return int(check(bindings().cuDeviceGetCount(), "counting the devices"))


def _device(index: int) -> Any:
    count = device_count()
    if not 0 <= index < count:
        seen = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
        raise DeviceError(f"unknown device cuda:{index}: this machine has {seen}")
    return check(bindings().cuDeviceGet(index), f"opening cuda:{index}")


def attribute(device: Any, name: str) -> int:
    """One ``CU_DEVICE_ATTRIBUTE_<name>`` of a driver's device handle."""
    key = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(bindings().cuDeviceGetAttribute(key, device), f"reading {name.lower()} of the device"))


def describe(index: int) -> Device:
    """The properties of ``cuda:index`` that builds, launches and baselines depend on; creates no context.

    Raises :class:`DeviceError` for an unknown device.
    """
    device = _device(index)
    driver = bindings()
    name = check(driver.cuDeviceGetName(128, device), f"naming cuda:{index}")
    major, minor = attribute(device, "COMPUTE_CAPABILITY_MAJOR"), attribute(device, "COMPUTE_CAPABILITY_MINOR")
    return Device(
        kind="cuda",
        index=index,
        name=name.split(b"\0", 1)[0].decode(),
        arch=arch_text(major, minor),
        units=attribute(device, "MULTIPROCESSOR_COUNT"),
        cache_bytes=attribute(device, "L2_CACHE_SIZE"),
        memory_bytes=int(check(driver.cuDeviceTotalMem(device), f"sizing cuda:{index}")),
        software=_software(int(check(driver.cuDriverGetVersion(), "reading the driver's version"))),
    )


def bus_id(index: int) -> str:
    """The PCI bus id of ``cuda:index``: ``0000:1B:00.0``. Raises :class:`DeviceError` for an unknown device."""
    found = check(bindings().cuDeviceGetPCIBusId(32, _device(index)), f"reading the PCI bus id of cuda:{index}")
    return str(found.split(b"\0", 1)[0].decode())


def arch_text(major: int, minor: int) -> str:
    """The build target: ``sm_90a`` on Hopper, whose specific instructions need it, else ``sm_XY``."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def _software(cuda: int) -> str:
    parts = [f"driver {_driver_version()}", f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"]
    torch = _torch_version()
    return ", ".join([*parts, f"torch {torch}"] if torch else parts)


def _driver_version() -> str:
    for path in ("/sys/module/nvidia/version", "/proc/driver/nvidia/version"):
        try:
            version = version_in(Path(path).read_text(encoding="utf-8"))
        except OSError:
            continue
        if version:
            return version
    return "unknown"


def version_in(text: str) -> str:
    """The driver's version in its kernel module's version text: the first dotted number; empty if there is none."""
    found = re.search(r"(?<!\S)\d+(?:\.\d+)+(?!\S)", text)
    return found[0] if found else ""


def _torch_version() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Context:
    """A device's primary context, current in this thread. Torch uses the same one: pointers and streams are shared."""

    index: int
    device: int
    """The driver's handle of the device."""

    @classmethod
    def open(cls, index: int) -> Context:
        """Retains the primary context of ``cuda:index`` and makes it current. Raises :class:`DeviceError`."""
        device = _device(index)
        driver = bindings()
        context = check(driver.cuDevicePrimaryCtxRetain(device), f"making a context on cuda:{index}")
        check(driver.cuCtxSetCurrent(context), f"entering the context of cuda:{index}")
        return cls(index, int(device))

    def attribute(self, name: str) -> int:
        """One ``CU_DEVICE_ATTRIBUTE_<name>`` of this context's device."""
        return attribute(bindings().CUdevice(self.device), name)

    def keep_pool_memory(self) -> None:
        """Keeps what ``cudaFreeAsync`` frees in the device's pool. The driver would return it at the next wait for the device,
        and that wait would look like work after the call."""
        pool, most = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
        found = native().cuDeviceGetDefaultMemPool(ctypes.byref(pool), ctypes.c_int(self.device))
        found = found or native().cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(most))
        if found and found != _NOT_SUPPORTED:
            raise DeviceError(f"keeping the memory pool of cuda:{self.index}: {explain(found)}")

    def synchronise(self) -> None:
        """Waits for all work of the context, on any stream. Raises :class:`DeviceError` if any of it failed."""
        check(bindings().cuCtxSynchronize(), f"waiting for cuda:{self.index}")

    def reset(self) -> None:
        """Ends the primary context, with all its memory, code and errors, and releases it: ``open`` makes another.

        Nothing may use what was made in it, and lent memory must be unmapped before: mappings outlive a context. Raises
        :class:`DeviceError`.
        """
        driver = bindings()
        check(driver.cuDevicePrimaryCtxReset(driver.CUdevice(self.device)), f"resetting the context of cuda:{self.index}")
        self.close()  # a reset releases nothing

    def close(self) -> None:
        """Releases the context; it ends with its last holder. Never raises, even for a faulted context."""
        driver = bindings()
        driver.cuDevicePrimaryCtxRelease(driver.CUdevice(self.device))


def free_bytes() -> int:
    """Free memory of the current context's device, in bytes. Raises :class:`DeviceError`."""
    free, _total = check(bindings().cuMemGetInfo(), "reading how much device memory is free")
    return int(free)
