"""Where workers can be on this machine: a GPU each, or a set of the machine's cores each. No torch, no device context."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import DeviceError
from engine.trial.lease import device_key

_SPREAD_FROM, _CORES_EACH = 8, 4
"""On a machine with that many cores a worker gets several, else one."""
_CORES_A_BUILDER, _MOST_BUILDERS = 4, 8
"""A machine has a builder for each so many cores, and at most so many."""
BUILD = "build"
_LOCAL = re.compile(r"local(?::([1-9]\d{0,3}))?")
_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One device for one worker."""

    name: str
    """As the journal and the screen name the worker."""
    device: str
    """The device as the worker itself names it: ``cpu``, or ``cuda:0``, for it sees no other GPU; of a builder ``BUILD``."""
    cores: tuple[int, ...] = ()
    """Of a CPU worker."""
    visible: str = ""
    """Of a GPU worker: its GPU, as CUDA_VISIBLE_DEVICES names it."""

    @property
    def builds(self) -> bool:
        """Whether this is a builder's place: it has no device, and sees none."""
        return self.device == BUILD


def local_count(text: str) -> int | None:
    """The number of workers in ``local:4``; 0 for ``local``; ``None`` if this is another kind of fleet."""
    match = _LOCAL.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) if match[1] else 0


def local_places(device: str, count: int, gpus: int) -> tuple[WorkerPlace, ...]:
    """Places on this machine for ``count`` workers; 0: as many as suit it. ``gpus``: how many the driver reports.

    Raises DeviceError if there are fewer devices.
    """
    if device == "cpu":
        return cpu_places(core_groups(), count)
    if count > gpus:
        raise DeviceError(f"--fleet local:{count} needs {count} GPUs: this machine has {gpus}")
    return tuple(gpu_place(index) for index in range(count or gpus))


def builder_count(device: str, cores: int) -> int:
    """Builders of a machine with so many cores. None in a session on a CPU: compilers would use the cores that it measures."""
    return 0 if device == "cpu" else min(_MOST_BUILDERS, max(1, cores // _CORES_A_BUILDER))


def local_builders(device: str) -> tuple[WorkerPlace, ...]:
    """Places of builders on this machine, for a session on ``device``."""
    return tuple(WorkerPlace(f"builder:{n}", BUILD) for n in range(builder_count(device, len(os.sched_getaffinity(0)))))


def gpu_place(index: int, name: str = "") -> WorkerPlace:
    """The place of ``cuda:index``, by its UUID where the driver tells it."""
    key = device_key(f"cuda:{index}")
    visible = _uuid_text(key.removeprefix("gpu-")) if key.startswith("gpu-") else _visible_name(index)
    return WorkerPlace(name or f"cuda:{index}", "cuda:0", (), visible)


def _uuid_text(digits: str) -> str:
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _visible_name(index: int) -> str:
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return names[index] if index < len(names) else str(index)


def cpu_places(groups: Sequence[tuple[int, ...]], count: int) -> tuple[WorkerPlace, ...]:
    """Sets of whole cores for ``count`` workers, 0: as many as suit them; ``groups`` are the hardware threads of each core.

    Raises DeviceError if there are fewer cores.
    """
    wanted = count or (len(groups) // _CORES_EACH if len(groups) >= _SPREAD_FROM else len(groups))
    if wanted > len(groups):
        raise DeviceError(f"--fleet local:{count} needs {count} cores: this process may use {len(groups)}")
    each = len(groups) // wanted
    sets = [groups[place * each : (place + 1) * each] for place in range(wanted)]
    return tuple(_cpu_place(tuple(sorted(core for group in one for core in group))) for one in sets)


def _cpu_place(cores: tuple[int, ...]) -> WorkerPlace:
    return WorkerPlace(f"cpu:{ranges(cores)}", "cpu", cores)


def ranges(cores: Sequence[int]) -> str:
    """``0-3`` or ``0,2``: consecutive numbers as ranges."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def core_groups() -> tuple[tuple[int, ...], ...]:
    """The cores that this process may use: the numbers of each core's hardware threads."""
    allowed = os.sched_getaffinity(0)
    found: dict[int, tuple[int, ...]] = {}
    for core in sorted(allowed):
        siblings = tuple(one for one in _siblings(core) if one in allowed) or (core,)
        found.setdefault(siblings[0], siblings)
    return tuple(found.values())


def _siblings(core: int) -> tuple[int, ...]:
    try:
        text = (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return (core,)
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return (core,)
        numbers |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def host_name() -> str:
    """This machine's name."""
    return platform.node() or "localhost"
