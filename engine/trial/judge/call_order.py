"""Who is called when: the order of contestants, and which calls are unannounced. Random, and pure."""

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


class UnannouncedCalls:
    """Which calls of a pair are unannounced, and on which inputs.

    One unannounced call uses the problem's own inputs, because time can depend on values; all do if there is no perturbed
    distribution to judge on.
    """

    def __init__(self, rng: random.Random, distributions: Sequence[str], calls: int, most: int = 3) -> None:
        """``calls``: the least number of calls of the pair; ``most``: perturbed calls."""
        perturbed = [name for name in distributions if name != OWN]
        some = [OWN, *rng.sample(perturbed, min(most, len(perturbed), calls))] if perturbed else [OWN] * min(most, calls)
        self._remaining: list[str | None] = [*some, *[None] * max(0, calls - len(some))]
        self._rng = rng
        self._repeats = _REPEATS
        rng.shuffle(self._remaining)
        self.turns = CallOrder(rng)

    def next(self) -> str | None:
        """The distribution of the next call's inputs; ``None`` for an ordinary sample."""
        return self._remaining.pop() if self._remaining else None

    @property
    def remain(self) -> bool:
        """Whether there are unannounced calls to come."""
        return any(kind is not None for kind in self._remaining)

    def repeat_if(self, disturbed: bool) -> None:
        """One more unannounced call on the problem's own inputs at a random place, if the last was disturbed; within limits."""
        if disturbed and self._repeats:
            self._repeats -= 1
            self._remaining.insert(self._rng.randrange(len(self._remaining) + 1), OWN)


_REPEATS = 4
"""Unannounced calls that a pair repeats because they were disturbed."""
