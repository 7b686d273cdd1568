"""The peak memory of a process and everything it started, by sampling: device memory on a GPU, host memory on a CPU.

On a GPU it is what the device has in use beyond what it had at the start: other work on the device counts too. On a CPU it is
the proportional set size of all processes: a page that several share counts once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

_EVERY_S = {"cpu": 0.25, "cuda": 0.05}
"""Least seconds between samples."""
_REST = {"cpu": 100, "cuda": 0}
"""Least seconds between samples for each second that one takes. Page tables of large processes take 25 ms: on two cores, four
times a second, that disturbed every process pair, and no kernel was corroborated."""


class PeakMemory:
    """Samples until its task is cancelled. ``peak`` is 0 where nothing can be read."""

    def __init__(self, pid: int, device: str) -> None:
        self.peak = 0
        kind = device.partition(":")[0]
        self._every_s, self._rest = _EVERY_S[kind], _REST[kind]
        self._used = (lambda: host_bytes(pid)) if device == "cpu" else _device_reader(device)
        self._before = 0 if device == "cpu" else self._used()

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            began = time.monotonic()
            self.peak = max(self.peak, self._used() - self._before)
            await asyncio.sleep(max(self._every_s, self._rest * (time.monotonic() - began)))


def _device_reader(device: str) -> Callable[[], int]:
    """Bytes in use on a GPU, through NVML; 0 without it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
    except Exception:
        return lambda: 0
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def host_bytes(root: int) -> int:
    """Memory of a process and all below it: each page is divided by the number of processes that have it."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                children[int(after_name[1])].append(int(entry.name))
    total, queue = 0, [root]
    while queue:
        pid = queue.pop()
        total += _proportional_bytes(pid)
        queue += children[pid]
    return total


def _proportional_bytes(pid: int) -> int:
    """A process's proportional set size; 0 where it cannot be read."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
