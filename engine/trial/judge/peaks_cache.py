"""Device ceilings, cached between sessions per device and software. Used by the engine: the judge has no cache. No torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engine.domain.model import Device
from engine.domain.preparation import Peaks
from engine.toolchain.cache import write_atomically

_SCHEME = 6
"""Incremented when ceilings are measured differently: cached ones are then measured again."""


def load(cache: Path, device: Device) -> Peaks | None:
    """The cached ceilings; ``None`` if they must be measured."""
    try:
        known = json.loads(_path(cache, device).read_text())
        return Peaks(float(known["copy"]), {str(k): float(v) for k, v in known["rates"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(cache: Path, device: Device, found: Peaks) -> None:
    """Cache measured ceilings. A cache that cannot be written only costs time in the next session."""
    content = {"copy": found.copy_bytes_per_s, "rates": dict(found.operations_per_s)}
    write_atomically(_path(cache, device), json.dumps(content).encode())


def _path(cache: Path, device: Device) -> Path:
    key = hashlib.sha256(f"{_SCHEME}|{device.name}|{device.arch}|{device.units}|{device.software}".encode()).hexdigest()[:24]
    return cache / "peaks" / f"{key}.json"
