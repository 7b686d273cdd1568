"""Draws one hold-out shape at random, beside the fixed ones: nobody can write a kernel for it. No torch.

Bounds stand in ``problem.toml`` or are derived from the fixed hold-outs of the workload: between the least and the largest
value of each setting in which they differ, in steps of the divisor that all of them and the workload share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from engine.domain.model import Number, Problem, Workload

BY_CHANCE = "-holdout-chance"
"""How the name of such a workload ends."""
_TRIES = 50


def draw_holdout(problem: Problem, workload: Workload, rng: Random) -> Workload | None:
    """A hold-out shape within the bounds that is none of the fixed shapes; ``None`` where there are no bounds.

    Derived bounds keep the product of its settings within the median of the fixed hold-outs', so that verdicts take no longer.
    """
    fixed = problem.holdouts.get(workload.name, ())
    stated = problem.bounds.get(workload.name)
    bounds = stated or _derived(workload, fixed)
    if not bounds:
        return None
    known = [dict(one.settings) for one in (workload, *fixed)]
    sizes = sorted(_size(one.settings, bounds) for one in fixed)
    most = sizes[len(sizes) // 2] if sizes and not stated else math.inf
    drawn: list[dict[str, Number]] = []
    for _ in range(_TRIES):
        settings = {**workload.settings, **{name: _draw(limits, rng) for name, limits in bounds.items()}}
        if settings in known:
            continue
        drawn.append(settings)
        if _size(settings, bounds) <= most:
            break
    if not drawn:
        return None
    return Workload(workload.name + BY_CHANCE, min(drawn, key=lambda settings: _size(settings, bounds)))


def _derived(workload: Workload, fixed: Sequence[Workload]) -> dict[str, tuple[Number, ...]]:
    """Lowest value, highest value and step of every setting in which the fixed hold-outs differ."""
    found: dict[str, tuple[Number, ...]] = {}
    for name, own in workload.settings.items():
        values = [one.settings[name] for one in fixed]
        if len(set(values)) < 2:
            continue
        if all(isinstance(value, int) for value in (own, *values)):
            found[name] = (min(values), max(values), math.gcd(*(int(value) for value in (own, *values))))
        else:
            found[name] = (min(values), max(values))
    return found


def _draw(limits: Sequence[Number], rng: Random) -> Number:
    low, high, *step = limits
    if isinstance(low, int) and isinstance(high, int):
        by = int(step[0]) if step else 1
        return low + by * rng.randrange((high - low) // by + 1)
    return rng.uniform(low, high)


def _size(settings: Mapping[str, Number], bounds: Mapping[str, object]) -> float:
    return math.prod(abs(settings[name]) for name in bounds)
