"""What many widgets ask of all kernels at once: who leads, how far the bars reach, how many are where. Pure to its callers.

A large session changes a few kernels at a time, ten times a second. What was found of a kernel is kept for as long as the
kernel is the same object, so that a new state costs one quick pass and a look at what changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from engine.domain import queries, races
from engine.domain.state import Kernel, SessionState, Stage

_SESSIONS_KEPT = 4
Rating = tuple[bool, float, float, int, str]


class _Facts(NamedTuple):
    kernel: Kernel
    speedup: float
    """0 where it has none."""
    rating: Rating | None
    """Smaller is better, screened ones after all precise ones; ``None`` for what cannot lead."""


@dataclass(frozen=True, slots=True)
class Whole:
    """All kernels of one state together."""

    incumbent: Kernel | None
    fastest: float
    """The largest speedup; 0 while there is none."""
    stages: Mapping[Stage, int]
    under_way: Mapping[Stage, int]
    """Of those that have not settled: being worked at, not waiting."""
    quarantined: tuple[str, ...]
    racing: frozenset[str]
    """Kernels that are being raced."""
    undecided: frozenset[str]
    """Kernels whose race with the incumbent told nothing."""


class _Memory:
    """What is known of the kernels of one session."""

    def __init__(self) -> None:
        self.epoch = -1
        self.facts: dict[str, _Facts] = {}

    def look(self, state: SessionState) -> list[_Facts]:
        """The facts of every kernel, found anew for those that changed."""
        if state.epoch != self.epoch or len(self.facts) > len(state.kernels):
            self.epoch, self.facts = state.epoch, {}
        facts = self.facts
        for name, kernel in state.kernels.items():
            known = facts.get(name)
            if known is None or known.kernel is not kernel:
                facts[name] = _facts(state, kernel)
        return list(facts.values())


_memories: dict[int, tuple[object, _Memory]] = {}


@lru_cache(maxsize=4)
def of(state: SessionState) -> Whole:
    """Counted once a state however many widgets ask."""
    facts = _memory(state).look(state)
    best = min((found.rating for found in facts if found.rating is not None), default=None)
    stages = Counter(found.kernel.stage for found in facts)
    doubted = tuple(f.kernel.id for f in facts if f.kernel.stage is Stage.QUARANTINED) if stages[Stage.QUARANTINED] else ()
    leader = state.kernels[best[-1]] if best is not None else None
    return Whole(
        queries.incumbent(state) if state.incumbent else leader,
        max((found.speedup for found in facts), default=0.0),
        stages,
        Counter(_worked_at(state)),
        doubted,
        frozenset(name for key in state.started if key.startswith("race:") for name in key.split(":")[1:3]),
        frozenset(_undecided(state)) if state.races else frozenset(),
    )


def _undecided(state: SessionState) -> list[str]:
    best = queries.incumbent(state)
    return [name for race in races.undecided(state) for name in (race.kernel, race.against) if best and name != best.id]


def _memory(state: SessionState) -> _Memory:
    key = id(state.opened)
    if key not in _memories:
        while len(_memories) >= _SESSIONS_KEPT:
            del _memories[next(iter(_memories))]
        _memories[key] = (state.opened, _Memory())
    return _memories[key][1]


def _facts(state: SessionState, kernel: Kernel) -> _Facts:
    ratio = queries.speedup(state, kernel)
    measured = kernel.measurement
    if ratio is None or measured is None:
        return _Facts(kernel, 0.0, None)
    if kernel.verification is None or not (kernel.accepted or measured.corroborated):
        return _Facts(kernel, ratio.value, None)
    rating = (not queries.is_precise(kernel), -ratio.low, -ratio.value, len(kernel.id), kernel.id)
    return _Facts(kernel, ratio.value, rating)


def _worked_at(state: SessionState) -> list[Stage]:
    found = []
    for key in state.started:
        stage, _, rest = key.partition(":")
        name, _, attempt = rest.partition(":")
        kernel = state.kernels.get(name)
        if kernel is not None and kernel.stage == stage and str(kernel.attempt) == attempt:
            found.append(kernel.stage)
    return found
