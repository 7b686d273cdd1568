"""Hardware counters of one call of a kernel, and how they changed from its parent. Pure.

Figures have fixed names, whatever a tool calls them. A call of several launches is one profile: durations add up, shares are
weighted by duration, and registers and shared memory are the maximum. On a CPU a figure is the mean of many calls.
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
"""Name → label and unit. Per cent of the device's peak; of accesses for hits; of the warps that a multiprocessor holds for
occupancy. Those from ``cpu_us`` on are a CPU's, summed over all threads of a kernel."""
CALLS = "calls"
"""Among a profile's metrics, but not a counter."""
STALLS_SHOWN = 3
_SCALES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Profile:
    """The counters of one attempt of a kernel, or why they could not be read."""

    attempt: int
    tool: str = ""
    """The tool that read them; empty where none could, with the reason in ``note``."""
    device: str = ""
    """Name of the device. Figures of two devices are never compared."""
    launches: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Names of ``METRICS`` → values, those that were read."""
    stalls: Mapping[str, float] = field(default_factory=dict)
    """Why warps waited → per cent of the time between two instructions of a warp."""
    note: str = ""
    """Why nothing was read, or what could not be."""
    log: Blob = ""
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        """Calls that the figures are the mean of. Kept among the metrics: the journal's format has no other place for it."""
        return int(self.metrics.get(CALLS, 1))


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One figure with its label and unit, and the parent's figure where both are known."""

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
        """The relative change, ``−18 %``; empty where there is none or the parent's figure is not known."""
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


def rows(profile: Profile, before: Profile | None = None) -> Iterator[ProfileRow]:
    """The figures in a fixed order, then the most frequent stall reasons; ``before`` is the parent's profile."""
    earlier = before if before is not None and before.tool and before.device == profile.device else None
    for name, (label, unit) in METRICS.items():
        if name in profile.metrics:
            yield ProfileRow(label, profile.metrics[name], unit, earlier.metrics.get(name) if earlier else None)
    for reason in sorted(profile.stalls, key=lambda name: (-profile.stalls[name], name))[:STALLS_SHOWN]:
        yield ProfileRow(f"waits: {reason}", profile.stalls[reason], "%", earlier.stalls.get(reason, 0.0) if earlier else None)


def line(profile: Profile, before: Profile | None = None) -> str:
    """The whole profile on one line, for a log or a prompt."""
    if not profile.tool:
        return f"counters not read: {profile.note}"
    figures = [f"{row.label} {row.words}{f' ({row.moved})' if row.moved else ''}" for row in rows(profile, before)]
    several = f" over {profile.launches} launches" if profile.launches > 1 else ""
    mean = f" in the mean of {profile.calls} calls" if profile.calls > 1 else ""
    return f"{', '.join(figures) or 'nothing'}{several}{mean}"
