"""Derives the likely bottleneck of a CPU kernel from its hardware counters, in a few sentences. Pure.

Rules of thumb: below one instruction a cycle a core mostly stalls, from two on it is mostly busy; a mispredicted branch costs
about 15 cycles; a cache miss loads a line of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.domain.profile import Profile

_WAITING, _BUSY = 1.0, 2.0
_BRANCH_MISS_CYCLES = 15.0
_MANY_BRANCH_MISSES = 0.1
"""Share of all cycles above which branch misses are reported."""
_LINE_BYTES = 64
_LESS_THAN_ONCE, _MORE_THAN_ONCE = 0.5, 1.5
"""Bytes loaded by cache misses ÷ bytes that the problem must move: below the first, most data is prefetched or cached; above
the second, data is loaded repeatedly."""


def summary(profile: Profile, problem_bytes: int = 0) -> str:
    """One paragraph; empty for a GPU or if too few counters were read.

    ``problem_bytes`` is the least traffic of a call; 0 if unknown.
    """
    if profile.tool != "perf":
        return ""
    metrics = profile.metrics
    sentences = (_pace(metrics), _traffic(metrics, problem_bytes), _branch_misses(metrics), _verdict(metrics, problem_bytes))
    return " ".join(sentence for part in sentences for sentence in part)


def _pace(metrics: Mapping[str, float]) -> Iterator[str]:
    if "ipc" not in metrics:
        return
    pace = metrics["ipc"]
    if pace < _WAITING:
        meaning = "the cores mostly stall"
    elif pace < _BUSY:
        meaning = "the cores stall part of the time"
    else:
        meaning = "the cores are busy"
    yield f"{pace:.2f} instructions a cycle: {meaning}."


def _loaded_bytes(metrics: Mapping[str, float]) -> float | None:
    """Bytes loaded by the cache misses of a call."""
    misses = metrics.get("llc_misses", metrics.get("cache_misses"))
    return None if misses is None else misses * _LINE_BYTES


def _traffic(metrics: Mapping[str, float], problem_bytes: int) -> Iterator[str]:
    loaded = _loaded_bytes(metrics)
    if loaded is None:
        return
    if problem_bytes <= 0:
        yield f"Cache misses load {_bytes(loaded)} a call."
        return
    share = loaded / problem_bytes
    if share < _LESS_THAN_ONCE:
        meaning = "the rest is prefetched or cached"
    elif share < _MORE_THAN_ONCE:
        meaning = "every byte about once"
    else:
        meaning = "the same bytes are loaded repeatedly"
    yield (
        f"Cache misses load {_bytes(loaded)} a call, {share:.2g} times the {_bytes(problem_bytes)} that the problem must move: "
        f"{meaning}."
    )


def _branch_miss_share(metrics: Mapping[str, float]) -> float:
    """Share of the cycles lost to branch misses."""
    cycles = metrics.get("cycles", 0.0)
    return metrics.get("branch_misses", 0.0) * _BRANCH_MISS_CYCLES / cycles if cycles > 0 else 0.0


def _branch_misses(metrics: Mapping[str, float]) -> Iterator[str]:
    branches, lost = metrics.get("branches", 0.0), _branch_miss_share(metrics)
    if branches > 0 and lost >= _MANY_BRANCH_MISSES:
        share = 100 * metrics.get("branch_misses", 0.0) / branches
        yield f"{share:.2g}% of branches are mispredicted, which costs about {100 * lost:.0f}% of the cycles."


def _verdict(metrics: Mapping[str, float], problem_bytes: int) -> Iterator[str]:
    pace, loaded = metrics.get("ipc"), _loaded_bytes(metrics)
    if _branch_miss_share(metrics) >= 2 * _MANY_BRANCH_MISSES:
        yield "Likely bottleneck: branch mispredictions; use branch-free code, or make branches predictable."
    elif pace is None:
        return
    elif pace >= _BUSY:
        yield "Likely bottleneck: instruction throughput; use wider vectors or fewer instructions."
    elif loaded is not None and problem_bytes > 0 and loaded >= _MORE_THAN_ONCE * problem_bytes:
        yield "Likely bottleneck: memory traffic; block for the caches and fuse passes over the data."
    elif loaded is not None and problem_bytes > 0 and loaded >= _LESS_THAN_ONCE * problem_bytes:
        yield "Likely bottleneck: memory bandwidth, near the least possible traffic; stream, prefetch or use more cores."
    else:
        yield "Likely bottleneck: cache latency or dependent instructions; expose more independent work."


def _bytes(value: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if value >= s), (1.0, "bytes"))
    return f"{value / scale:.3g} {unit}"
