"""Races between kernels: what one says, which count, which are owed. Pure.

A measurement against the baseline picks who may lead, and the best of many measurements is also the luckiest. So a kernel
takes the lead only by a race: it and the incumbent interleaved in fresh processes, and nothing of the earlier samples counts.
"""

from __future__ import annotations

import math

from engine.domain import queries, stats
from engine.domain.model import Interval, RaceOutcome
from engine.domain.state import Kernel, Race, SessionState, Stage
from engine.domain.work import Race as RaceWork

MOST_EFFORT = 3
"""Doublings of what a race costs: beyond that the two are as good as equal."""


def claimed(ratio: Interval, same: Interval) -> Interval:
    """The ratio with an interval no narrower than what the session's baseline showed against itself (``same``)."""
    if ratio.value <= 0 or same.low <= 0:
        return ratio
    floor = math.exp(max(abs(math.log(same.low)), abs(math.log(same.high))))
    return Interval(ratio.value, min(ratio.low, ratio.value / floor), max(ratio.high, ratio.value * floor))


def turned(ratio: Interval) -> Interval:
    """The same race as the other of the two sees it."""
    return Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)


def outcome(ratio: Interval, *, corroborated: bool = True) -> RaceOutcome:
    """Decided only where the whole interval is; a lead that the judge's clock does not bear out is none."""
    found = RaceOutcome(stats.significant(ratio))
    return RaceOutcome.UNDECIDED if found is RaceOutcome.FASTER and not corroborated else found


def is_current(state: SessionState, race: Race) -> bool:
    """Whether it was run on the session's present device, between the two as they are now."""
    pair = (state.kernels.get(race.kernel), state.kernels.get(race.against))
    return race.epoch == state.epoch and all(
        kernel is not None and kernel.again == again for kernel, again in zip(pair, race.again, strict=True)
    )


def between(state: SessionState, one: str, other: str) -> Race | None:
    """The latest race of the two that still counts, whichever of them was named first."""
    both = {one, other}
    return next((r for r in reversed(state.races) if {r.kernel, r.against} == both and is_current(state, r)), None)


def effort(state: SessionState, one: str, other: str) -> int:
    """How much the next race of the two is to cost: one doubling for every time they were undecided in a row."""
    last = between(state, one, other)
    if last is None or last.outcome is not RaceOutcome.UNDECIDED:
        return 0
    return min(last.effort + 1, MOST_EFFORT)


def may_race(state: SessionState, kernel: Kernel) -> bool:
    """Whether it has a precise measurement on the present device, believed or not."""
    return kernel.stage is Stage.MEASURED and queries.is_precise(kernel) and queries.speedup(state, kernel) is not None


def challengers(state: SessionState) -> tuple[Kernel, ...]:
    """Kernels that rank above the incumbent and have not raced it, best first.

    None while nobody is said to lead, or while who does is being measured anew.
    """
    leader = state.kernels.get(state.incumbent)
    if leader is None or not queries.may_lead(state, leader):
        return ()
    best = queries.speedup(state, leader)
    assert best is not None, "or it could not lead"
    bar = queries.rating(leader, best)
    ahead = [
        (rating, k)
        for k in state.kernels.values()
        if k is not leader
        and (ratio := queries.speedup(state, k)) is not None
        and (rating := queries.rating(k, ratio)) < bar
        and queries.may_lead(state, k)
        and between(state, k.id, leader.id) is None
    ]
    return tuple(kernel for _, kernel in sorted(ahead, key=lambda found: found[0]))


def pace(state: SessionState) -> Kernel | None:
    """The kernel that others are held against before they are measured precisely: a challenger counts until it has lost."""
    ahead = challengers(state)
    return ahead[0] if ahead else queries.incumbent(state)


def owed(state: SessionState) -> tuple[RaceWork, ...]:
    """Races still to be run: those that the engineer asked for, then those for the lead, the best challenger first."""
    pairs = [pair for pair in state.asked if all(_is_there(state, name) for name in pair)]
    pairs += [(kernel.id, state.incumbent) for kernel in challengers(state)]
    return tuple(RaceWork(*pair, effort(state, *pair)) for pair in dict.fromkeys(pairs))


def _is_there(state: SessionState, name: str) -> bool:
    return name in state.kernels and may_race(state, state.kernels[name])


def winner(state: SessionState) -> Kernel | None:
    """A kernel that has beaten the incumbent since it leads, by their latest race, and can lead itself.

    Earlier races do not count: three kernels may beat each other in a circle, and the lead would never rest.
    """
    for race in reversed(state.races[state.reign_began :]):
        name = {RaceOutcome.FASTER: race.kernel, RaceOutcome.SLOWER: race.against}.get(race.outcome, "")
        if {race.kernel, race.against} != {name, state.incumbent} or name == state.incumbent:
            continue
        found = state.kernels.get(name)
        if found is not None and between(state, name, state.incumbent) is race and queries.may_lead(state, found):
            return found
    return None


def accession(state: SessionState) -> Race | None:
    """The race that gave the incumbent the lead; none where it led without one."""
    last = state.races[state.reign_began - 1] if state.reign_began else None
    if last is None or {RaceOutcome.FASTER: last.kernel, RaceOutcome.SLOWER: last.against}.get(last.outcome) != state.incumbent:
        return None
    former = state.reigns[-2] if len(state.reigns) > 1 else ""
    return last if former in (last.kernel, last.against) else None


def against_incumbent(state: SessionState, kernel: str) -> Race | None:
    """How the kernel last fared against the present incumbent."""
    best = queries.incumbent(state)
    return between(state, kernel, best.id) if best is not None and kernel != best.id else None


def undecided(state: SessionState) -> tuple[Race, ...]:
    """Races with the present incumbent that told nothing, where more could be spent."""
    best = queries.incumbent(state)
    if best is None:
        return ()
    pairs = ((r.kernel, r.against) for r in state.races if best.id in (r.kernel, r.against))
    rivals = dict.fromkeys(one if other == best.id else other for one, other in pairs)
    found = (between(state, name, best.id) for name in rivals if _is_there(state, name))
    return tuple(race for race in found if race is not None and race.outcome is RaceOutcome.UNDECIDED)


def leaders(state: SessionState, count: int) -> tuple[Kernel, ...]:
    """The best kernels beside the incumbent that can race it."""
    best = queries.incumbent(state)
    return tuple(k for k in queries.ranked(state) if may_race(state, k) and k is not best)[:count]
