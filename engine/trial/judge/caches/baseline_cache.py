"""Baselines measured in earlier sessions, cached per fingerprint of everything they depend on.

``compile`` and the like are expensive to prepare, and stay the same while device, driver, libraries, problem and workload do.
The ranking baseline is measured in every session. Where its time has drifted from the one measured with a cached baseline, the
cached one is dropped. A damaged file counts as missing. The engine reads and writes the files; the judge gets and returns what
they hold (``encode``, ``decode``), so a reference can influence the cached baselines of its own problem only. No torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import msgspec

from engine.domain.model import Device, Interval, Measurement, Problem, Workload
from engine.toolchain.cache import write_atomically

_SCHEME = 2
"""Incremented when baselines are measured differently: cached ones are then measured again."""
QUIET = 0.1
"""Largest A/A effect of the ranking baseline, in logarithms, of a run whose results are cached."""
_MOST_BYTES = 1 << 20
MARK = "cached, "
"""Prefix of the condition of a cached measurement; its date follows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One baseline's measurement, and the ranking baseline's time in the same run."""

    measurement: Measurement
    ranking_us: Interval
    noise: float
    """The A/A effect of the ranking baseline in that run, in logarithms."""
    date: str
    """When it was measured, in ISO 8601 with time zone."""

    @property
    def condition(self) -> str:
        """``cached, 2026-03-01 12:30 UTC``."""
        return f"{MARK}{datetime.fromisoformat(self.date):%Y-%m-%d %H:%M %Z}".strip()

    def as_measurement(self) -> Measurement:
        """The measurement, with its date as a condition."""
        return replace(self.measurement, conditions=(self.condition, *self.measurement.conditions))


@dataclass(frozen=True, slots=True)
class Record:
    """The cached baselines of one fingerprint: problem, workload, measurement options, device and software."""

    path: Path
    fingerprint: Mapping[str, str]
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """Baseline name → what was measured."""
    note: str = ""
    """Why an existing file could not be used."""

    def keep(self, kept: Mapping[str, Kept]) -> None:
        """Replace the cached baselines. A cache that cannot be written only costs time in the next session."""
        content = _Content(dict(self.fingerprint), dict(kept))
        write_atomically(self.path, msgspec.json.format(msgspec.json.encode(content)))


def encode(kept: Mapping[str, Kept]) -> bytes:
    """Cached baselines as they travel between engine and judge."""
    return msgspec.json.encode(dict(kept))


def decode(text: bytes, names: Collection[str]) -> dict[str, Kept]:
    """The inverse of ``encode``, for these baselines; without invalid ones."""
    if not 0 < len(text) <= _MOST_BYTES:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Kept])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: one for name, one in found.items() if name in names and _is_valid(one)}


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: dict[str, str]
    kept: dict[str, Kept]


def fingerprint(
    problem: Problem, workload: Workload, device: Device, *, ranking: str, tolerance: str, cold: bool,
    unit: str = "",
) -> dict[str, str]:  # fmt: skip
    """Everything that a baseline's time depends on, as text."""
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
        **({"unit": unit} if unit else {}),
    }


def load(cache: Path, wanted: Mapping[str, str]) -> Record:
    """The record of a fingerprint; empty, with a note, where the file is damaged. Does not raise."""
    text = msgspec.json.encode(wanted, order="sorted")
    path = cache / "baselines" / f"{hashlib.sha256(text).hexdigest()[:24]}.json"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_Content)
    except FileNotFoundError:
        return Record(path, wanted)
    except (OSError, ValueError):
        return Record(path, wanted, note=_damaged(path))
    if content.fingerprint != dict(wanted) or not all(map(_is_valid, content.kept.values())):
        return Record(path, wanted, note=_damaged(path))
    return Record(path, wanted, content.kept)


def _damaged(path: Path) -> str:
    return f"cached baselines ignored: {path} is damaged; measured again"


def _is_valid(kept: Kept) -> bool:
    """Whether the numbers can be those of a measurement."""
    found = kept.measurement
    try:
        zoned = datetime.fromisoformat(kept.date).tzinfo is not None
    except ValueError:
        return False
    intervals = (kept.ranking_us, found.time_us, *found.speedup.values())
    return zoned and 0 <= kept.noise <= QUIET and all(0 < i.low <= i.value <= i.high < math.inf for i in intervals)


def has_drifted(kept: Kept, ranking_us: Interval, noise: float) -> bool:
    """Whether the ranking baseline's time differs from the one measured with a cached baseline, beyond both intervals and the
    larger A/A effect."""
    then = kept.ranking_us
    apart = max(math.log(ranking_us.low / then.high), math.log(then.low / ranking_us.high))
    return apart > max(noise, kept.noise)


def chained_speedup(over_ranking: Interval, ranking_over: Interval) -> Interval:
    """A speedup over a cached baseline: the speedup over the ranking one now ÷ the ranking one's speedup over it then.

    Each is a ratio of one interleaved run. Their errors add in quadrature, in logarithms.
    """
    value = over_ranking.value / ranking_over.value
    low = math.hypot(math.log(over_ranking.value / over_ranking.low), math.log(ranking_over.high / ranking_over.value))
    high = math.hypot(math.log(over_ranking.high / over_ranking.value), math.log(ranking_over.value / ranking_over.low))
    return Interval(value, value * math.exp(-low), value * math.exp(high))
