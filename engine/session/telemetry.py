"""Samples a GPU's load, temperature and throttling during a search, for the session's header.

Reads the device through NVML in a separate thread, once a second. NVML holds no device context and does not disturb
measurements. Without the library or the driver there are no readings.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.trial.judge import nvml

SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LoadReading:
    """One sample of a device's state."""

    load: int
    """Per cent of the last sampling period during which a kernel ran."""
    celsius: int
    throttled_by: str = ""
    """Why its clocks are lowered; empty if they are not."""

    @property
    def text(self) -> str:
        """``GPU 83% 61 °C``, with the reason for throttling."""
        return f"GPU {self.load}% {self.celsius} °C{f' ▼ throttled: {self.throttled_by}' if self.throttled_by else ''}"


Sample = Callable[[], LoadReading]


class LoadMonitor:
    """The latest reading of a device, updated by a thread until the monitor is closed or reading fails."""

    def __init__(self, open_device: Callable[[], Sample], period: float = SAMPLE_SECONDS) -> None:
        """``open_device`` runs in the thread, because loading the vendor's library is slow."""
        self._open_device = open_device
        self._period = period
        self._closed = threading.Event()
        self.latest: LoadReading | None = None
        self._thread = threading.Thread(target=self._run, name="espalier-telemetry", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            sample = self._open_device()
            while not self._closed.is_set():
                self.latest = sample()
                self._closed.wait(self._period)
        except Exception:  # no library, no driver, or a lost device: the header shows no readings
            self.latest = None

    def close(self) -> None:
        """Stop sampling."""
        self._closed.set()
        self._thread.join(self._period)


def open_monitor(device: str) -> LoadMonitor | None:
    """A monitor of ``cuda:N``, without readings where the library or the driver is missing; ``None`` for a CPU."""
    kind, _, index = device.partition(":")
    return LoadMonitor(partial(_open_gpu, int(index or 0))) if kind == "cuda" else None


def _open_gpu(index: int) -> Sample:
    """Reads one device through NVML; raises if NVML fails."""
    gpu = nvml.open_gpu(nvml.physical_device(index, os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    return partial(_sample, gpu)


def _sample(gpu: nvml.Gpu) -> LoadReading:
    reading = gpu.reading()
    if reading.load is None or reading.celsius is None:
        raise nvml.NvmlMissing("the device does not report load and temperature")
    return LoadReading(reading.load, reading.celsius, next(iter(gpu.slowed_by() or ()), ""))
