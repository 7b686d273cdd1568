"""The order of calls: of any two contestants, each is first equally often. The bounds of a race."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import FailureKind
from engine.trial.judge import stopping
from engine.trial.judge.call_order import CallOrder, UnannouncedCalls
from engine.trial.judge.failures import TrialFailed, blaming
from engine.trial.judge.perturbations import OWN


@given(st.integers(2, 6), st.integers(1, 20), st.integers())
def test_of_any_two_contestants_each_is_first_in_half_of_the_samples(contestants: int, twos: int, seed: int) -> None:
    names = [f"n{number}" for number in range(contestants)]
    turns = CallOrder(random.Random(seed))
    orders = [turns.next(names) for _ in range(2 * twos)]
    assert all(sorted(order) == names for order in orders)
    for one, other in combinations(names, 2):
        assert sum(order.index(one) < order.index(other) for order in orders) == twos
    for there, back in zip(orders[::2], orders[1::2], strict=True):
        assert there == back[::-1], "A-B, then B-A: neither drift nor after-effects favour a contestant"


def test_the_first_contestant_is_random() -> None:
    turns = CallOrder(random.Random(1))
    firsts = [turns.next(["a", "b"])[0] for _ in range(200)][::2]
    assert {"a", "b"} == set(firsts)
    assert 30 < firsts.count("a") < 70


@pytest.mark.parametrize("distributions", [[OWN], [OWN, "x64", "few", "negated", "ties"]])
def test_disturbed_unannounced_calls_are_repeated_within_limits(distributions: list[str]) -> None:
    def taken(disturbed: bool, seed: int) -> list[str | None]:
        calls, kinds = UnannouncedCalls(random.Random(seed), distributions, 8), []
        while calls.remain:
            kinds.append(calls.next())
            calls.repeat_if(disturbed and kinds[-1] == OWN)
        return kinds

    for seed in range(20):
        calm, noisy = ([kind for kind in taken(disturbed, seed) if kind] for disturbed in (False, True))
        assert 1 <= calm.count(OWN) < noisy.count(OWN) <= calm.count(OWN) + 4
        assert sorted(set(calm)) == sorted(set(noisy))
        assert [kind for kind in calm if kind != OWN] == [kind for kind in noisy if kind != OWN]


def test_race_bounds_double_with_each_step_of_effort() -> None:
    assert stopping.race_bounds(None) is None
    least, most = stopping.RACE_PAIRS
    assert 3 <= least <= most <= stopping.PAIRS["cpu"][1]
    assert [stopping.race_bounds(effort) for effort in (0, 1, 2)] == [
        (least, most),
        (2 * least, 2 * most),
        (4 * least, 4 * most),
    ]


def test_the_first_contestant_blamed_is_kept() -> None:
    with pytest.raises(TrialFailed) as caught, blaming("outer"), blaming("inner"):
        raise TrialFailed(FailureKind.CRASHED, "it fell over")
    assert caught.value.at_fault == "inner"
