"""Telemetry of a process pair: clocks, power, temperature, throttling and other processes on a GPU; pinning and steal time on a
CPU. No torch.

Readings are taken between timed calls, in the judge's process. All contestants of a sample share its conditions, so no sample
is discarded for them: the verdict reports them, and they are stored with the samples. What cannot be read is reported as
unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol

from engine.domain.model import Device
from engine.domain.regimes import ClockAndPower
from engine.trial.judge.nvml import Gpu, GpuReading, NvmlMissing, open_gpu, physical_device

_SLOW_QUERY_S = 1e-3
"""A device whose query takes longer is read at both ends of a pair, not after every sample."""
_STAT = Path("/proc/stat")
_STEAL_FIELD = 8
_REPORTED_SHARE = 1e-3
"""Steal time below this share is not reported."""
_NAMED = 3
"""Most other processes to name; further ones are counted."""


@dataclass(frozen=True, slots=True)
class PairConditions:
    """Readings of one pair."""

    samples: int = 0
    """Samples after which throttling was read; 0 if it was read at the ends of the pair only."""
    slowed: tuple[int, ...] = ()
    """Which of them were throttled, counted from 0 in the order they were taken, with warm-ups and audited samples."""
    reasons: tuple[str, ...] = ()
    """The reasons for throttling, over the whole pair."""
    readings: tuple[GpuReading, ...] = ()
    others: tuple[str, ...] = ()
    """Processes on the device that are not part of this trial: id and name."""
    unknown: tuple[str, ...] = ()
    """Unreadable quantities, one line each."""
    stolen: float | None = None
    """Steal time: the share of our cores' time that the hypervisor gave to other guests."""
    pinned: int = 0
    """OpenMP threads, each pinned to a core; 0 on a GPU."""


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """A GPU while a kernel runs on it; ``None`` where unknown."""

    sm_mhz: int | None = None
    watts: float | None = None
    slowed_by: tuple[str, ...] = ()
    """Why its clocks are lowered."""


class ConditionsMonitor(Protocol):
    """Reads conditions: ``begin``, then ``sample`` after each sample, then ``end``. All are cheap; none raises."""

    def under_load(self) -> UnderLoad | None:
        """A reading while a kernel runs; ``None`` where there is nothing to read."""

    def begin(self) -> None: ...

    def sample(self) -> None: ...

    def end(self) -> PairConditions: ...


class NoMonitor:
    """Reads nothing, and reports why."""

    def __init__(self, reason: str = "") -> None:
        self._conditions = PairConditions(unknown=(reason,) if reason else ())

    def under_load(self) -> UnderLoad | None:
        return None

    def begin(self) -> None:
        """Nothing to do."""

    def sample(self) -> None:
        """Nothing to do."""

    def end(self) -> PairConditions:
        return self._conditions


def monitor_for(device: Device, bus_id: Callable[[int], str] | None = None, *, sees_others: bool = True) -> ConditionsMonitor:
    """The monitor of a device; ``bus_id`` asks the driver for the PCI bus id of ``cuda:N``.

    ``sees_others``: whether this process is outside the sandbox and can name other processes on the device. From inside, the
    engine does that (``device_processes``).
    """
    if device.kind == "cpu":
        return CpuMonitor(device.units)
    try:
        return GpuMonitor(open_gpu(_which(device.index, bus_id)), sees_others=sees_others)
    except NvmlMissing as error:
        return NoMonitor(f"clocks, throttling and other processes unknown: {error}")


def _which(index: int, bus_id: Callable[[int], str] | None) -> int | str:
    try:
        if bus_id is not None:
            return bus_id(index)
    except Exception:  # whatever the driver raises: fall back to the machine's device order
        pass
    return physical_device(index, os.environ.get("CUDA_VISIBLE_DEVICES", ""))


class GpuMonitor:
    """Reads clocks and throttling after every sample where that is fast, everything else at both ends of a pair."""

    def __init__(
        self, gpu: Gpu, *, is_ours: Callable[[int], bool] | None = None, own_pid: int | None = None, sees_others: bool = True
    ) -> None:
        """``is_ours`` decides whether a process belongs to this trial; ``own_pid`` is a process that holds a context."""
        self._gpu = gpu
        self._sees_others = sees_others
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._is_ours = is_ours if is_ours is not None else lambda pid: descends(pid, self._own_pid)
        self._quick = self._seconds() < _SLOW_QUERY_S
        self.begin()

    def _seconds(self) -> float:
        """Seconds of one query after a sample, with a warm library."""
        took = []
        for _ in range(3):
            start = time.perf_counter()
            self._gpu.slowed_by()
            self._gpu.sm_mhz()
            took.append(time.perf_counter() - start)
        return min(took)

    def under_load(self) -> UnderLoad | None:
        """A reading while a kernel runs."""
        return UnderLoad(self._gpu.sm_mhz(), self._gpu.watts(), self._gpu.slowed_by() or ())

    def begin(self) -> None:
        """A pair begins."""
        self._samples = 0
        self._slowed: list[int] = []
        self._reasons: dict[str, None] = {}
        self._clocks: set[int] = set()
        self._readings = [self._gpu.reading()]
        self._record_reasons()

    def _record_reasons(self) -> bool:
        found = self._gpu.slowed_by() or ()
        self._reasons.update(dict.fromkeys(found))
        return bool(found)

    def sample(self) -> None:
        """A sample of everyone was taken."""
        if not self._quick:
            return
        if self._record_reasons():
            self._slowed.append(self._samples)
        self._samples += 1
        mhz = self._gpu.sm_mhz()
        if mhz is not None:
            self._clocks.add(mhz)

    def end(self) -> PairConditions:
        """The readings since ``begin``. The clock before the first sample is an idle device's: it is dropped if others were
        read."""
        self._record_reasons()
        last = self._gpu.reading()
        readings = [*self._readings, last]
        if self._clocks:
            bare = [replace(one, sm_mhz=None) for one in readings]
            readings = [*bare, *(GpuReading(sm_mhz=mhz) for mhz in sorted({min(self._clocks), max(self._clocks)}))]
        others, unknown = self._others() if self._sees_others else ((), ())
        if self._gpu.slowed_by() is None:
            unknown = (*unknown, "throttling unknown: the driver does not report it")
        return PairConditions(
            self._samples, tuple(self._slowed), tuple(self._reasons), tuple(readings), others, unknown,
        )  # fmt: skip

    def _others(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Processes on the device that are not ours, and what is unknown about them.

        In a container the driver may report the machine's process ids, or hide processes. Then our own process, which has a
        context on the device, is not listed, and the others are unknown.
        """
        found = self._gpu.processes()
        if found is None or self._own_pid not in found:
            return (), ("other processes on the device unknown: not visible from here",)
        other_pids = sorted(pid for pid in found if pid != self._own_pid and not self._is_ours(pid))
        return tuple(process_name(pid) for pid in other_pids), ()


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is ``ancestor`` or one of its descendants."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == ancestor


def process_name(pid: int) -> str:
    """A process's id and, where it can be read, its name."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            name = "".join(c for c in file.read().strip() if c.isprintable())
    except OSError:
        name = ""
    return f"{pid} {name}".strip()


class CpuMonitor:
    """Reads steal time. ``contention`` measures contention within this system."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._cores = os.sched_getaffinity(0)
        self.begin()

    def under_load(self) -> UnderLoad | None:
        """A core's clock is unknown."""
        return None

    def begin(self) -> None:
        """A pair begins."""
        self._before = stolen_ticks(self._cores)
        self._start = time.monotonic()

    def sample(self) -> None:
        """Nothing to do: ``contention`` measures every call."""

    def end(self) -> PairConditions:
        """The readings since ``begin``."""
        after = stolen_ticks(self._cores)
        if after is None or self._before is None:
            return PairConditions(unknown=("steal time unknown: /proc/stat cannot be read",), pinned=self._threads)
        room = (time.monotonic() - self._start) * os.sysconf("SC_CLK_TCK") * len(self._cores)
        return PairConditions(stolen=(after - self._before) / room if room > 0 else 0.0, pinned=self._threads)


def stolen_ticks(cores: set[int] | None = None, text: str | None = None) -> int | None:
    """Steal time of ``cores`` (or all) since boot, in clock ticks; ``None`` if unknown."""
    try:
        rows = [line.split() for line in (_STAT.read_text() if text is None else text).splitlines()]
        wanted = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}
        found = [int(row[_STEAL_FIELD]) for row in rows if row and row[0] in wanted]
    except (OSError, ValueError, IndexError):
        return None
    return sum(found) if found else None


def describe(pairs: Sequence[PairConditions]) -> tuple[str, ...]:
    """The conditions of a verdict over all pairs, one short line each."""
    lines = [
        _throttling_line(pairs),
        other_processes_line(list(dict.fromkeys(one for pair in pairs for one in pair.others))),
        _device_line([one for pair in pairs for one in pair.readings]),
    ]
    pinned = max((pair.pinned for pair in pairs), default=0)
    if pinned:
        lines.append(f"{pinned} pinned threads" if pinned > 1 else "one pinned thread")
    stolen = [pair.stolen for pair in pairs if pair.stolen is not None]
    if stolen and max(stolen) > _REPORTED_SHARE:
        lines.append(f"steal time: up to {max(stolen):.1%} of the processor time")
    return (*filter(None, lines), *dict.fromkeys(one for pair in pairs for one in pair.unknown))


def clock_and_power(pairs: Sequence[PairConditions]) -> ClockAndPower | None:
    """The medians of what was read between calls; ``None`` where nothing was."""
    readings = [one for pair in pairs for one in pair.readings]
    clocks = [one.sm_mhz for one in readings if one.sm_mhz is not None]
    watts = [one.watts for one in readings if one.watts is not None]
    if not clocks and not watts:
        return None
    return ClockAndPower(median(clocks) if clocks else None, median(watts) if watts else None)


def _throttling_line(pairs: Sequence[PairConditions]) -> str:
    hit = [pair for pair in pairs if pair.reasons]
    if not hit:
        return ""
    why = ", ".join(dict.fromkeys(reason for pair in hit for reason in pair.reasons))
    slowed, samples = sum(len(pair.slowed) for pair in pairs), sum(pair.samples for pair in pairs)
    if slowed:
        return f"throttled: {why} in {slowed} of {samples} samples"
    return f"throttled: {why} in {len(hit)} of {len(pairs)} pairs"


def other_processes_line(others: Sequence[str]) -> str:
    """The condition for other processes on the device, each given by its id and name; empty if there are none."""
    if not others:
        return ""
    named = ", ".join(others[:_NAMED]) + (" …" if len(others) > _NAMED else "")
    return f"{len(others)} other process{'es' if len(others) > 1 else ''} on the device ({named})"


def _device_line(readings: Sequence[GpuReading]) -> str:
    parts = [
        _range("SM {} MHz", [one.sm_mhz for one in readings]),
        _range("memory {} MHz", [one.memory_mhz for one in readings]),
        _range("{} °C", [one.celsius for one in readings]),
        _range("{} W", [None if one.watts is None else round(one.watts) for one in readings]),
    ]
    return ", ".join(filter(None, parts))


def _range(words: str, values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return words.format(low if low == high else f"{low}–{high}")
