"""Which few of many candidates to take so that their categories differ. Pure, and the same answer everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def spread(candidates: Sequence[T], count: int, *, category: Callable[[T], str], worth: Callable[[T], float]) -> tuple[T, ...]:
    """At most ``count`` candidates: each the worthiest of those whose category was taken least; ties keep their order."""
    left = list(candidates)
    taken: list[T] = []
    seen: Counter[str] = Counter()
    while left and len(taken) < count:
        best = min(left, key=lambda c: (seen[category(c)], -worth(c)))
        left.remove(best)
        seen[category(best)] += 1
        taken.append(best)
    return tuple(taken)
