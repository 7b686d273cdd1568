"""A GPU through NVML: clocks, power, temperature, reasons for throttling, processes. No torch.

NVML talks to the driver only: it holds no context on the device and disturbs no measurement. Where the library, the driver or
a reading is missing, the value is ``None``; nothing fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SLOWED_BY = (
    (0x40, "heat"),
    (0x20, "heat"),
    (0x80, "power brake"),
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x10, "sync boost"),
)
"""Bits of NVML's clocks event reasons that lower the clocks, most specific first; without idleness and user-set clocks."""
_HARDWARE_SLOWDOWN, _ITS_CAUSES = 0x08, 0x40 | 0x80
_POWER_NOW = 186
"""``NVML_FI_DEV_POWER_INSTANT``."""
_TEMPERATURE_OF_GPU, _CLOCK_OF_SM, _CLOCK_OF_MEMORY = 0, 1, 2


class NvmlMissing(Exception):
    """NVML cannot be used here; carries the reason, on one line."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a device; ``None`` where unavailable."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    watts: float | None = None
    celsius: int | None = None
    load: int | None = None
    """Percentage of the last sampling period during which a kernel ran."""


class Gpu:
    """One device as NVML sees it."""

    def __init__(self, library: Any, handle: Any) -> None:
        """``library`` is the initialised module ``pynvml``, or a stand-in."""
        self._nvml = library
        self._handle = handle
        self._reasons = _first(library, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

    def reading(self) -> GpuReading:
        """Clocks, power, temperature and load now. Never raises."""
        watts = self._query("nvmlDeviceGetPowerUsage")
        load = self._query("nvmlDeviceGetUtilizationRates")
        return GpuReading(
            self._query("nvmlDeviceGetClockInfo", _CLOCK_OF_SM),
            self._query("nvmlDeviceGetClockInfo", _CLOCK_OF_MEMORY),
            None if watts is None else watts / 1e3,
            self._query("nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
            None if load is None else int(load.gpu),
        )

    def slowed_by(self) -> tuple[str, ...] | None:
        """Why the device's clocks are lowered, most specific reason first; ``None`` where unknown. Never raises."""
        if self._reasons is None:
            return None
        try:
            return slowed_by(int(self._reasons(self._handle)))
        except self._nvml.NVMLError:
            return None

    def sm_mhz(self) -> int | None:
        """The SM clock now; ``None`` where unknown. Never raises."""
        mhz: int | None = self._query("nvmlDeviceGetClockInfo", _CLOCK_OF_SM)
        return mhz

    def watts(self) -> float | None:
        """The power draw now, in watts; the average of the last second where the driver knows no other. Never raises."""
        found = self._query("nvmlDeviceGetFieldValues", [_POWER_NOW])
        if found and found[0].nvmlReturn == 0 and found[0].value.uiVal:
            return float(found[0].value.uiVal) / 1e3
        milliwatts = self._query("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else float(milliwatts) / 1e3

    def processes(self) -> frozenset[int] | None:
        """The driver's ids of the processes with work on the device; ``None`` where unknown."""
        found: set[int] = set()
        answered = False
        for kind in ("Compute", "Graphics", "MPSCompute"):
            running = self._query(f"nvmlDeviceGet{kind}RunningProcesses")
            if running is not None:
                answered = True
                found |= {int(process.pid) for process in running}
        return frozenset(found) if answered else None

    def _query(self, name: str, *more: object) -> Any:
        ask = getattr(self._nvml, name, None)
        if ask is None:
            return None
        try:
            return ask(self._handle, *more)
        except self._nvml.NVMLError:
            return None


def slowed_by(reasons: int) -> tuple[str, ...]:
    """Names of the slowing reasons in a mask of NVML's clocks event reasons, each once, causes before effects."""
    if reasons & _ITS_CAUSES:
        reasons &= ~_HARDWARE_SLOWDOWN
    return tuple(dict.fromkeys(words for bit, words in SLOWED_BY if reasons & bit))


def open_gpu(which: int | str) -> Gpu:
    """A device by NVML's own number, by UUID or by PCI bus id (``0000:1B:00.0``).

    Raises :class:`NvmlMissing` if the library, the driver or the device is missing.
    """
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        raise NvmlMissing("nvidia-ml-py is not installed: pip install 'espalier[gpu]'") from None
    return open_with(library, which)


def open_with(library: Any, which: int | str) -> Gpu:
    """``open_gpu`` with a given library."""
    find: Callable[[Any], Any]
    if isinstance(which, int):
        find = library.nvmlDeviceGetHandleByIndex
    elif which.startswith(("GPU-", "MIG-")):
        find = library.nvmlDeviceGetHandleByUUID
    else:
        find = library.nvmlDeviceGetHandleByPciBusId
    try:
        library.nvmlInit()
        return Gpu(library, find(which))
    except library.NVMLError as error:
        raise NvmlMissing(" ".join(str(error).split())) from error


def physical_device(index: int, visible: str) -> int | str:
    """The machine's number or UUID of ``cuda:index``, if only some devices are ``visible`` (``CUDA_VISIBLE_DEVICES``).

    A guess: the driver's order can differ from the machine's. The PCI bus id is reliable.
    """
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        return index
    return int(names[index]) if names[index].isdecimal() else names[index]


def _first(library: Any, *names: str) -> Any:
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)
