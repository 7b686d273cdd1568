"""Baselines measured in earlier sessions, kept in the user's cache for as long as nothing they depend on has changed.

What ``compile`` and the like make of a reference is dear to prepare, and the same as long as device, driver, libraries, problem
and workload are. The ranking baseline is measured in every session all the same: where it no longer takes the time that it
took beside a kept one, that one is dropped. A damaged file counts as none. No torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import msgspec

from engine.build.cache import keep_whole
from engine.domain.model import Device, Interval, Measurement, Problem, Workload

_SCHEME = 2
"""Raised when baselines are measured in another way: kept ones are then measured again."""
QUIET = 0.1
"""The most that the ranking baseline may show against itself, in logarithms, in a run whose figures are worth keeping."""
MARK = "cached, "
"""What the condition of a kept measurement begins with; its date follows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One baseline's measurement, and the ranking one's beside it."""

    measurement: Measurement
    ranking_us: Interval
    noise: float
    """What the ranking baseline showed against itself in that run, in logarithms."""
    date: str
    """When, as ISO 8601 with its time zone."""

    @property
    def words(self) -> str:
        """``cached, 2026-03-01 12:30 UTC``."""
        return f"{MARK}{datetime.fromisoformat(self.date):%Y-%m-%d %H:%M %Z}".strip()

    def told(self) -> Measurement:
        """The measurement as a session shows it."""
        return replace(self.measurement, conditions=(self.words, *self.measurement.conditions))


@dataclass(frozen=True, slots=True)
class Record:
    """The kept baselines of one problem, workload and way to measure on one device with one set of software."""

    path: Path
    fingerprint: Mapping[str, str]
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """Baseline name → what was measured."""
    note: str = ""
    """Why what is there could not be used."""

    def keep(self, kept: Mapping[str, Kept]) -> None:
        """Keep these and no others. A cache that cannot be written costs time in the next session, nothing else."""
        content = _Content(dict(self.fingerprint), dict(kept))
        keep_whole(self.path, msgspec.json.format(msgspec.json.encode(content)))


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: dict[str, str]
    kept: dict[str, Kept]


def fingerprint(
    problem: Problem, workload: Workload, device: Device, *, ranking: str, tolerance: str, cold: bool
) -> dict[str, str]:
    """All that a baseline's time depends on, in words."""
    return {
        "scheme": str(_SCHEME),
        "device": f"{device.name}, {device.arch}, {device.memory_bytes} bytes",
        "units": str(device.units),
        "software": device.software,
        "reference": hashlib.sha256(problem.reference.encode("utf-8", "replace")).hexdigest(),
        "workload": ", ".join(f"{name}={value!r}" for name, value in sorted(workload.settings.items())),
        "tolerance": tolerance,
        "ranking": ranking,
        "caches": "cold" if cold else "hot",
    }


def load(cache: Path, wanted: Mapping[str, str]) -> Record:
    """What is kept under a fingerprint; nothing, with a note, where the file is damaged. Never raises for what is there."""
    text = msgspec.json.encode(wanted, order="sorted")
    path = cache / "baselines" / f"{hashlib.sha256(text).hexdigest()[:24]}.json"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_Content)
    except FileNotFoundError:
        return Record(path, wanted)
    except (OSError, ValueError):
        return Record(path, wanted, note=_damaged(path))
    if content.fingerprint != dict(wanted) or not all(map(_sound, content.kept.values())):
        return Record(path, wanted, note=_damaged(path))
    return Record(path, wanted, content.kept)


def _damaged(path: Path) -> str:
    return f"kept baselines not used: {path} is damaged; they are measured again"


def _sound(kept: Kept) -> bool:
    """Whether the numbers can be those of a measurement."""
    found = kept.measurement
    try:
        zoned = datetime.fromisoformat(kept.date).tzinfo is not None
    except ValueError:
        return False
    intervals = (kept.ranking_us, found.time_us, *found.speedup.values())
    return zoned and 0 <= kept.noise <= QUIET and all(0 < i.low <= i.value <= i.high < math.inf for i in intervals)


def moved(kept: Kept, ranking_us: Interval, noise: float) -> bool:
    """Whether the ranking baseline takes another time now than it took beside a kept one: beyond both intervals and what it
    shows against itself, then and now."""
    then = kept.ranking_us
    apart = max(math.log(ranking_us.low / then.high), math.log(then.low / ranking_us.high))
    return apart > max(noise, kept.noise)


def chained(over_ranking: Interval, ranking_over: Interval) -> Interval:
    """A speedup over a kept baseline: the one over the ranking baseline, measured now, and how much faster than that the kept
    one was. Both are ratios of one interleaved run each; their errors add in squares, in logarithms."""
    value = over_ranking.value / ranking_over.value
    low = math.hypot(math.log(over_ranking.value / over_ranking.low), math.log(ranking_over.high / ranking_over.value))
    high = math.hypot(math.log(over_ranking.high / over_ranking.value), math.log(ranking_over.value / ranking_over.low))
    return Interval(value, value * math.exp(-low), value * math.exp(high))
