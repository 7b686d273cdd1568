"""How busy and how hot a GPU is, and whether it throttles: sampled beside the search for the session's header.

Reads the device through NVML, in a thread of its own, once a second. NVML holds no context on the device and disturbs no
measurement. Where the library or the driver is missing there is no reading.
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
    """Per cent of the last moment in which a kernel ran."""
    celsius: int
    throttled_by: str = ""
    """Why its clocks are lowered; empty when they are not."""

    @property
    def text(self) -> str:
        """``GPU 83 % 61 °C``, with what throttles it."""
        return f"GPU {self.load} % {self.celsius} °C{f' ▼ throttled: {self.throttled_by}' if self.throttled_by else ''}"


Sample = Callable[[], LoadReading]


class LoadMonitor:
    """The latest reading of a device, renewed by a thread until it is closed or the device can no longer be read."""

    def __init__(self, open_device: Callable[[], Sample], period: float = SAMPLE_SECONDS) -> None:
        """``open_device`` runs in the thread: loading a vendor's library takes a while."""
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
        except Exception:  # no library, no driver, a device that fell off the bus: the header works without figures
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
    """Reads one device through NVML; raises where it cannot be used."""
    gpu = nvml.open_gpu(nvml.physical_device(index, os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    return partial(_sample, gpu)


def _sample(gpu: nvml.Gpu) -> LoadReading:
    reading = gpu.reading()
    if reading.load is None or reading.celsius is None:
        raise nvml.NvmlMissing("the device does not tell its load and temperature")
    return LoadReading(reading.load, reading.celsius, next(iter(gpu.slowed_by() or ()), ""))
