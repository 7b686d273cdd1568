"""A CPU kernel's counters as text, with its likely bottleneck."""

from __future__ import annotations

import pytest

from engine.domain.bottleneck import summary
from engine.domain.profile import Profile, line, rows

METRICS = {
    "cpu_us": 1500.0, "ipc": 0.5, "instructions": 5e6, "cycles": 1e7, "branches": 4e5, "branch_misses": 2e3,
    "cache_misses": 4e4,
}  # fmt: skip
BYTES = 1_280_000


def found(**changes: float) -> Profile:
    return Profile(0, "perf", "a processor", 1, {**METRICS, **changes, "calls": 100.0})


@pytest.mark.parametrize(
    ("changes", "problem_bytes", "pace", "verdict"),
    [
        ({}, BYTES, "mostly stall", "memory traffic"),
        ({"cache_misses": 2e4}, BYTES, "mostly stall", "memory bandwidth, near the least possible traffic"),
        ({"cache_misses": 1e3}, BYTES, "mostly stall", "cache latency"),
        ({"llc_misses": 1e3}, BYTES, "mostly stall", "cache latency"),
        ({}, 0, "mostly stall", "cache latency"),
        ({"ipc": 1.5}, BYTES, "stall part of the time", "memory traffic"),
        ({"ipc": 3.1}, BYTES, "are busy", "instruction throughput"),
        ({"branch_misses": 2e5}, BYTES, "mostly stall", "branch mispredictions"),
    ],
)
def test_counters_are_interpreted(changes: dict[str, float], problem_bytes: int, pace: str, verdict: str) -> None:
    output = summary(found(**changes), problem_bytes)
    assert pace in output
    assert verdict in output.partition("Likely bottleneck: ")[2]
    assert "\n" not in output


def test_cache_misses_are_compared_with_the_least_traffic() -> None:
    assert "load 2.56 MB a call, 2 times the 1.28 MB that the problem must move" in summary(found(), BYTES)
    assert "50% of branches are mispredicted, which costs about 30% of the cycles" in summary(found(branch_misses=2e5))


@pytest.mark.parametrize("gone", [("ipc",), ("cache_misses",), ("cycles", "ipc"), tuple(METRICS)])
def test_missing_counters_are_not_mentioned(gone: tuple[str, ...]) -> None:
    left = {name: value for name, value in METRICS.items() if name not in gone}
    output = summary(Profile(0, "perf", "a processor", 1, left), BYTES)
    assert ("instructions a cycle" in output) == ("ipc" not in gone)
    assert ("Cache misses" in output) == ("cache_misses" not in gone)


def test_no_summary_without_counters_or_for_a_gpu() -> None:
    assert summary(Profile(0, note="no perf"), BYTES) == ""
    assert summary(Profile(0, "ncu", "a GPU", 1, {"duration_us": 8.0}), BYTES) == ""


def test_counts_are_short_and_their_change_is_in_per_cent() -> None:
    moved = {row.label: row for row in rows(found(instructions=1_234_567.0), found(branch_misses=3e3, branches=0.0))}
    assert (moved["instructions"].words, moved["instructions"].delta) == ("1.235 M", "−75%")
    assert (moved["branch misses"].words, moved["branch misses"].delta) == ("2 k", "−33%")
    assert (moved["instructions a cycle"].words, moved["instructions a cycle"].delta) == ("0.50", "")
    assert (moved["branches"].words, moved["branches"].delta) == ("400 k", ""), "no share of nothing"
    assert line(found()).endswith("(mean of 100 calls)")
