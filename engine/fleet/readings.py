"""Clock and temperature of a worker's device, for the people who watch it. Disturbs no measurement; never raises."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path

from engine.trial.judge import nvml

Reading = tuple[int | None, int | None]
"""Clock in MHz and temperature in °C, where known."""
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def reader(device: str, cores: tuple[int, ...]) -> Callable[[], Reading]:
    """Reads ``cuda:N`` of this process, or these cores."""
    if device == "cpu":
        core = min(cores, default=0)
        return lambda: (_core_mhz(core), _cpu_celsius())
    index = int(device.partition(":")[2] or 0)
    try:
        gpu = nvml.open_gpu(nvml.physical_device(index, os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    except nvml.NvmlMissing:
        return lambda: (None, None)

    def read() -> Reading:
        found = gpu.reading()
        return found.sm_mhz, found.celsius

    return read


def _core_mhz(core: int) -> int | None:
    khz = _number(Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"))
    if khz is not None:
        return khz // 1000
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    clocks = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("cpu mhz")]
    try:
        return round(float(clocks[core]))
    except (IndexError, ValueError):
        return None


def _cpu_celsius() -> int | None:
    for folder in map(Path, sorted(glob.glob("/sys/class/hwmon/hwmon*"))):
        try:
            known = (folder / "name").read_text().strip() in _CPU_SENSORS
        except OSError:
            continue
        if known and (thousandths := _number(folder / "temp1_input")) is not None:
            return thousandths // 1000
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
