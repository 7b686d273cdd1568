"""Cached facts about all kernels of a state: incumbent, largest speedup, counts by stage. Pure to its callers.

A large session changes a few kernels at a time, several times a second. What is known about the others is kept: a new state
costs a comparison of identities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from operator import is_not
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
    """The facts of one session's kernels, as of the latest state that was asked about."""

    def __init__(self) -> None:
        self._epoch = -1
        self._kernels: Mapping[str, Kernel] = {}
        self._facts: dict[str, _KernelFacts] = {}
        self.stages: Counter[Stage] = Counter()
        self.best: Rating | None = None
        self.fastest = 0.0
        self.quarantined: tuple[str, ...] = ()
        self.doubted: tuple[str, ...] = ()

    def update(self, state: SessionState) -> None:
        """Move to this state; only changed kernels are looked at."""
        changed = changed_kernels(self._kernels, state.kernels) if state.epoch == self._epoch else None
        if changed is None:
            self._facts, self.stages = {}, Counter()
            changed = list(state.kernels.values())
        self._epoch, self._kernels = state.epoch, state.kernels
        after = [_kernel_facts(state, kernel) for kernel in changed]
        before = [known for kernel in changed if (known := self._facts.get(kernel.id)) is not None]
        self._facts.update((found.kernel.id, found) for found in after)
        if len(after) == len(self._facts) or any(map(self._matters, (*before, *after))):
            self._look_at_all()
        else:
            self.stages.subtract(found.kernel.stage for found in before)
            self.stages.update(found.kernel.stage for found in after)

    def _matters(self, found: _KernelFacts) -> bool:
        """Whether this kernel may be the best or the fastest, or is among those that are listed by name."""
        leads = found.rating is not None and (self.best is None or found.rating <= self.best)
        return leads or found.speedup >= self.fastest > 0.0 or found.doubted or found.kernel.stage is Stage.QUARANTINED

    def _look_at_all(self) -> None:
        facts = self._facts.values()
        self.stages = Counter([found.kernel.stage for found in facts])
        self.best = min((found.rating for found in facts if found.rating is not None), default=None)
        self.fastest = max((found.speedup for found in facts), default=0.0)
        self.quarantined = tuple(found.kernel.id for found in facts if found.kernel.stage is Stage.QUARANTINED)
        self.doubted = tuple(found.kernel.id for found in facts if found.doubted)


def changed_kernels(before: Mapping[str, Kernel], after: Mapping[str, Kernel]) -> list[Kernel] | None:
    """The kernels of ``after`` that are not the same objects in ``before``; ``None`` if a kernel of ``before`` is missing.

    Two states of a session list their kernels in the same order, so this compares them place by place.
    """
    now = list(after.values())
    found = list(compress(now, map(is_not, now, before.values())))
    found += now[len(before) :]
    added = sum(1 for kernel in found if kernel.id not in before)
    return found if len(before) + added == len(after) else None


_caches: dict[int, tuple[object, _FactsCache]] = {}


@lru_cache(maxsize=4)
def tree_facts(state: SessionState) -> TreeFacts:
    """The facts of a state, cached."""
    known = _cache_of(state)
    known.update(state)
    best_rated = state.kernels[known.best[-1]] if known.best is not None else None
    return TreeFacts(
        queries.incumbent(state) if state.incumbent else best_rated,
        known.fastest,
        Counter(known.stages),
        Counter(_stages_under_way(state)),
        known.quarantined,
        known.doubted,
        frozenset(name for key in state.running if key.kind == WorkKind.RACE for name in key.subjects),
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
    for key in state.running:
        kernel = state.kernels.get(key.subject)
        if kernel is not None and kernel.stage == key.kind and kernel.attempt == key.number:
            found.append(kernel.stage)
    return found
