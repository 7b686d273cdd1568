"""What a problem's preparation found, cached per problem, workload, device, software and judge. No torch.

Calibration, the trivial models and the baselines of one evaluation or session serve later ones, with their date. Baselines are
still called in every sample of every kernel: no speedup is relative to a cached time. A damaged or old file counts as missing.
The engine reads and writes the files; the judge gets and returns calibrations (``encode``, ``decode``), so a reference can
influence the cached preparation of its own problem only, and a candidate none.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from engine.domain.model import Device, Measurement, Problem, Workload
from engine.domain.preparation import Preparation
from engine.toolchain.cache import write_atomically
from engine.trial.judge.caches import baseline_cache
from engine.trial.judge.outputs.relative_errors import RelativeErrors

_SCHEME = 4
MOST_AGE = timedelta(days=7)
"""A preparation that is older is done again."""
_MOST_BYTES = 4 << 20
_DIGEST_BYTES = 32
_JUDGES_CODE = ("trial/judge", "trial/shared", "trial/runner", "problem")
"""Folders of the package on which a preparation depends."""


@dataclass(frozen=True, slots=True)
class KeptCalibration:
    """The reference's own errors by distribution and precision class, from which a policy is made."""

    classes: Mapping[str, Mapping[str, RelativeErrors]]
    notes: tuple[str, ...]
    keeps_constants: bool = False
    """Whether the reference fails with other constant parameters."""
    several: str = ""
    """As in ``calibration.Calibration``."""
    fails_on_some: bool = False
    """As there."""
    unmeasured: tuple[str, ...] = ()
    """The distributions whose errors in ``classes`` are the least that they can be."""


@dataclass(frozen=True, slots=True)
class Calibrations:
    """The calibrations of a workload and of its fixed hold-out shapes, by their settings as text."""

    main: KeptCalibration
    holdouts: Mapping[str, KeptCalibration] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptPreparation:
    """A preparation, with the judge's calibrations as ``encode`` makes them."""

    preparation: Preparation
    calibrations: bytes
    date: str
    """When it was measured, in ISO 8601 with time zone."""

    @property
    def same(self) -> tuple[float, float, float]:
        """The A/A interval, as ``OpenRequest`` takes it."""
        return self.preparation.same.value, self.preparation.same.low, self.preparation.same.high

    @property
    def complete(self) -> bool:
        """Whether the baselines were measured, and the ranking one agreed with itself: else they are measured (again)."""
        same = self.preparation.same
        agreed = same.low >= 1 - baseline_cache.QUIET and same.high <= 1 + baseline_cache.QUIET
        return bool(self.preparation.baselines) and agreed

    def as_preparation(self) -> Preparation:
        """The preparation, with the date in the conditions of every baseline and in the notes."""
        shown = f"{datetime.fromisoformat(self.date):%Y-%m-%d %H:%M %Z}".strip()
        baselines = {name: _cached(one, f"{baseline_cache.MARK}{shown}") for name, one in self.preparation.baselines.items()}
        note = f"prepared {shown}: --fresh prepares again (run: --fresh-baselines)"
        return replace(self.preparation, baselines=baselines, notes=(*self.preparation.notes, note))


def _cached(measurement: Measurement, condition: str) -> Measurement:
    if any(line.startswith(baseline_cache.MARK) for line in measurement.conditions):
        return measurement
    return replace(measurement, conditions=(condition, *measurement.conditions))


def encode(found: Calibrations) -> bytes:
    """Calibrations as they travel between engine and judge."""
    return msgspec.msgpack.encode(found)


def decode(data: bytes) -> Calibrations | None:
    """The inverse of ``encode``; ``None`` if there are none or they are invalid."""
    if not 0 < len(data) <= _MOST_BYTES:
        return None
    try:
        return msgspec.msgpack.decode(data, type=Calibrations)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class PreparationKey:
    """Everything that a preparation depends on."""

    problem: Problem
    workload: Workload
    holdouts: tuple[Workload, ...]
    """The fixed ones."""
    device: Device
    tolerance: str
    baselines: tuple[str, ...]
    """The ranking one first."""
    cold: bool
    confined: tuple[bool, bool]
    """Whether kernels, and the reference, run in the sandbox."""
    unit: str = ""
    """As ``Assignment.unit``."""

    def digest(self) -> str:
        parts = msgspec.msgpack.encode([_SCHEME, judge_version(), msgspec.to_builtins(self, order="sorted")], order="sorted")
        return hashlib.sha256(parts).hexdigest()


@functools.cache
def judge_version() -> str:
    """A digest of the code that prepares: with another judge everything is prepared again."""
    root = Path(__file__).resolve().parents[3]
    found = hashlib.sha256()
    for path in sorted(path for folder in _JUDGES_CODE for path in (root / folder).rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def load(cache: Path, key: PreparationKey) -> KeptPreparation | None:
    """The cached preparation; ``None`` if there is none, or it is damaged or too old. Does not raise."""
    wanted = key.digest()
    try:
        data = _path(cache, wanted).read_bytes()
    except OSError:
        return None
    checksum, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if len(content) > _MOST_BYTES or hashlib.sha256(wanted.encode() + content).digest() != checksum:
        return None
    try:
        found = msgspec.msgpack.decode(content, type=KeptPreparation)
        age = datetime.now(UTC) - datetime.fromisoformat(found.date)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return None
    return found if timedelta(0) <= age <= MOST_AGE and decode(found.calibrations) is not None else None


def keep(cache: Path, key: PreparationKey, preparation: Preparation, calibrations: bytes) -> KeptPreparation:
    """Cache a preparation. A cache that cannot be written only costs time in the next evaluation."""
    found = KeptPreparation(preparation, calibrations, datetime.now(UTC).isoformat(timespec="seconds"))
    wanted = key.digest()
    content = msgspec.msgpack.encode(found)
    write_atomically(_path(cache, wanted), hashlib.sha256(wanted.encode() + content).digest() + content)
    return found


def _path(cache: Path, digest: str) -> Path:
    return cache / "preparations" / f"{digest[:32]}.bin"
