"""Words the figures behind a decision of the strategy, one sentence each. Pure."""

from __future__ import annotations

import math

from engine.domain.plan import Focus
from engine.domain.strategy.belief import Belief
from engine.domain.strategy.choice import Ask, NextStep, Pair
from engine.domain.strategy.evidence import TUNE
from engine.domain.strategy.racing import RaceWorth

_NORMAL95 = 1.96


def times(gain: float) -> str:
    """A logarithm as a factor: ``1.20×``."""
    return f"{math.exp(gain):.2f}×"


def gain_range(gain: float, deviation: float) -> str:
    """An expected gain with its 95 % range."""
    low, high = math.exp(gain - _NORMAL95 * deviation), math.exp(gain + _NORMAL95 * deviation)
    return f"{times(gain)} [{low:.2f}, {high:.2f}]"


def of_pair(belief: Belief, pair: Pair, predicted: float | None, elsewhere: str) -> str:
    """Why an idea is tried on its parent. ``elsewhere`` names a kernel that implements it, if it is repeated."""
    facts = [f"expected gain {gain_range(pair.expected, pair.deviation)} over {pair.parent}"]
    record = belief.stems.get(pair.stem)
    if pair.stem == TUNE:
        measured = record.measured if record is not None else 0
        facts.append(f"{_counted(measured, 'tuned kernel')} gained {times(record.gain)} here" if record and measured
                     else "no kernel was tuned here yet")  # fmt: skip
    elif not pair.idea and record is not None:
        facts.append(f"the idea gained {times(record.gain)} in {elsewhere or 'another lineage'} and is new to this one")
    elif record is not None and record.measured:
        facts.append(f"measured {record.measured} times elsewhere: {times(record.gain)}")
    elif predicted is not None and belief.gains:
        facts.append(f"its author predicts {predicted:.2f}×; {_counted(len(belief.gains), 'measured idea')} calibrate that")
    facts.append(f"verified with probability {pair.success * 100:.0f} %")
    return "; ".join(facts)


def of_parents(decision: NextStep, ask: Ask | None) -> str:
    """Why a round builds on its parents."""
    belief = decision.belief
    if ask is None:
        pair = decision.pair
        name = pair.parent if pair else next(iter(decision.ranked), "")
        known = f"{name}: {_drawn(belief, name)}" if name else "no kernel can be a parent"
        known += "; an idea at hand is next" if pair else "; no idea is at hand"
        return _with_focus(known, decision.focus)
    parts = [f"{name}: {_drawn(belief, name)}" for name in ask.parents]
    best = decision.pair
    why = "no other idea is at hand" if best is None else f"the best idea at hand is expected to gain {times(best.expected)}"
    return _with_focus(f"{'; '.join(parts)}; {why}", decision.focus)


def of_race(race: RaceWorth) -> str:
    """Why two kernels race."""
    return (
        f"measured {gain_range(race.ahead, race.deviation)} over {race.against}, the incumbent; a race is expected to gain "
        f"{math.exp(race.improvement):.3f}×, more than the next kernel"
    )


def _drawn(belief: Belief, name: str) -> str:
    """What is known about a parent."""
    record = belief.parents[name]
    words = f"{times(record.value)} over the baseline, {_counted(record.kernels, 'kernel')} built on it"
    return f"{words}, its lineage gains {times(record.recent)} a step lately" if abs(record.recent) > 0.01 else words


def _with_focus(words: str, focus: Focus | None) -> str:
    if focus is None:
        return words
    left = max(1, round(focus.left))
    return f"{words}; restarted from {focus.root}, since the best promised less per kernel, {left} ideas left"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
