"""Cached facts about all kernels of a state: incumbent, largest speedup, counts by stage. Pure to its callers.

A large session changes a few kernels at a time, ten times a second. The facts of a kernel are kept while it is the same
object; a new state costs one quick pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from engine.domain import corroboration, queries, races
from engine.domain.state import Kernel, SessionState, Stage
from engine.domain.work import WorkKind

_SESSIONS_KEPT = 4
Rating = tuple[bool, float, float, int, str]


class _KernelFacts(NamedTuple):
    kernel: Kernel
    speedup: float
    """0 if it has none that is a result."""
    rating: Rating | None
    """Smaller is better; screened kernels rank after precise ones; ``None`` for kernels that cannot become incumbent."""
    doubted: bool = False
    """Measured, but not corroborated."""


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """Facts about all kernels of one state."""

    incumbent: Kernel | None
    fastest: float
    """The largest speedup that is a result; 0 without one."""
    stages: Mapping[Stage, int]
    under_way: Mapping[Stage, int]
    """Unfinished kernels whose work is running, not waiting."""
    quarantined: tuple[str, ...]
    doubted: tuple[str, ...]
    """Kernels that are measured, but not corroborated."""
    racing: frozenset[str]
    """Kernels in a running race."""
    undecided: frozenset[str]
    """Kernels whose race with the incumbent was undecided."""


class _FactsCache:
    """The cached facts of one session's kernels."""

    def __init__(self) -> None:
        self.epoch = -1
        self.facts: dict[str, _KernelFacts] = {}

    def update(self, state: SessionState) -> list[_KernelFacts]:
        """The facts of every kernel; only changed kernels are recomputed."""
        if state.epoch != self.epoch or len(self.facts) > len(state.kernels):
            self.epoch, self.facts = state.epoch, {}
        facts = self.facts
        for name, kernel in state.kernels.items():
            known = facts.get(name)
            if known is None or known.kernel is not kernel:
                facts[name] = _kernel_facts(state, kernel)
        return list(facts.values())


_caches: dict[int, tuple[object, _FactsCache]] = {}


@lru_cache(maxsize=4)
def tree_facts(state: SessionState) -> TreeFacts:
    """The facts of a state, cached."""
    facts = _cache_of(state).update(state)
    best = min((found.rating for found in facts if found.rating is not None), default=None)
    stages = Counter(found.kernel.stage for found in facts)
    quarantined = tuple(f.kernel.id for f in facts if f.kernel.stage is Stage.QUARANTINED) if stages[Stage.QUARANTINED] else ()
    best_rated = state.kernels[best[-1]] if best is not None else None
    return TreeFacts(
        queries.incumbent(state) if state.incumbent else best_rated,
        max((found.speedup for found in facts), default=0.0),
        stages,
        Counter(_stages_under_way(state)),
        quarantined,
        tuple(found.kernel.id for found in facts if found.doubted),
        frozenset(name for key in state.started if key.kind == WorkKind.RACE for name in key.subjects),
        frozenset(_undecided(state)) if state.races else frozenset(),
    )


def _undecided(state: SessionState) -> list[str]:
    best = queries.incumbent(state)
    return [name for race in races.undecided_races(state) for name in (race.kernel, race.against) if best and name != best.id]


def _cache_of(state: SessionState) -> _FactsCache:
    key = id(state.opened)
    if key not in _caches:
        while len(_caches) >= _SESSIONS_KEPT:
            del _caches[next(iter(_caches))]
        _caches[key] = (state.opened, _FactsCache())
    return _caches[key][1]


def _kernel_facts(state: SessionState, kernel: Kernel) -> _KernelFacts:
    ratio = queries.speedup(state, kernel)
    measured = kernel.measurement
    if ratio is None or measured is None:
        return _KernelFacts(kernel, 0.0, None)
    if kernel.verification is None or not (kernel.accepted or measured.corroborated):
        return _KernelFacts(kernel, 0.0, None, corroboration.is_doubted(kernel))
    rating = (not queries.is_precise(kernel), -ratio.low, -ratio.value, len(kernel.id), kernel.id)
    return _KernelFacts(kernel, ratio.value, rating)


def _stages_under_way(state: SessionState) -> list[Stage]:
    found = []
    for key in state.started:
        kernel = state.kernels.get(key.subject)
        if kernel is not None and kernel.stage == key.kind and kernel.attempt == key.number:
            found.append(kernel.stage)
    return found
