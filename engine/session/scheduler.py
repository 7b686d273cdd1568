"""Which owed work may start now. Pure: told what is owed and what is in hand, it answers with what to start.

Three lanes. *Device*: one at a time, since two measurements would disturb each other. *Build*: several compilers.
*Thought*: several questions to the source of ideas and code. On a CPU the device is what compilers run on as well, so
builds and device work exclude each other there: builds go first, all that are owed together, and the device starts when
none is left. That starves nobody, because every kernel is built at most once an attempt.

Within a lane the order is that of ``rules.next_work``: later stages first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.domain import work as w


class Lane(StrEnum):
    DEVICE = "device"
    BUILD = "build"
    THOUGHT = "thought"


_LANES = {
    "prepare": Lane.DEVICE,
    "verify": Lane.DEVICE,
    "measure": Lane.DEVICE,
    "race": Lane.DEVICE,
    "sanitize": Lane.DEVICE,
    "build": Lane.BUILD,
    "propose": Lane.THOUGHT,
    "implement": Lane.THOUGHT,
    "repair": Lane.THOUGHT,
}


@dataclass(frozen=True, slots=True)
class Lanes:
    """How much may be under way at once."""

    builds: int = 2
    thoughts: int = 4
    device_builds: bool = True
    """The device's own cores run the compilers (a CPU session): building and trying exclude each other."""


def lane(key: str) -> Lane:
    """The lane of a work, by its key."""
    return _LANES[key.partition(":")[0]]


def choose(owed: Sequence[w.Work], in_hand: Collection[str], lanes: Lanes, shut: Collection[Lane] = ()) -> tuple[w.Work, ...]:
    """The work to start now.

    ``in_hand`` are the keys of work under way, work that is being cancelled included: no key is started twice.
    ``shut`` lanes start nothing more: the engine itself failed there.
    """
    waiting = [work for work in owed if work.key not in in_hand and lane(work.key) not in shut]
    busy = [lane(key) for key in in_hand]
    builds = _of(waiting, Lane.BUILD)
    device = _of(waiting, Lane.DEVICE)[: 1 - busy.count(Lane.DEVICE)]
    if lanes.device_builds:
        if Lane.DEVICE in busy:
            builds = []
        elif builds or Lane.BUILD in busy:
            device = []
    return (
        *device,
        *builds[: max(0, lanes.builds - busy.count(Lane.BUILD))],
        *_of(waiting, Lane.THOUGHT)[: max(0, lanes.thoughts - busy.count(Lane.THOUGHT))],
    )


def _of(waiting: Iterable[w.Work], wanted: Lane) -> list[w.Work]:
    return [work for work in waiting if lane(work.key) is wanted]
