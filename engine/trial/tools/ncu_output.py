"""Parses the output of Nsight Compute (``ncu --csv --page raw``) into metrics under our names. Pure.

The page is a table with one row per launch: a header of metric names, a row of units, the values. Versions differ in metrics
and number formats: columns are found by name, units are converted, and unknown values are skipped.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis", "WarpStateStats")
"""The tool's sections that contain the metrics read here."""

_TIMES = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6}
_SIZES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "b": 1.0, "kb": 1e3, "kib": 1024.0, "kibyte": 1024.0}
_SHARES = {"%": 1.0, "": 1.0}
_COUNTS = {"": 1.0, "register/thread": 1.0, "register": 1.0}
_COLUMNS: Sequence[tuple[str, Mapping[str, float], tuple[str, ...]]] = (
    ("duration_us", _TIMES, ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max")),
    ("sm_percent", _SHARES, ("sm__throughput.avg.pct_of_peak_sustained_elapsed",)),
    (
        "dram_percent",
        _SHARES,
        ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    ),
    ("l2_hit_percent", _SHARES, ("lts__t_sector_hit_rate.pct",)),
    ("occupancy_percent", _SHARES, ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    ("registers", _COUNTS, ("launch__registers_per_thread",)),
    ("static_bytes", _SIZES, ("launch__shared_mem_per_block_static",)),
    ("dynamic_bytes", _SIZES, ("launch__shared_mem_per_block_dynamic",)),
    ("shared_bytes", _SIZES, ("launch__shared_mem_per_block",)),
)
_STALL = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.ratio")
_NO_WAIT = "selected"
"""Not a stall: the cycle in which a warp issues."""
_PERMISSION = "ERR_NVGPUCTRPERM"
_REASONS: Sequence[tuple[str, str]] = (
    (
        _PERMISSION,
        f"the driver lets only administrators read its counters ({_PERMISSION}): load its kernel module with "
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    ("driver resource was unavailable", "another tool holds the device's counters (a monitoring service such as DCGM?)"),
    ("No kernels were profiled", "the call launched nothing that can be profiled"),
)


@dataclass(frozen=True, slots=True)
class NcuCounters:
    """One call: ``metrics`` as ``engine.domain.profile`` names them, ``stalls`` in per cent."""

    launches: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    stalls: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Launch:
    metrics: Mapping[str, float]
    stalls: Mapping[str, float]

    @property
    def weight(self) -> float:
        return self.metrics.get("duration_us", 0.0)


def parse_ncu(output: str) -> NcuCounters | None:
    """The combined counters of all launches in the tool's output; ``None`` if it contains none."""
    launches = [found for found in map(_launch, _table(output)) if found.metrics or found.stalls]
    if not launches:
        return None
    names = dict.fromkeys(name for launch in launches for name in launch.metrics)
    metrics = {name: _COMBINED.get(name, _weighted)([(x.weight, x.metrics[name]) for x in launches if name in x.metrics])
               for name in names}  # fmt: skip
    reasons = dict.fromkeys(reason for launch in launches for reason in launch.stalls)
    with_stalls = [launch for launch in launches if launch.stalls]
    stalls = {reason: _weighted([(x.weight, x.stalls.get(reason, 0.0)) for x in with_stalls]) for reason in reasons}
    return NcuCounters(len(launches), metrics, stalls)


def why_not(output: str) -> str:
    """Why the tool read no counters, one line."""
    for sign, words in _REASONS:
        if sign in output:
            return words
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    return (errors or lines[-1:] or ["no output"])[0][:200]


def _table(output: str) -> Iterable[dict[str, tuple[str, str]]]:
    """Each row as metric → (value, unit)."""
    lines = output.splitlines()
    start = next((n for n, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID"')), None)
    if start is None:
        return
    header, *rest = csv.reader(line.lstrip("\ufeff") for line in lines[start:] if line.startswith(('"', "\ufeff")))
    units = [""] * len(header)
    for row in rest:
        if len(row) != len(header):
            continue
        if not row[0].strip():
            units = row
        elif row[0].strip().isdigit():
            yield {name: (value, unit.strip()) for name, value, unit in zip(header, row, units, strict=True)}


def _launch(row: Mapping[str, tuple[str, str]]) -> _Launch:
    metrics: dict[str, float] = {}
    for name, units, columns in _COLUMNS:
        values = (_number(*row[column], units) for column in columns if column in row)
        found = next((value for value in values if value is not None), None)
        if found is not None:
            metrics[name] = found
    parts = [metrics.pop(name) for name in ("static_bytes", "dynamic_bytes") if name in metrics]
    if parts:
        metrics["shared_bytes"] = sum(parts)
    return _Launch(metrics, _stalls(row))


def _stalls(row: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    """Stall reason → per cent of a warp's time between two instructions."""
    cycles: dict[str, float] = {}
    for column, (text, _) in row.items():
        match = _STALL.fullmatch(column)
        value = _number(text, "", _SHARES) if match else None
        if match and value is not None:
            cycles[match[1].replace("_", " ")] = value
    whole = sum(cycles.values())
    return {reason: 100 * value / whole for reason, value in cycles.items() if reason != _NO_WAIT} if whole > 0 else {}


def _number(text: str, unit: str, units: Mapping[str, float]) -> float | None:
    """A value in our unit; ``None`` if it is not a number or has an unknown unit."""
    factor = units.get(unit.lower().removesuffix("/block"))
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * factor if factor is not None and math.isfinite(value) and value >= 0 else None


_Weighted = Sequence[tuple[float, float]]


def _weighted(values: _Weighted) -> float:
    whole = sum(weight for weight, _ in values)
    if whole <= 0:
        return sum(value for _, value in values) / len(values)
    return sum(weight * value for weight, value in values) / whole


def _total(values: _Weighted) -> float:
    return sum(value for _, value in values)


def _largest(values: _Weighted) -> float:
    return max(value for _, value in values)


_COMBINED: Mapping[str, Callable[[_Weighted], float]] = {
    "duration_us": _total, "registers": _largest, "shared_bytes": _largest,
}  # fmt: skip
