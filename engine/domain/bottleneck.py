"""What a CPU's counters say holds a kernel up, in a few plain sentences. Pure.

Rules of thumb, each with the figure it rests on, so that a reader can disagree: below one instruction a cycle a core mostly
waits, from two on it is mostly busy; a wrong guess at a branch costs some fifteen cycles; a miss brings in a line of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.domain.profile import Profile

_WAITING, _BUSY = 1.0, 2.0
_GUESS_CYCLES = 15.0
_MANY_GUESSES = 0.1
"""Share of all cycles from which wrong guesses are worth a word."""
_LINE_BYTES = 64
_FOUND, _TWICE = 0.5, 1.5
"""Bytes that misses bring in, by those the problem has to move: below the first most came otherwise, above the second again."""


def summary(found: Profile, problem_bytes: int = 0) -> str:
    """One paragraph; empty where too little was counted to say anything, and for a GPU, whose machine code tells more.

    ``problem_bytes`` is what a call reads and writes at least; nought where that is not known.
    """
    if found.tool != "perf":
        return ""
    metrics = found.metrics
    said = [*_pace(metrics), *_traffic(metrics, problem_bytes), *_guesses(metrics), *_verdict(metrics, problem_bytes)]
    return " ".join(said)


def _pace(metrics: Mapping[str, float]) -> Iterator[str]:
    if "ipc" not in metrics:
        return
    pace = metrics["ipc"]
    if pace < _WAITING:
        said = "the cores mostly wait"
    elif pace < _BUSY:
        said = "the cores wait part of the time"
    else:
        said = "the cores are kept busy"
    yield f"{pace:.2f} instructions a cycle: {said}."


def _brought(metrics: Mapping[str, float]) -> float | None:
    """Bytes that the misses of a call bring in from memory."""
    misses = metrics.get("llc_misses", metrics.get("cache_misses"))
    return None if misses is None else misses * _LINE_BYTES


def _traffic(metrics: Mapping[str, float], problem_bytes: int) -> Iterator[str]:
    brought = _brought(metrics)
    if brought is None:
        return
    if problem_bytes <= 0:
        yield f"Cache misses bring in {_bytes(brought)} a call."
        return
    share = brought / problem_bytes
    if share < _FOUND:
        said = "the rest was fetched ahead of need or is in the caches"
    elif share < _TWICE:
        said = "about every byte once"
    else:
        said = "the same bytes are fetched more than once"
    yield (
        f"Cache misses bring in {_bytes(brought)} a call, {share:.2g} times the {_bytes(problem_bytes)} that the problem has "
        f"to move: {said}."
    )


def _lost(metrics: Mapping[str, float]) -> float:
    """Share of the cycles that wrong guesses cost."""
    cycles = metrics.get("cycles", 0.0)
    return metrics.get("branch_misses", 0.0) * _GUESS_CYCLES / cycles if cycles > 0 else 0.0


def _guesses(metrics: Mapping[str, float]) -> Iterator[str]:
    branches = metrics.get("branches", 0.0)
    if branches > 0 and _lost(metrics) >= _MANY_GUESSES:
        share = 100 * metrics.get("branch_misses", 0.0) / branches
        yield f"{share:.2g} % of branches are guessed wrong, which costs about {100 * _lost(metrics):.0f} % of the cycles."


def _verdict(metrics: Mapping[str, float], problem_bytes: int) -> Iterator[str]:
    pace, brought = metrics.get("ipc"), _brought(metrics)
    if _lost(metrics) >= 2 * _MANY_GUESSES:
        yield "Likely bottleneck: branches; do without them, or make them predictable."
    elif pace is None:
        return
    elif pace >= _BUSY:
        yield "Likely bottleneck: the number of instructions; use wider vectors, or do less."
    elif brought is not None and problem_bytes > 0 and brought >= _TWICE * problem_bytes:
        yield "Likely bottleneck: memory traffic; keep blocks in the caches and fuse passes over the data."
    elif brought is not None and problem_bytes > 0 and brought >= _FOUND * problem_bytes:
        yield "Likely bottleneck: memory, at about the traffic that cannot be avoided; stream, prefetch or use more cores."
    else:
        yield "Likely bottleneck: waiting for caches or for earlier results; make more independent work at a time."


def _bytes(value: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if value >= s), (1.0, "bytes"))
    return f"{value / scale:.3g} {unit}"
