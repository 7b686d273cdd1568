"""Which devices this machine has, by the driver alone: no torch, no context on a device."""

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
    """(label, name) of what this machine can measure on: its GPUs, then the CPU."""
    return (*((f"cuda:{n}", name) for n, name in enumerate(gpu_names())), ("cpu", "this machine's processor"))


def checked_device(text: str | None) -> str:
    """``cpu`` or ``cuda:N``, if this machine has it; the first GPU, else the CPU, without a text. Raises DeviceError."""
    if text is None:
        return devices()[0][0]
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise DeviceError(f"unknown device {text!r}: use cpu or cuda:0")
    if text == "cpu":
        return text
    index, count = int(match.group(1) or 0), len(gpu_names())
    if not count:
        raise DeviceError(f"there is no GPU here for --device {text}: use --device cpu; `espalier doctor` says what is missing")
    if index >= count:
        raise DeviceError(f"there is no device cuda:{index} here: the GPUs are cuda:0 to cuda:{count - 1}")
    return f"cuda:{index}"


def default_workload(device: str) -> str:
    """The workload that suits a device."""
    return "small" if device == "cpu" else "full"
