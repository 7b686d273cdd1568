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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.trial.surroundings import stolen_ticks

_PRESSURE = Path("/proc/pressure/cpu")
_SHARE = 0.03
"""Of the call's wall time that may be lost to others before the sample counts as disturbed."""
_WAKING_US = 40.0
"""What it takes the threads of a process that was just woken to get their cores, before any clock of the kernel's runs."""
_WOKEN_US = 25.0
"""What a thread needs that is woken with its process and goes back to sleep (9 to 14 us were seen). It waits for those that
work, and nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment, in microseconds."""

    threads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """How long each thread of the process has run, and how long it could have run but waited for a core."""
    elsewhere: float = 0.0
    """Stolen from the machine; where the threads cannot be read, what all tasks have waited besides."""


def lost_us(before: Reading, after: Reading) -> float:
    """What others took in between: stolen time, and the waits of the threads that did any work."""
    lost = after.elsewhere - before.elsewhere
    for thread, (ran, waited) in after.threads.items():
        ran_before, waited_before = before.threads.get(thread, (0.0, 0.0))
        if ran - ran_before > _WOKEN_US:
            lost += waited - waited_before
    return lost


class Interference:
    """Readings right before and right after the kernel's own part of a call: a ``seat.Attendant``.

    How it is stopped again is not looked at: threads of OpenMP spin then, and wait for the cores that the judge needs.
    """

    def __init__(self, device: str) -> None:
        self._watching = device == "cpu" and _read(None) is not None
        self._process: int | None = None
        self._before: Reading | None = None
        self._lost = 0.0

    def of(self, process: int | None) -> Interference:
        """This, for the next call of ``process``, as it is known here; ``None`` where that is not known."""
        self._process = process
        self._lost = 0.0
        return self

    def before(self) -> None:
        """Note the counters."""
        if self._watching:
            self._before = _read(self._process)

    def after(self) -> None:
        """See what was lost since."""
        if self._watching:
            after = _read(self._process)
            self._lost = lost_us(self._before, after) if self._before is not None and after is not None else 0.0

    def disturbed(self, wall_us: float) -> bool:
        """Whether more than a small share of the last call was lost to others."""
        return self._watching and self._lost > _WAKING_US + _SHARE * wall_us


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


def _read(process: int | None) -> Reading | None:
    """The counters as they are; ``None`` where there are none."""
    stolen = stolen_ticks()
    stolen_us = None if stolen is None else stolen * 1e6 / os.sysconf("SC_CLK_TCK")
    threads = _threads(process) if process is not None else None
    if threads is not None:
        return Reading(threads, stolen_us or 0.0)
    pressure = _pressure_us()
    if pressure is None and stolen_us is None:
        return None
    return Reading(elsewhere=(pressure or 0.0) + (stolen_us or 0.0))


def _pressure_us() -> float | None:
    try:
        return float(_PRESSURE.read_text().partition("\n")[0].rsplit("total=", 1)[1])
    except (OSError, ValueError, IndexError):
        return None


def _threads(process: int) -> dict[str, tuple[float, float]] | None:
    """What each thread of a process has run, and what it has waited for a core while it could run."""
    try:
        folders = list(Path(f"/proc/{process}/task").iterdir())
        found = {folder.name: (folder / "schedstat").read_text().split() for folder in folders}
        return {name: (int(fields[0]) / 1e3, int(fields[1]) / 1e3) for name, fields in found.items()}
    except (OSError, ValueError, IndexError):
        return None
