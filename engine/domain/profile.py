"""Hardware counters of one call of a kernel, how they changed from its parent, and the kernel's hot code. Pure.

Metrics have fixed names, independent of the tool. A call of several launches is one profile: durations add up, percentages are
weighted by duration, and registers and shared memory are the maximum. On a CPU, metrics are means over many calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.domain.hot_code import HotCode
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
"""Name → label and unit. Per cent refers to the device's peak, for hits to accesses, for occupancy to the warps that a
multiprocessor holds. Those from ``cpu_us`` on are for CPUs, summed over all threads of a kernel."""
CALLS = "calls"
"""Among a profile's metrics, but not a counter."""
STALLS_SHOWN = 3
UNCHANGED = "unchanged"
_SCALES = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Profile:
    """The counters of one attempt of a kernel, or why reading them failed."""

    attempt: int
    tool: str = ""
    """The tool that read them; empty if none did, with the reason in ``note``."""
    device: str = ""
    """Name of the device. Metrics of different devices are never compared."""
    launches: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Names from ``METRICS`` → the values that were read."""
    stalls: Mapping[str, float] = field(default_factory=dict)
    """Stall reason → per cent of the time between two instructions of a warp."""
    note: str = ""
    """Why nothing was read, or what is missing."""
    log: Blob = ""
    seconds: float = 0.0
    hot: HotCode | None = None
    """Where the kernel spends its time, sampled in a run of its own, or its loops; ``None`` if neither is known."""

    @property
    def was_read(self) -> bool:
        """Whether anything was, in a run: counters, or samples."""
        return bool(self.tool) or (self.hot is not None and self.hot.samples > 0)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The payloads that it names."""
        return tuple(filter(None, (self.log, self.hot.listing if self.hot is not None else "")))

    @property
    def calls(self) -> int:
        """The number of calls that the metrics are means of. Stored among the metrics, because the journal has no field for
        it."""
        return int(self.metrics.get(CALLS, 1))


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One metric with its label and unit, and the parent's value if it is comparable."""

    label: str
    value: float
    unit: str
    before: float | None = None

    @property
    def words(self) -> str:
        return _words(self.value, self.unit)

    @property
    def moved(self) -> str:
        """``from 812 us``, or ``unchanged``; empty if the parent's value is unknown."""
        if self.before is None:
            return ""
        was = _words(self.before, self.unit)
        return UNCHANGED if was == self.words else f"from {was}"

    @property
    def delta(self) -> str:
        """The relative change, ``−18%``; empty if there is none or the parent's value is unknown."""
        if not self.before or self.moved == UNCHANGED:
            return ""
        return f"{100 * (self.value / self.before - 1):+.0f}%".replace("-", "−")


def _words(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0f}%"
    if unit == "ratio":
        return f"{value:.2f}"
    if unit == "count":
        scale, suffix = next((each for each in _SCALES if value >= each[0]), _SCALES[-1])
        return f"{value / scale:.4g}{suffix}"
    figure = f"{value:.4g}" if unit == "us" else f"{value:,.0f}"
    return f"{figure} {unit}".rstrip()


def rows(profile: Profile, before: Profile | None = None) -> Iterator[ProfileRow]:
    """The metrics in a fixed order, then the most frequent stall reasons; ``before`` is the parent's profile."""
    earlier = before if before is not None and before.tool and before.device == profile.device else None
    for name, (label, unit) in METRICS.items():
        if name in profile.metrics:
            yield ProfileRow(label, profile.metrics[name], unit, earlier.metrics.get(name) if earlier else None)
    for reason in sorted(profile.stalls, key=lambda name: (-profile.stalls[name], name))[:STALLS_SHOWN]:
        yield ProfileRow(f"stalls: {reason}", profile.stalls[reason], "%", earlier.stalls.get(reason, 0.0) if earlier else None)


def line(profile: Profile, before: Profile | None = None) -> str:
    """The counters on one line, for a log or a prompt."""
    if not profile.tool:
        return f"counters not read: {profile.note}"
    figures = [f"{row.label} {row.words}{f' ({row.moved})' if row.moved else ''}" for row in rows(profile, before)]
    several = f" over {profile.launches} launches" if profile.launches > 1 else ""
    mean = f" (mean of {profile.calls} calls)" if profile.calls > 1 else ""
    return f"{', '.join(figures) or 'nothing'}{several}{mean}"
