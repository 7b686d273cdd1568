"""Who is called when: the order of contestants, and which calls are on perturbed inputs. Random, and pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.trial.judge.inputs.perturbations import AT_ENDS, OPPOSED, OWN, SPARSE


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


@dataclass(frozen=True, slots=True)
class PerturbedCheck:
    """A first call on perturbed inputs."""

    distribution: str
    partly: bool
    """Whether some of several inputs stay as the problem draws them."""
    optional: bool = False
    """Whether it may be left out: another check has the same distribution."""


def first_checks(rng: random.Random, distributions: Sequence[str]) -> list[PerturbedCheck]:
    """Each distribution once in random order, a third of them on some of the inputs, and these again on all.

    Those that change a few elements, or the ends of dimensions, are checked on all and on some. One of the former comes
    first, behind calls on the problem's own inputs: a kernel that is careful for some calls after it has seen perturbed inputs
    is not yet careful there. Inputs that are shifted against each other come twice: which of them move up is drawn.
    """
    twice = [name for name in distributions if name in (*SPARSE, *AT_ENDS)]
    checks = [PerturbedCheck(name, partly) for name in twice for partly in (False, True)]
    others = [PerturbedCheck(name, rng.random() < _PARTLY) for name in distributions if name not in twice]
    again = [one.distribution for one in others if one.partly or one.distribution == OPPOSED]
    checks += [*others, *(PerturbedCheck(name, partly=False, optional=True) for name in again)]
    rng.shuffle(checks)
    first = [one for one in checks if one.distribution in SPARSE and not one.partly][:1]
    return [*first, *(one for one in checks if one not in first)]


_PARTLY = 1 / 3


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
