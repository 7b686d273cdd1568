"""The reason of a decision of the strategy: the figures behind it, in short sentences. Pure."""

from __future__ import annotations

import math

from engine.domain.round_plan import Focus
from engine.domain.strategy.belief import Belief
from engine.domain.strategy.evidence import TUNE
from engine.domain.strategy.racing import RaceWorth
from engine.domain.strategy.steps import Ask, LastKernels, NextStep, Pair

_NORMAL95 = 1.96


def times(gain: float) -> str:
    """A logarithm as a factor: ``1.20×``."""
    return f"{math.exp(gain):.2f}×"


def gain_range(gain: float, deviation: float) -> str:
    """An expected gain with its 95% range."""
    low, high = math.exp(gain - _NORMAL95 * deviation), math.exp(gain + _NORMAL95 * deviation)
    return f"{times(gain)} [{low:.2f}, {high:.2f}]"


def of_pair(belief: Belief, pair: Pair, predicted: float | None, elsewhere: str) -> str:
    """Why an idea is tried on its parent. ``elsewhere`` names a kernel that implements it, if it is repeated."""
    expected = f"expected gain {gain_range(pair.expected, pair.deviation)} over {pair.parent}"
    why = _grounds(belief, pair, predicted, elsewhere)
    return f"{expected}{f': {why}' if why else ''}; {pair.success * 100:.0f}% chance to be verified"


def _grounds(belief: Belief, pair: Pair, predicted: float | None, elsewhere: str) -> str:
    """What the expected gain is derived from."""
    record = belief.stems.get(pair.stem)
    known = record is not None and record.measured > 0
    gained = f"gained {times(record.gained / record.measured)}" if record is not None and known else ""
    measured = record.measured if record is not None else 0
    on_average = " on average" if measured > 1 else ""
    if pair.stem == TUNE:
        return f"{_counted(measured, 'tuned kernel')} {gained}{on_average}" if known else "no kernel was tuned yet"
    if known and not pair.idea:
        return f"it is new to this lineage and {gained} in {elsewhere or 'another one'}"
    if known:
        return f"the same idea {gained}{on_average} in {_counted(measured, 'kernel')}"
    if predicted is None:
        return ""
    so_far = f"corrected by {_counted(len(belief.gains), 'measured idea')}" if belief.gains else "no idea was measured yet"
    return f"its author predicts {predicted:.2f}×, {so_far}"


def of_parents(decision: NextStep, ask: Ask | None) -> str:
    """Why a round builds on its parents."""
    belief, best = decision.belief, decision.pair
    if ask is not None:
        names = ask.parents
        why = ("No other idea is at hand" if best is None else
               f"A new idea promises more than those at hand, of which the best is expected to gain {times(best.expected)} "
               f"over {best.parent}")  # fmt: skip
    elif best is not None:
        names, why = (best.parent,), "A known idea is tried on it"
    else:
        names, why = decision.ranked[:1], "No idea is at hand"
    if decision.last is not None and (ask is not None or best is not None):
        why = _of_last(decision.last, ask, best)
    if decision.from_latest:
        why = _of_latest(belief)
    parents = [_standing(belief, name) for name in names] or ["no kernel can be a parent"]
    return ". ".join((*parents, why, *_restart(decision.focus)))


def _of_latest(belief: Belief) -> str:
    """Why a round goes on from the latest kernel."""
    tried = f"{_counted(belief.stalled, 'idea')} did not improve the best, and what an idea gains depends on the kernel"
    return f"{tried}, so its author's first idea for the latest kernel is tried"


def _of_last(last: LastKernels, ask: Ask | None, best: Pair | None) -> str:
    """Why a round near the session's end is as it is: its two alternatives."""
    left = f"{_counted(last.left, 'kernel')} left before the session ends, so what counts is what the next one adds to the best"
    known, new = (f"expected to add {math.exp(gain):.3f}×" for gain in (last.known, last.new))
    if ask is not None:
        return f"{left}: a new idea is {new}, {f'the best at hand {known}' if best is not None else 'and none is at hand'}"
    return f"{left}: the best idea at hand is {known}" + (f", a new one {new}" if last.new else "")


def of_race(race: RaceWorth, next_kernel: float | None) -> str:
    """Why two kernels race. ``next_kernel``: what the next kernel is expected to add; ``None`` where none follows."""
    instead = (
        "no kernel follows" if next_kernel is None else f"the next kernel, at twice the cost, {math.exp(next_kernel):.3f}×"
    )
    return (
        f"expected {gain_range(race.ahead, race.deviation)} over {race.against}, the incumbent. "
        f"A race is expected to add {math.exp(race.improvement):.3f}× to the best; {instead}"
    )


def _standing(belief: Belief, name: str) -> str:
    """How fast a parent is, what its own idea gained, and how much was built on it."""
    record, above = belief.parents[name], belief.parents.get(belief.evidence.kernels[name].parent or "")
    step = f" and {times(record.value - above.value)} over its parent" if above is not None else ""
    built = _counted(record.kernels, "kernel") if record.kernels else "no kernel"
    return f"{name} is {times(record.value)} over the baseline{step}, with {built} built on it"


def _restart(focus: Focus | None) -> tuple[str, ...]:
    """The restart that the round belongs to."""
    if focus is None:
        return ()
    left = _counted(max(1, round(focus.left)), "idea")
    return (
        f"The search restarted at {focus.root}, because one idea made up most of the latest trials: {left} left to try there",
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
