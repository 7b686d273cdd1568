"""Whether something else had the processor while a call was being timed.

On a CPU the kernel accounts for it: pressure-stall time (a task that could run was kept waiting) and stolen time (the
hypervisor ran somebody else). A sample taken meanwhile is marked, and taken again where there is patience left. Where neither
can be read, nothing is marked. On a GPU the device is the judge's own question (``engine.trial.pairing`` keeps it idle).
"""

from __future__ import annotations

import os
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")
_STAT = Path("/proc/stat")
_SHARE = 0.03
"""Of the call's wall time that may be lost to others before the sample counts as disturbed."""
_STEAL_FIELD = 8


class Interference:
    """Readings before and after a call, in microseconds lost so far."""

    def __init__(self, device: str) -> None:
        self._watching = device == "cpu" and _lost() is not None
        self._before = 0.0

    def begin(self) -> None:
        """Note the counters right before a call."""
        if self._watching:
            self._before = _lost() or 0.0

    def disturbed(self, wall_us: float) -> bool:
        """Whether more than a small share of the call since ``begin`` was lost to others."""
        if not self._watching:
            return False
        return (_lost() or 0.0) - self._before > _SHARE * wall_us


def _lost() -> float | None:
    """Microseconds since boot in which a runnable task waited or the hypervisor took a core; ``None`` if unknown."""
    try:
        some = _PRESSURE.read_text().partition("\n")[0]
        stolen = int(_STAT.read_text().partition("\n")[0].split()[_STEAL_FIELD])
        return int(some.rsplit("total=", 1)[1]) + stolen * 1e6 / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
