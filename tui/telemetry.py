"""How hard the GPU works, how hot it is, and whether it holds itself back: sampled beside the search, shown in the header.

Uses the vendor's own library where it is there and says nothing where it is not. The library talks to the driver only: it
holds no context on the device and disturbs no measurement. Sampled once a second in a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.trial import nvml

EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the device."""

    load: int
    """Per cent of the last moment in which a kernel ran."""
    celsius: int
    held_back: str = ""
    """Why its clocks are lowered; empty when they are not."""

    @property
    def words(self) -> str:
        """``GPU 83 % 61 °C``, with what holds it back."""
        return f"GPU {self.load} % {self.celsius} °C{f' ▼ throttled: {self.held_back}' if self.held_back else ''}"


Look = Callable[[], Reading]
Open = Callable[[], Look]


class Feed:
    """The latest reading of a device, renewed by a thread until it is closed or the device can no longer be read."""

    def __init__(self, opened: Open, every: float = EVERY_SECONDS) -> None:
        """``opened`` finds the device, in the thread: loading a vendor's library takes a while."""
        self._open = opened
        self._every = every
        self._ended = threading.Event()
        self.latest: Reading | None = None
        self._thread = threading.Thread(target=self._sample, name="espalier-telemetry", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        try:
            look = self._open()
            while not self._ended.is_set():
                self.latest = look()
                self._ended.wait(self._every)
        except Exception:  # no library, no driver, a device that fell off: a header without figures is no trouble
            self.latest = None

    def close(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join(self._every)


def feed_for(device: str) -> Feed | None:
    """A feed on ``cuda:N``, silent where the library or the driver is missing; ``None`` for a CPU."""
    kind, _, index = device.partition(":")
    return Feed(partial(_vendor, int(index or 0))) if kind == "cuda" else None


def _vendor(index: int) -> Look:
    """Reads one device through NVML; raises where it cannot be used."""
    gpu = nvml.open_gpu(nvml.physical(index, os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    return partial(_look, gpu)


def _look(gpu: nvml.Gpu) -> Reading:
    found = gpu.reading()
    if found.load is None or found.celsius is None:
        raise nvml.NvmlMissing("the device does not tell its load and temperature")
    return Reading(found.load, found.celsius, next(iter(gpu.slowed_by() or ()), ""))
