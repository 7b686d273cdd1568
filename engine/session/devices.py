"""Lists this machine's devices through the driver, without torch and without a device context."""

from __future__ import annotations

import ctypes
import functools
import re

from engine.domain.errors import DeviceError

_DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?")


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """The names of the GPUs that the driver reports; empty without a driver or a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return ()
        return tuple(_gpu_name(driver, index) for index in range(count.value))
    except (OSError, AttributeError):
        return ()


def _gpu_name(driver: ctypes.CDLL, index: int) -> str:
    device = ctypes.c_int(0)
    text = ctypes.create_string_buffer(256)
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetName(text, 256, device):
        return "unknown"
    return text.value.decode(errors="replace")


def devices() -> tuple[tuple[str, str], ...]:
    """(label, name) of this machine's devices: the GPUs, then the CPU."""
    return (*((f"cuda:{n}", name) for n, name in enumerate(gpu_names())), ("cpu", "this machine's processor"))


def checked_device(text: str | None) -> str:
    """``cpu`` or ``cuda:N``, if this machine has the device; by default the first GPU, else the CPU. Raises DeviceError."""
    if text is None:
        return devices()[0][0]
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise DeviceError(f"unknown device {text!r}: use cpu or cuda:0")
    if text == "cpu":
        return text
    index, count = int(match.group(1) or 0), len(gpu_names())
    if not count:
        raise DeviceError(f"no GPU found for --device {text}: use --device cpu; `espalier doctor` shows what is missing")
    if index >= count:
        raise DeviceError(f"device cuda:{index} not found: this machine has cuda:0 to cuda:{count - 1}")
    return f"cuda:{index}"


def default_workload(device: str) -> str:
    """The default workload of a device."""
    return "small" if device == "cpu" else "full"
