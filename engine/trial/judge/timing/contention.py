"""CPU contention: whether other work used the processor while a call was timed.

Sources: the time that the runner's threads and the judge's waited for a core (schedstat), and steal time. Where a process's
waits cannot be read, the pressure-stall time of all tasks is used. A disturbed sample is marked, and repeated within limits. If
one source cannot be read, the other counts alone; if neither can, nothing is marked. Not for GPUs: ``interleaving`` keeps the
device idle between calls, and ``conditions`` reports who else uses it.

A process that uses more processor time than its cores have has moved to others: a filter cannot see where a thread moves.

Threads also wait for other threads of their own kernel, as many of them as it likes and when it likes. Waits are therefore
contention only while processes beside the trial use the cores (``OtherWork``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.trial.judge.timing.conditions import stolen_ticks

_PRESSURE = Path("/proc/pressure/cpu")
_OWN_THREAD = Path("/proc/thread-self/schedstat")
_STAT = Path("/proc/stat")
_ROUNDING_TICKS = 3
"""What sums of clock ticks, each rounded by the kernel, may differ by."""
_IDLE_FIELDS = (4, 5)
"""Of a row of ``/proc/stat``: idle, and waiting for input or output."""
_OTHER_SHARE = 0.02
"""Share of the cores' time that processes beside the trial may use before waits count as contention: they are counted in
clock ticks, and the system itself uses some."""
_SHARE = 0.03
"""Share of a call's wall time that may be lost to others before its sample counts as disturbed."""
_WAKING_US = 40.0
"""Time that sleeping threads need to get their cores when a call starts, before the kernel's own clock starts."""
_MOST_OF_CORES, _UNCOUNTED_US = 1.02, 200.0
"""A process that keeps to its cores was never seen to use more than so many times their time, and so many microseconds."""
_PROCESS_CLOCK = 2
"""Low bits of the clock of a process's processor time: as the scheduler accounts for it."""
_WOKEN_US = 25.0
"""Run time of a thread that is resumed with its process and sleeps again (measured: 9 to 14 µs). Its waits do not count."""


@dataclass(frozen=True, slots=True)
class ProcessorReading:
    """The counters at one moment, in microseconds."""

    threads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Thread → (run time, time waiting for a core)."""
    others_us: float = 0.0
    """Steal time and the waits of the judge's thread; where the others cannot be read, instead those of all tasks."""


def lost_us(before: ProcessorReading, after: ProcessorReading) -> float:
    """Time lost in between: what others took, and the waits of threads that did work."""
    lost = after.others_us - before.others_us
    for thread, (ran, waited) in after.threads.items():
        ran_before, waited_before = before.threads.get(thread, (0.0, 0.0))
        if ran - ran_before > _WOKEN_US:
            lost += waited - waited_before
    return lost


class ContentionMonitor:
    """Readings right before and right after the kernel's part of a call: a ``runner_client.CallHook``.

    Stopping the runner afterwards does not count: OpenMP's threads still spin then, and wait for cores that the judge uses.
    """

    def __init__(self, device: str) -> None:
        self._watching = device == "cpu" and _read(None) is not None
        self._process: int | None = None
        self._before: ProcessorReading | None = None
        self._lost = 0.0
        self._cores = len(os.sched_getaffinity(0))
        self._began_ns, self._used_ns = 0, -1
        self.share_used = 0.0
        """Processor time of the process in the last call, as a share of what the cores had; without its children's."""

    def for_process(self, process: int | None) -> ContentionMonitor:
        """This monitor, for the next call of ``process`` (its pid here, ``None`` where unknown)."""
        self._process = process
        self._lost, self.share_used = 0.0, 0.0
        return self

    def before(self) -> None:
        """Read the counters."""
        if self._watching:
            self._before = _read(self._process)
            self._began_ns, self._used_ns = time.perf_counter_ns(), processor_ns(self._process)

    def after(self) -> None:
        """Compute what was lost and used since."""
        if self._watching:
            used_ns = processor_ns(self._process)
            there_ns = self._cores * (time.perf_counter_ns() - self._began_ns)
            used_us = (used_ns - self._used_ns) / 1e3 if min(used_ns, self._used_ns) >= 0 else 0.0
            self.share_used = max(0.0, used_us - _UNCOUNTED_US) / (there_ns / 1e3)
            after = _read(self._process)
            self._lost = lost_us(self._before, after) if self._before is not None and after is not None else 0.0

    def disturbed(self, wall_us: float) -> bool:
        """Whether other work took more than a small share of the last call."""
        return self._watching and self._lost > _WAKING_US + _SHARE * wall_us

    @property
    def overuse(self) -> str:
        """A message on a process that used other cores in the last call; empty for one that may not have."""
        if self.share_used <= _MOST_OF_CORES:
            return ""
        return f"used {self.share_used:.2f} times the processor time of the {self._cores} cores that it was given"


def processor_ns(process: int | None) -> int:
    """Processor time of all threads that a process has had, in nanoseconds; negative where unknown."""
    try:
        return time.clock_gettime_ns(~process << 3 | _PROCESS_CLOCK) if process is not None else -1
    except OSError:
        return -1


def await_off_core(process: int | None) -> None:
    """Wait until no thread of a stopped process is on a core: its processor time changes no more.

    A thread is seen as stopped shortly before it leaves its core, and what it used since the last clock tick is counted when it
    does: milliseconds later where a hypervisor took the core meanwhile. Linux waits for that before it says which system call a
    thread is in. Does nothing for what cannot be read.
    """
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            Path(f"/proc/{process}/task/{thread}/syscall").read_bytes()


class OtherWork:
    """How much processes beside the trial have used the cores since ``begin``.

    The trial's are those that the judge sees in the trial's own PID namespace, which contains those of the hosts.
    """

    def __init__(self, device: str, *, alone: bool) -> None:
        """``alone``: whether this process is in such a namespace. Otherwise others are taken to be present."""
        self._watching = device == "cpu" and alone
        self._cores = os.sched_getaffinity(0)
        self.begin()

    def begin(self) -> None:
        """A pair begins."""
        self._before = self._ticks()

    def is_present(self, share: float = _OTHER_SHARE) -> bool:
        """Whether others have used more than this share of the cores' time; also where that is unknown."""
        before, after = self._before, self._ticks()
        if before is None or after is None:
            return True
        (busy, total, ours), (busy_then, total_then, ours_then) = after, before
        others = (busy - busy_then) - (ours - ours_then)
        return others > share * (total - total_then) + _ROUNDING_TICKS

    def _ticks(self) -> tuple[int, int, int] | None:
        """Clock ticks: the cores' busy ones, all of them, and those of the trial's processes; ``None`` where unknown."""
        if not self._watching:
            return None
        try:
            rows = [line.split() for line in _STAT.read_text().splitlines() if line[3:4].isdigit()]
            mine = [[int(field) for field in row[1:9]] for row in rows if int(row[0].removeprefix("cpu")) in self._cores]
        except (OSError, ValueError):
            return None
        total = sum(map(sum, mine))
        idle = sum(row[field - 1] for row in mine for field in _IDLE_FIELDS)
        return total - idle, total, sum(_used_ticks(Path("/proc").glob("[0-9]*")))


def _used_ticks(folders: Iterable[Path]) -> Iterator[int]:
    """The clock ticks that each of these processes and its children that have ended have used."""
    for folder in folders:
        try:
            yield sum(map(int, (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:15]))
        except (OSError, ValueError, IndexError):
            continue  # it has ended


def find_local_pid(inner: int, beneath: int) -> int | None:
    """The pid here of process ``inner`` of the PID namespace whose first process is a child of ``beneath``; ``None`` if
    unknown."""
    seen = list(_processes())
    parents = {pid: parent for pid, parent, _ in seen}
    same = (pid for pid, parent, within in seen if len(within) > 1 and within[-1] == inner and parents.get(parent) == beneath)
    return next(same, None)


def _processes() -> Iterator[tuple[int, int, list[int]]]:
    """(pid here, parent's pid here, its pids from here inwards) of each process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            yield int(folder.name), int(lines["PPid"]), [int(number) for number in lines["NSpid"].split()]
        except (OSError, ValueError, KeyError):
            continue  # it has ended, or this system has no NSpid


def _read(process: int | None) -> ProcessorReading | None:
    """The counters now; ``None`` where there are none."""
    stolen = stolen_ticks()
    stolen_us = None if stolen is None else stolen * 1e6 / os.sysconf("SC_CLK_TCK")
    threads = _threads(process) if process is not None else None
    if threads is not None:
        return ProcessorReading(threads, (stolen_us or 0.0) + _judges_waits_us())
    pressure = _pressure_us()
    if pressure is None and stolen_us is None:
        return None
    return ProcessorReading(others_us=(pressure or 0.0) + (stolen_us or 0.0))


def _judges_waits_us() -> float:
    """How long this thread has waited for a core: a reply that it cannot read yet looks like a late one."""
    try:
        return int(_OWN_THREAD.read_text().split()[1]) / 1e3
    except (OSError, ValueError, IndexError):
        return 0.0


def _pressure_us() -> float | None:
    try:
        return float(_PRESSURE.read_text().partition("\n")[0].rsplit("total=", 1)[1])
    except (OSError, ValueError, IndexError):
        return None


def _threads(process: int) -> dict[str, tuple[float, float]] | None:
    """How long each thread of a process has run, and how long it waited for a core."""
    try:
        folders = list(Path(f"/proc/{process}/task").iterdir())
        found = {folder.name: (folder / "schedstat").read_text().split() for folder in folders}
        return {name: (int(fields[0]) / 1e3, int(fields[1]) / 1e3) for name, fields in found.items()}
    except (OSError, ValueError, IndexError):
        return None
