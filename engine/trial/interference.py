"""Whether something else had the processor while a call was being timed.

On a CPU the kernel accounts for it: pressure-stall time (a task that could run was kept waiting) and stolen time (the
hypervisor ran somebody else). A sample taken meanwhile is marked, and taken again where there is patience left. Where one of
them cannot be read the other counts alone; where neither can, nothing is marked. On a GPU the device is the judge's own
question: ``engine.trial.pairing`` keeps it idle, ``engine.trial.surroundings`` sees who else is on it.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine.trial.surroundings import stolen_ticks

_PRESSURE = Path("/proc/pressure/cpu")
_SHARE = 0.03
"""Of the call's wall time that may be lost to others before the sample counts as disturbed."""


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
    waited, stolen = _waited_us(), stolen_ticks()
    if waited is None and stolen is None:
        return None
    return (waited or 0.0) + (stolen or 0) * 1e6 / os.sysconf("SC_CLK_TCK")


def _waited_us() -> float | None:
    try:
        return float(_PRESSURE.read_text().partition("\n")[0].rsplit("total=", 1)[1])
    except (OSError, ValueError, IndexError):
        return None
