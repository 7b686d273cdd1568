"""Who is called when: the order of contestants, and which calls are on perturbed inputs. Random, and pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from engine.trial.judge.perturbations import OWN


class CallOrder:
    """The order of calls: random, then reversed, then another random one: A-B-B-A, B-A-A-B, …"""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._backwards: list[str] = []

    def next(self, names: Iterable[str]) -> list[str]:
        """The order of the next sample; ``names`` must be the same every time."""
        if self._backwards:
            order, self._backwards = self._backwards, []
            return order
        order = list(names)
        self._rng.shuffle(order)
        self._backwards = order[::-1]
        return order


class PerturbedCalls:
    """Which calls of a pair are on perturbed inputs, and on which: a few at random places, each another distribution."""

    def __init__(self, rng: random.Random, distributions: Sequence[str], calls: int, most: int = 3) -> None:
        """``calls``: the least number of calls of the pair; ``most``: perturbed calls."""
        perturbed = [name for name in distributions if name != OWN]
        some = rng.sample(perturbed, min(most, len(perturbed), calls))
        self._remaining: list[str | None] = [*some, *[None] * max(0, calls - len(some))]
        rng.shuffle(self._remaining)

    def next(self) -> str | None:
        """The distribution of the next call's inputs; ``None`` for an ordinary sample."""
        return self._remaining.pop() if self._remaining else None

    def keep_at_most(self, count: int) -> None:
        """Leave out perturbed calls to come beyond ``count``."""
        for place, kind in enumerate(self._remaining):
            if kind is not None:
                count -= 1
                self._remaining[place] = kind if count >= 0 else None

    @property
    def remain(self) -> bool:
        """Whether there are perturbed calls to come."""
        return any(kind is not None for kind in self._remaining)
