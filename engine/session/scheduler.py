"""Schedules owed work: chooses which of it starts now. Pure.

There are three lanes. *Device*: one work item at a time for each worker, because concurrent measurements disturb each other.
*Build*: several compilers. *Model*: several calls of proposers and writers. In a CPU session the compilers use the measured
cores, so builds and device work exclude each other on a worker and builds go first. This cannot starve device work, because an
attempt is built only once.

Within a lane, the order is that of ``rules.next_work``: later stages first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.domain import work as w


class Lane(StrEnum):
    DEVICE = "device"
    BUILD = "build"
    MODEL = "model"


_LANES: Mapping[str, Lane] = {
    w.WorkKind.PREPARE: Lane.DEVICE,
    w.WorkKind.VERIFY: Lane.DEVICE,
    w.WorkKind.MEASURE: Lane.DEVICE,
    w.WorkKind.SUSTAIN: Lane.DEVICE,
    w.WorkKind.RACE: Lane.DEVICE,
    w.WorkKind.SANITIZE: Lane.DEVICE,
    w.WorkKind.PROFILE: Lane.DEVICE,
    w.WorkKind.TUNE: Lane.DEVICE,
    w.WorkKind.BUILD: Lane.BUILD,
    w.WorkKind.PROPOSE: Lane.MODEL,
    w.WorkKind.IMPLEMENT: Lane.MODEL,
    w.WorkKind.REPAIR: Lane.MODEL,
}


@dataclass(frozen=True, slots=True)
class Lanes:
    """How much work may run concurrently."""

    builds: int = 2
    models: int = 4
    device_builds: bool = True
    """The compilers run on the measured device (a CPU session): builds and device work exclude each other."""
    workers: int = 1
    """Devices of a fleet, each for one work item at a time."""


def lane(key: w.WorkKey) -> Lane:
    """The lane of a work item."""
    return _LANES[key.kind]


def work_to_start(
    owed: Sequence[w.Work],
    in_hand: Collection[w.WorkKey],
    lanes: Lanes,
    closed: Collection[Lane] = (),
    resting: Collection[w.WorkKey] = (),
) -> tuple[w.Work, ...]:
    """The work to start now.

    ``in_hand`` are the keys of running work, including work that is being cancelled: no key runs twice at a time. ``closed``
    lanes start nothing, because the engine itself failed there. ``resting`` work waits for a provider and takes no place.
    """
    waiting = [work for work in owed if work.key not in in_hand and lane(work.key) not in closed]
    busy = [lane(key) for key in in_hand if key not in resting]
    builds = _in_lane(waiting, Lane.BUILD)
    device = _in_lane(waiting, Lane.DEVICE)
    if lanes.workers > 1:
        builds, device = _for_fleet(builds, device, in_hand, lanes)
    else:
        device = device[: 1 - busy.count(Lane.DEVICE)]
    if lanes.device_builds and lanes.workers == 1:
        if Lane.DEVICE in busy:
            builds = []
        elif builds or Lane.BUILD in busy:
            device = []
    return (
        *device,
        *builds[: max(0, lanes.builds - busy.count(Lane.BUILD))],
        *_in_lane(waiting, Lane.MODEL)[: max(0, lanes.models - busy.count(Lane.MODEL))],
    )


def _for_fleet(
    builds: list[w.Work], device: list[w.Work], in_hand: Collection[w.WorkKey], lanes: Lanes
) -> tuple[list[w.Work], list[w.Work]]:  # fmt: skip
    """What the workers can take. A race waits for the worker of its incumbent and keeps no other one from working; of races
    that share a kernel one runs at a time, because it may decide the others. No race starts while a kernel waits for a worker
    to be verified or measured: it may rank above both, and the race would be for nothing."""
    racing = {name for key in in_hand if key.kind == w.WorkKind.RACE for name in key.subjects}
    open_races: list[w.Work] = []
    for work in device:
        if isinstance(work, w.Race) and not racing & {work.kernel, work.against}:
            racing |= {work.kernel, work.against}
            open_races.append(work)
    free = lanes.workers - sum(lane(key) is Lane.DEVICE and key.kind != w.WorkKind.RACE for key in in_hand)
    if lanes.device_builds:
        free -= sum(lane(key) is Lane.BUILD for key in in_hand)
        builds = builds[: max(0, free)]
        free -= min(len(builds), max(0, lanes.builds - sum(lane(key) is Lane.BUILD for key in in_hand)))
    others = [work for work in device if not isinstance(work, w.Race)]
    started = others[: max(0, free)]
    return builds, [*started, *(open_races if len(started) == len(others) else ())]


def _in_lane(waiting: Iterable[w.Work], wanted_lane: Lane) -> list[w.Work]:
    return [work for work in waiting if lane(work.key) is wanted_lane]
