"""What a device's own counters said of one call of a kernel, and how that moved from its parent. Pure.

Figures are kept under fixed names whatever a tool calls them; a call of several launches is one profile: durations add up,
shares are weighted by duration, of registers and shared memory the largest counts. On a CPU a figure is the mean of many calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.domain.model import Blob

METRICS: Mapping[str, tuple[str, str]] = {
    "duration_us": ("duration", "us"),
    "sm_percent": ("multiprocessors busy", "%"),
    "dram_percent": ("memory throughput", "%"),
    "l2_hit_percent": ("L2 hits", "%"),
    "occupancy_percent": ("warps active", "%"),
    "registers": ("registers a thread", ""),
    "shared_bytes": ("shared memory a block", "bytes"),
    "cpu_us": ("processor time", "us"),
    "ipc": ("instructions a cycle", "ratio"),
    "instructions": ("instructions", "count"),
    "cycles": ("cycles", "count"),
    "branches": ("branches", "count"),
    "branch_misses": ("branch misses", "count"),
    "cache_references": ("cache references", "count"),
    "cache_misses": ("cache misses", "count"),
    "l1_misses": ("L1 data load misses", "count"),
    "llc_misses": ("last-level load misses", "count"),
}
"""Name → what it is and its unit. Per cent of the device's peak, of accesses for hits, of the warps a multiprocessor holds for
occupancy. From ``cpu_us`` on they are a CPU's, of all threads of a kernel together."""
CALLS = "calls"
"""Among a profile's metrics, but no figure of the device."""
STALLS_SHOWN = 3
_SCALES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Profile:
    """The counters of one attempt of a kernel, or why they could not be read."""

    attempt: int
    tool: str = ""
    """Who read them; empty where nobody could, with the reason in ``note``."""
    device: str = ""
    """Name of the device: figures of two are never compared."""
    launches: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Names of ``METRICS`` → values, those that were read."""
    stalls: Mapping[str, float] = field(default_factory=dict)
    """Why warps waited → per cent of the time between two instructions of a warp."""
    note: str = ""
    """Where nothing was read why; else what of it could not be."""
    log: Blob = ""
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        """Calls that the figures are the mean of. Kept among the metrics, as the journal's format has no other place for it."""
        return int(self.metrics.get(CALLS, 1))


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: what it is, its value in words, and the parent's where both are known."""

    label: str
    value: float
    unit: str
    before: float | None = None

    @property
    def words(self) -> str:
        return _words(self.value, self.unit)

    @property
    def moved(self) -> str:
        """``from 812 us``, or ``as before``; empty where the parent's is not known."""
        if self.before is None:
            return ""
        was = _words(self.before, self.unit)
        return "as before" if was == self.words else f"from {was}"

    @property
    def delta(self) -> str:
        """How far it moved, ``−18 %``; empty where it did not or nothing is known of the parent's."""
        if not self.before or self.moved == "as before":
            return ""
        return f"{100 * (self.value / self.before - 1):+.0f} %".replace("-", "−")


def _words(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0f} %"
    if unit == "ratio":
        return f"{value:.2f}"
    if unit == "count":
        scale, suffix = next((each for each in _SCALES if value >= each[0]), _SCALES[-1])
        return f"{value / scale:.4g}{suffix}"
    figure = f"{value:.4g}" if unit == "us" else f"{value:,.0f}"
    return f"{figure} {unit}".rstrip()


def rows(found: Profile, before: Profile | None = None) -> Iterator[Row]:
    """The figures in a fixed order, then the reasons that warps waited for most; ``before`` is the parent's profile."""
    earlier = before if before is not None and before.tool and before.device == found.device else None
    for name, (label, unit) in METRICS.items():
        if name in found.metrics:
            yield Row(label, found.metrics[name], unit, earlier.metrics.get(name) if earlier else None)
    for reason in sorted(found.stalls, key=lambda one: (-found.stalls[one], one))[:STALLS_SHOWN]:
        yield Row(f"waits: {reason}", found.stalls[reason], "%", earlier.stalls.get(reason, 0.0) if earlier else None)


def line(found: Profile, before: Profile | None = None) -> str:
    """All of it on one line, for a log and for a prompt."""
    if not found.tool:
        return f"counters not read: {found.note}"
    said = [f"{row.label} {row.words}{f' ({row.moved})' if row.moved else ''}" for row in rows(found, before)]
    several = f" over {found.launches} launches" if found.launches > 1 else ""
    mean = f" in the mean of {found.calls} calls" if found.calls > 1 else ""
    return f"{', '.join(said) or 'nothing'}{several}{mean}"
