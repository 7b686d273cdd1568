"""Races between kernels: their outcomes, which of them count, which are pending. Pure.

The best of many measurements is biased by luck. A kernel therefore becomes the incumbent only by a race: it and the incumbent
run interleaved in fresh processes, and earlier samples do not count.
"""

from __future__ import annotations

import itertools
import math

from engine.domain import queries, regimes, stats
from engine.domain.model import Interval, RaceOutcome
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, RaceRecord, SessionState, Stage
from engine.domain.work import Race as RaceWork

MAX_EFFORT = 3
"""How often the cost of a race can double; two kernels that are still undecided then count as equal."""
CLOSE = 0.05
"""By how much less single calls may show of a kernel that could win back to back: power and clock shift ratios by 2 to 7% in
the recorded matrix products."""
SLOW = 0.5
"""An incumbent that is surely slower than this is not measured in the sustained regime."""
MAX_CLOSE = 3
"""How many such kernels race an incumbent."""


def with_noise_floor(ratio: Interval, same: Interval) -> Interval:
    """The ratio with an interval no narrower than that of the baseline against itself (``same``)."""
    if ratio.value <= 0 or same.low <= 0:
        return ratio
    floor = math.exp(max(abs(math.log(same.low)), abs(math.log(same.high))))
    return Interval(ratio.value, min(ratio.low, ratio.value / floor), max(ratio.high, ratio.value * floor))


def inverted(ratio: Interval) -> Interval:
    """The speedup of the second kernel over the first; infinite where the other one's is 0, as in a damaged journal."""
    value, low, high = (1 / one if one else math.inf for one in (ratio.value, ratio.high, ratio.low))
    return Interval(value, low, high)


def outcome(ratio: Interval, *, corroborated: bool = True) -> RaceOutcome:
    """Undecided if the interval contains 1, or if the judge's clock does not confirm that the first is faster."""
    raw = RaceOutcome(stats.significant(ratio))
    return RaceOutcome.UNDECIDED if raw is RaceOutcome.FASTER and not corroborated else raw


def is_current(state: SessionState, race: RaceRecord) -> bool:
    """Whether it ran on the session's present device and neither kernel was reopened since."""
    pair = (state.kernels.get(race.kernel), state.kernels.get(race.against))
    return race.epoch == state.epoch and all(
        kernel is not None and kernel.again == again for kernel, again in zip(pair, race.again, strict=True)
    )


def latest_race(state: SessionState, one: str, other: str) -> RaceRecord | None:
    """The latest current race of the two, in either order."""
    both = {one, other}
    return next((r for r in reversed(state.races) if {r.kernel, r.against} == both and is_current(state, r)), None)


def next_effort(state: SessionState, one: str, other: str) -> int:
    """The effort of the next race of the two: one step more for each undecided race in a row."""
    last = latest_race(state, one, other)
    if last is None or last.outcome is not RaceOutcome.UNDECIDED:
        return 0
    return min(last.effort + 1, MAX_EFFORT)


def may_race(state: SessionState, kernel: Kernel) -> bool:
    """Whether it has a precise measurement of its own on the present device, corroborated or not."""
    precise = kernel.stage is Stage.MEASURED and queries.is_precise(kernel) and not kernel.same_as
    return precise and queries.speedup(state, kernel) is not None


def challengers(state: SessionState) -> tuple[Kernel, ...]:
    """Kernels that may beat the incumbent and have not raced it, best first: those that rank above it, and where calls back to
    back decide, those that single calls rank closely below it.

    There are none without an incumbent, or while it is being remeasured.
    """
    incumbent = state.kernels.get(state.incumbent)
    if incumbent is None or not queries.may_lead(state, incumbent):
        return ()
    close = _closely_below(state, incumbent) if deciding_regime(state) is Regime.SUSTAINED else ()
    return tuple(k for k in (*_above(state, incumbent), *close) if latest_race(state, k.id, incumbent.id) is None)


def _above(state: SessionState, incumbent: Kernel) -> tuple[Kernel, ...]:
    """Kernels that could lead and rank above the incumbent, best first."""
    bar = _rating(state, incumbent)
    ahead = [
        (rating, k)
        for k in state.kernels.values()
        if k is not incumbent
        and (ratio := queries.speedup(state, k)) is not None
        and (rating := queries.rating(k, ratio)) < bar
        and queries.may_lead(state, k)
    ]
    return tuple(kernel for _, kernel in sorted(ahead, key=lambda rated: rated[0]))


def _rating(state: SessionState, leader: Kernel) -> queries.Rating:
    best = queries.speedup(state, leader)
    assert best is not None, "or it could not lead"
    return queries.rating(leader, best)


def _closely_below(state: SessionState, incumbent: Kernel) -> tuple[Kernel, ...]:
    """The best kernels that could lead and rank below the incumbent by no more than ``CLOSE``."""
    bar, best = _rating(state, incumbent), queries.speedup(state, incumbent)
    assert best is not None, "or it could not lead"
    close = (
        k
        for k in queries.ranked(state)
        if (ratio := queries.speedup(state, k)) is not None
        and ratio.value >= best.value * (1 - CLOSE)
        and queries.rating(k, ratio) > bar
        and queries.may_lead(state, k)
    )
    return tuple(itertools.islice(close, MAX_CLOSE))


def kernel_to_beat(state: SessionState) -> Kernel | None:
    """The kernel that a screened one must approach to be measured precisely: the best one that ranks above the incumbent and
    has not raced it, else the incumbent."""
    incumbent = state.kernels.get(state.incumbent)
    ahead = challengers(state)[:1]
    if incumbent is not None and ahead and ahead[0] in _above(state, incumbent):
        return ahead[0]
    return queries.incumbent(state)


def deciding_regime(state: SessionState) -> Regime:
    """The regime in which races are run and the lead is decided."""
    if state.opened is None or state.preparation is None or state.device is None:
        return Regime.SINGLE
    return regimes.deciding(state.opened.settings.regime, state.preparation.bound, state.device.kind)


def to_sustain(state: SessionState) -> Kernel | None:
    """The incumbent, if it is yet to be measured in the sustained regime.

    ``None`` while a kernel could still replace it: one that is built or measured, or that it has to race. Nor is a kernel
    measured so that takes more than twice the baseline's time, unless that regime was asked for: a suite takes half a minute.
    """
    best = state.kernels.get(state.incumbent)
    if best is None or best.unsustained or state.opened is None or state.device is None:
        return None
    regime = state.opened.settings.regime
    if not regimes.wants_sustained(regime, state.device.kind) or not queries.may_lead(state, best):
        return None
    if pending_races(state) or any(k.stage is not Stage.REPAIR for k in queries.unsettled(state)):
        return None
    assert best.measurement is not None, "or it could not lead"
    single = queries.speedup(state, best)
    slow = regime != Regime.SUSTAINED and single is not None and single.high < SLOW
    return best if best.measurement.sustained is None and not slow else None


def pending_races(state: SessionState) -> tuple[RaceWork, ...]:
    """Races to run: those that the engineer requested, then those of the challengers, best first."""
    pairs = [pair for pair in state.asked if all(_can_race(state, name) for name in pair)]
    pairs += [(kernel.id, state.incumbent) for kernel in challengers(state)]
    return tuple(RaceWork(*pair, next_effort(state, *pair)) for pair in dict.fromkeys(pairs))


def _can_race(state: SessionState, name: str) -> bool:
    return name in state.kernels and may_race(state, state.kernels[name])


def winner(state: SessionState) -> Kernel | None:
    """An eligible kernel that won its latest race against the incumbent since that became the incumbent.

    Earlier races do not count: three kernels can beat each other in a cycle, and the incumbent would change indefinitely.
    """
    for race in reversed(state.races[state.reign_began :]):
        name = {RaceOutcome.FASTER: race.kernel, RaceOutcome.SLOWER: race.against}.get(race.outcome, "")
        if {race.kernel, race.against} != {name, state.incumbent} or name == state.incumbent:
            continue
        kernel = state.kernels.get(name)
        if kernel is not None and latest_race(state, name, state.incumbent) is race and queries.may_lead(state, kernel):
            return kernel
    return None


def winning_race(state: SessionState) -> RaceRecord | None:
    """The race that made the incumbent; ``None`` if it became the incumbent without a race."""
    last = state.races[state.reign_began - 1] if state.reign_began else None
    if last is None or {RaceOutcome.FASTER: last.kernel, RaceOutcome.SLOWER: last.against}.get(last.outcome) != state.incumbent:
        return None
    former = state.reigns[-2] if len(state.reigns) > 1 else ""
    return last if former in (last.kernel, last.against) else None


def race_against_incumbent(state: SessionState, kernel: str) -> RaceRecord | None:
    """The kernel's latest race against the present incumbent."""
    best = queries.incumbent(state)
    return latest_race(state, kernel, best.id) if best is not None and kernel != best.id else None


def undecided_races(state: SessionState) -> tuple[RaceRecord, ...]:
    """Undecided races with the present incumbent whose kernels can still race."""
    best = queries.incumbent(state)
    if best is None:
        return ()
    pairs = ((r.kernel, r.against) for r in state.races if best.id in (r.kernel, r.against))
    rivals = dict.fromkeys(one if other == best.id else other for one, other in pairs)
    latest = (latest_race(state, name, best.id) for name in rivals if _can_race(state, name))
    return tuple(race for race in latest if race is not None and race.outcome is RaceOutcome.UNDECIDED)


def runners_up(state: SessionState, count: int) -> tuple[Kernel, ...]:
    """The best kernels that can race the incumbent."""
    best = queries.incumbent(state)
    return tuple(k for k in queries.ranked(state) if may_race(state, k) and k is not best)[:count]
