"""Which device this machine has, asked of the driver alone: no torch, no context on the device."""

from __future__ import annotations

import ctypes
import functools
import re

from engine.domain.errors import DeviceError

_DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?")


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """The names of the GPUs that the driver offers; empty without a driver or a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return ()
        return tuple(_name(driver, index) for index in range(count.value))
    except (OSError, AttributeError):
        return ()


def _name(driver: ctypes.CDLL, index: int) -> str:
    device = ctypes.c_int(0)
    text = ctypes.create_string_buffer(256)
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetName(text, 256, device):
        return "unknown"
    return text.value.decode(errors="replace")


def checked_device(text: str | None) -> str:
    """``cpu`` or ``cuda:N``, here; the default is the first GPU, else the CPU. Raises DeviceError."""
    if text is None:
        return "cuda:0" if gpu_names() else "cpu"
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise DeviceError(f"unknown device {text!r}: use cpu or cuda:0")
    if text == "cpu":
        return text
    index, there = int(match.group(1) or 0), len(gpu_names())
    if not there:
        raise DeviceError(f"there is no GPU here for --device {text}: use --device cpu; `espalier doctor` says what is missing")
    if index >= there:
        raise DeviceError(f"there is no device cuda:{index} here: the GPUs are cuda:0 to cuda:{there - 1}")
    return f"cuda:{index}"


def usual_workload(device: str) -> str:
    """The workload that suits a device."""
    return "small" if device == "cpu" else "full"
