"""Whether something else had the processor while a call was being timed.

On a CPU the kernel accounts for it: how long the threads of the called process could have run and waited for a core, and stolen
time (the hypervisor ran somebody else). Where a process's own waits cannot be read, those of all tasks are taken
(pressure-stall time), though the judge's own count there too. A sample taken meanwhile is marked, and taken again where there
is patience left. Where one of the two cannot be read the other counts alone; where neither can, nothing is marked. On a GPU
the device is the judge's own question: ``engine.trial.pairing`` keeps it idle, ``engine.trial.surroundings`` sees who else is
on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.trial.surroundings import stolen_ticks

_PRESSURE = Path("/proc/pressure/cpu")
_SHARE = 0.03
"""Of the call's wall time that may be lost to others before the sample counts as disturbed."""


class Interference:
    """Readings right before and right after the kernel's own part of a call, in microseconds lost: a ``seat.Attendant``.

    What happens while the process is woken and stopped again is not looked at: threads of OpenMP spin then, and wait for the
    cores that the judge and the host need.
    """

    def __init__(self, device: str) -> None:
        self._watching = device == "cpu" and _lost(None) is not None
        self._process: int | None = None
        self._before = self._lost = 0.0

    def of(self, process: int | None) -> Interference:
        """This, for the next call of ``process``, as it is known here; ``None`` where that is not known."""
        self._process = process
        self._before = self._lost = 0.0
        return self

    def before(self) -> None:
        """Note the counters."""
        if self._watching:
            self._before = _lost(self._process) or 0.0

    def after(self) -> None:
        """See what was lost since."""
        if self._watching:
            self._lost = (_lost(self._process) or 0.0) - self._before

    def disturbed(self, wall_us: float) -> bool:
        """Whether more than a small share of the last call was lost to others."""
        return self._watching and self._lost > _SHARE * wall_us


def known_here(inner: int, beneath: int) -> int | None:
    """The process that is called ``inner`` in a process space whose first process is a child of ``beneath``; ``None`` where
    there is none, or where it cannot be seen."""
    seen = list(_processes())
    parents = {pid: parent for pid, parent, _ in seen}
    same = (pid for pid, parent, within in seen if len(within) > 1 and within[-1] == inner and parents.get(parent) == beneath)
    return next(same, None)


def _processes() -> Iterator[tuple[int, int, list[int]]]:
    """(number here, parent's number here, its numbers from here inwards) of each process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            yield int(folder.name), int(lines["PPid"]), [int(number) for number in lines["NSpid"].split()]
        except (OSError, ValueError, KeyError):
            continue  # it has gone, or this system does not say


def _lost(process: int | None) -> float | None:
    """Microseconds so far in which the process waited for a core or the hypervisor took one; ``None`` if unknown."""
    waited = _waited_us(process)
    stolen = stolen_ticks()
    if waited is None and stolen is None:
        return None
    return (waited or 0.0) + (stolen or 0) * 1e6 / os.sysconf("SC_CLK_TCK")


def _waited_us(process: int | None) -> float | None:
    if process is not None and (own := _own_waits_us(process)) is not None:
        return own
    try:
        return float(_PRESSURE.read_text().partition("\n")[0].rsplit("total=", 1)[1])
    except (OSError, ValueError, IndexError):
        return None


def _own_waits_us(process: int) -> float | None:
    """What all threads of a process have waited for a core while they could run."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e3
    except (OSError, ValueError, IndexError):
        return None
