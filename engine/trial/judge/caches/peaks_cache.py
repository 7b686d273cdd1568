"""Device ceilings, cached between sessions per device and software. Used by the engine: the judge has no cache. No torch.

Other work on the machine lowers what is measured, and every share of SOL would be too high. Ceilings that were measured beside
other work are therefore measured again by the next session, and the better ones kept.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engine.domain.model import Device
from engine.domain.preparation import Peaks
from engine.toolchain.cache import write_atomically

_SCHEME = 7
"""Incremented when ceilings are measured differently: cached ones are then measured again."""


_OUTDONE = 1.1
"""Ceilings are outdone by others that are so many times higher: less is noise."""


def load(cache: Path, device: Device) -> Peaks | None:
    """The cached ceilings; ``None`` if they must be measured."""
    known = _read(_path(cache, device))
    return known[0] if known is not None and known[1] else None


def keep(cache: Path, device: Device, found: Peaks, *, quiet: bool) -> Peaks:
    """Cache measured ceilings, and return the better ones of these and the cached ones.

    ``quiet``: no other work used the device meanwhile. A cache that cannot be written only costs time in the next session.
    """
    known = _read(_path(cache, device))
    best = better(known[0], found) if known is not None else found
    content = {"copy": best.copy_bytes_per_s, "rates": dict(best.operations_per_s), "quiet": quiet}
    write_atomically(_path(cache, device), json.dumps(content).encode())
    return best


def better(one: Peaks, other: Peaks) -> Peaks:
    """The higher of two measurements of each ceiling: other work on the machine only lowers them."""
    both = (one.operations_per_s, other.operations_per_s)
    rates = {unit: max(rates.get(unit, 0.0) for rates in both) for unit in {**both[0], **both[1]}}
    return Peaks(max(one.copy_bytes_per_s, other.copy_bytes_per_s), rates)


def are_outdone(kept: Peaks, found: Peaks | None) -> bool:
    """Whether ``found`` shows that ``kept`` was measured beside other work."""
    if found is None:
        return False
    rates = ((rate, found.operations_per_s.get(unit, 0.0)) for unit, rate in kept.operations_per_s.items())
    return any(new > _OUTDONE * old for old, new in ((kept.copy_bytes_per_s, found.copy_bytes_per_s), *rates))


def _read(path: Path) -> tuple[Peaks, bool] | None:
    """The ceilings in a file, and whether they were measured without other work; ``None`` without a usable file."""
    try:
        known = json.loads(path.read_text())
        return Peaks(float(known["copy"]), {str(k): float(v) for k, v in known["rates"].items()}), known["quiet"] is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _path(cache: Path, device: Device) -> Path:
    key = hashlib.sha256(f"{_SCHEME}|{device.name}|{device.arch}|{device.units}|{device.software}".encode()).hexdigest()[:24]
    return cache / "peaks" / f"{key}.json"
