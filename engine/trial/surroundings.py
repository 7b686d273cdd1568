"""What went on around the samples of a process pair: clocks, power, temperature and throttling of a GPU and who else is on
it; on a CPU how its threads are held and what the hypervisor took.

Readings are taken between timed calls, from the judge's process, never during one. Each contestant of a sample saw the same, so
nothing is thrown away for it: it is said in the verdict, and kept with the samples. What cannot be read is said to be
unknown and never guessed. No torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from engine.domain.model import Device
from engine.trial.nvml import Gpu, NvmlMissing, Reading, open_gpu, physical

_DEAR_S = 1e-3
"""Seconds from which on the device is no longer asked after every sample but only at both ends of a pair."""
_STAT = Path("/proc/stat")
_STEAL_FIELD = 8
_WORTH_SAYING = 1e-3
"""Share of the time below which nothing is said of what the hypervisor took."""
_NAMED = 3
"""Other processes that are named; beyond them they are counted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read in the course of one pair."""

    samples: int = 0
    """Samples after which the device was asked why it is slowed; nought where it was asked at the ends of the pair only."""
    slowed: tuple[int, ...] = ()
    """Which of them were taken while it was throttled, counted from nought in the order they were taken, warm-ups and those
    for which the device was not held among them."""
    reasons: tuple[str, ...] = ()
    """Why, in all of the pair."""
    readings: tuple[Reading, ...] = ()
    others: tuple[str, ...] = ()
    """Processes on the device that are not of this trial: id and name."""
    unknown: tuple[str, ...] = ()
    """What could not be read, in words."""
    stolen: float | None = None
    """Share of the processor time of our cores that the hypervisor gave to somebody else."""
    pinned: int = 0
    """OpenMP threads that are held to one core each; nought on a GPU."""


class Surroundings(Protocol):
    """Who watches. ``begin``, then ``sample`` after each sample, then ``end``; all cheap, none raises."""

    def begin(self) -> None: ...

    def sample(self) -> None: ...

    def end(self) -> Seen: ...


class Unwatched:
    """Sees nothing, and says why."""

    def __init__(self, reason: str = "") -> None:
        self._seen = Seen(unknown=(reason,) if reason else ())

    def begin(self) -> None:
        """Nothing to do."""

    def sample(self) -> None:
        """Nothing to do."""

    def end(self) -> Seen:
        return self._seen


def watch(device: Device, bus_id: Callable[[int], str] | None = None) -> Surroundings:
    """The watcher of a device; ``bus_id`` is how the driver says where ``cuda:N`` is plugged in, where it can."""
    if device.kind == "cpu":
        return CpuWatch(device.units)
    try:
        return GpuWatch(open_gpu(_which(device.index, bus_id)))
    except NvmlMissing as error:
        return Unwatched(f"clocks, throttling and other processes unknown: {error}")


def _which(index: int, bus_id: Callable[[int], str] | None) -> int | str:
    try:
        if bus_id is not None:
            return bus_id(index)
    except Exception:  # whatever the driver has against it: the order of the machine is the next best answer
        pass
    return physical(index, os.environ.get("CUDA_VISIBLE_DEVICES", ""))


class GpuWatch:
    """Reads clocks and throttling after every sample where that is quick, everything else at both ends of a pair."""

    def __init__(self, gpu: Gpu, *, family: Callable[[int], bool] | None = None, me: int | None = None) -> None:
        """``family`` tells whether a process is one of this trial, ``me`` is the one that surely holds a context."""
        self._gpu = gpu
        self._me = os.getpid() if me is None else me
        self._ours = family if family is not None else lambda pid: descends(pid, self._me)
        self._quick = self._seconds() < _DEAR_S
        self.begin()

    def _seconds(self) -> float:
        """What one look after a sample takes, once the library is warm."""
        took = []
        for _ in range(3):
            start = time.perf_counter()
            self._gpu.slowed_by()
            self._gpu.sm_mhz()
            took.append(time.perf_counter() - start)
        return min(took)

    def begin(self) -> None:
        """A pair begins."""
        self._samples = 0
        self._slowed: list[int] = []
        self._reasons: dict[str, None] = {}
        self._clocks: set[int] = set()
        self._readings = [self._gpu.reading()]
        self._note_reasons()

    def _note_reasons(self) -> bool:
        found = self._gpu.slowed_by() or ()
        self._reasons.update(dict.fromkeys(found))
        return bool(found)

    def sample(self) -> None:
        """A sample of everyone was taken."""
        if not self._quick:
            return
        if self._note_reasons():
            self._slowed.append(self._samples)
        self._samples += 1
        mhz = self._gpu.sm_mhz()
        if mhz is not None:
            self._clocks.add(mhz)

    def end(self) -> Seen:
        """What was seen since ``begin``. The clock before the first sample is an idle device's and does not count where others
        were read."""
        self._note_reasons()
        last = self._gpu.reading()
        readings = [*self._readings, last]
        if self._clocks:
            bare = [replace(one, sm_mhz=None) for one in readings]
            readings = [*bare, *(Reading(sm_mhz=mhz) for mhz in sorted({min(self._clocks), max(self._clocks)}))]
        others, unknown = self._others()
        if self._gpu.slowed_by() is None:
            unknown = (*unknown, "throttling unknown: the driver does not tell")
        return Seen(
            self._samples, tuple(self._slowed), tuple(self._reasons), tuple(readings), others, unknown,
        )  # fmt: skip

    def _others(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Processes on the device that are not ours, and what is not known of that.

        Inside a container the driver may number processes as the machine does and not as we do, or hide them: then our own,
        which has a context on the device, is not among them, and nothing can be told.
        """
        found = self._gpu.processes()
        if found is None or self._me not in found:
            return (), ("other processes on the device not visible from here",)
        strangers = sorted(pid for pid in found if pid != self._me and not self._ours(pid))
        return tuple(f"{pid} {_name(pid)}".strip() for pid in strangers), ()


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is ``ancestor`` or was started by it or by one that was."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == ancestor


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return "".join(c for c in file.read().strip() if c.isprintable())
    except OSError:
        return ""


class CpuWatch:
    """What the hypervisor takes of our cores. That others of this system run meanwhile is ``interference``'s to see."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._cores = os.sched_getaffinity(0)
        self.begin()

    def begin(self) -> None:
        """A pair begins."""
        self._before = stolen_ticks(self._cores)
        self._start = time.monotonic()

    def sample(self) -> None:
        """Nothing to do: ``interference`` looks at every call."""

    def end(self) -> Seen:
        """What was seen since ``begin``."""
        after = stolen_ticks(self._cores)
        if after is None or self._before is None:
            return Seen(unknown=("stolen time unknown: /proc/stat cannot be read",), pinned=self._threads)
        room = (time.monotonic() - self._start) * os.sysconf("SC_CLK_TCK") * len(self._cores)
        return Seen(stolen=(after - self._before) / room if room > 0 else 0.0, pinned=self._threads)


def stolen_ticks(cores: set[int] | None = None, text: str | None = None) -> int | None:
    """Clock ticks since boot in which the hypervisor ran somebody else on ``cores``, or on all; ``None`` if unknown."""
    try:
        rows = [line.split() for line in (_STAT.read_text() if text is None else text).splitlines()]
        wanted = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}
        found = [int(row[_STEAL_FIELD]) for row in rows if row and row[0] in wanted]
    except (OSError, ValueError, IndexError):
        return None
    return sum(found) if found else None


def told(pairs: Sequence[Seen]) -> tuple[str, ...]:
    """What a verdict says of the surroundings of its process pairs: the same facts of all pairs in one short line each."""
    lines = [_throttling(pairs), _others_said(pairs), _device_said([one for seen in pairs for one in seen.readings])]
    pinned = max((seen.pinned for seen in pairs), default=0)
    if pinned:
        lines.append(f"{pinned} pinned threads" if pinned > 1 else "one pinned thread")
    stolen = [seen.stolen for seen in pairs if seen.stolen is not None]
    if stolen and max(stolen) > _WORTH_SAYING:
        lines.append(f"the hypervisor took up to {max(stolen):.1%} of the processor time")
    return (*filter(None, lines), *dict.fromkeys(one for seen in pairs for one in seen.unknown))


def _throttling(pairs: Sequence[Seen]) -> str:
    hit = [seen for seen in pairs if seen.reasons]
    if not hit:
        return ""
    why = ", ".join(dict.fromkeys(reason for seen in hit for reason in seen.reasons))
    slowed, samples = sum(len(seen.slowed) for seen in pairs), sum(seen.samples for seen in pairs)
    if slowed:
        return f"throttled: {why} in {slowed} of {samples} samples"
    return f"throttled: {why} in {len(hit)} of {len(pairs)} pairs"


def _others_said(pairs: Sequence[Seen]) -> str:
    others = list(dict.fromkeys(one for seen in pairs for one in seen.others))
    if not others:
        return ""
    named = ", ".join(others[:_NAMED]) + (" …" if len(others) > _NAMED else "")
    return f"{len(others)} other process{'es' if len(others) > 1 else ''} on the device ({named})"


def _device_said(readings: Sequence[Reading]) -> str:
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
