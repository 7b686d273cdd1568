"""Who is called when: the order of contestants, and which calls are on perturbed inputs. Random, and pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from engine.trial.judge.perturbations import OWN, SPARSE


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


def first_checks(rng: random.Random, distributions: Sequence[str], again: int) -> list[tuple[str, bool]]:
    """Each distribution once in random order, and at random places so many of them ``again``, which is said of each.

    Those that change a few elements come again before others. One of them comes first, behind calls on the problem's own
    inputs: a kernel that is careful for some calls after it has seen perturbed inputs is not yet careful there.
    """
    repeated = sorted(rng.sample(distributions, len(distributions)), key=lambda name: name not in SPARSE)[:again]
    calls = [*((name, False) for name in distributions), *((name, True) for name in repeated)]
    rng.shuffle(calls)
    sparse = next((place for place, call in enumerate(calls) if call[0] in SPARSE and not call[1]), 0)
    calls[:1], calls[sparse : sparse + 1] = calls[sparse : sparse + 1], calls[:1]
    return calls


class PerturbedCalls:
    """Which calls of a pair are on perturbed inputs, and on which: a few at random places, each another distribution.

    Of three, up to two change a few elements: a kernel that samples its inputs, and is careful for some calls after it has seen
    perturbed ones, fails on these only, and only behind calls on the problem's own.
    """

    def __init__(self, rng: random.Random, distributions: Sequence[str], calls: int, most: int = 3) -> None:
        """``calls``: the least number of calls of the pair; ``most``: perturbed calls."""
        perturbed = [name for name in distributions if name != OWN]
        count = min(most, len(perturbed), calls)
        sparse = [name for name in perturbed if name in SPARSE]
        some = rng.sample(sparse, min(len(sparse), 2 if count > 2 else rng.randrange(2), count))
        some += rng.sample([name for name in perturbed if name not in some], count - len(some))
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
