"""The order of calls: of any two contestants, each is first equally often. The bounds of a race."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import FailureKind
from engine.trial.judge.failures import TrialFailed, blaming
from engine.trial.judge.inputs.perturbations import OWN, SPARSE
from engine.trial.judge.timing import stopping
from engine.trial.judge.timing.call_order import CallOrder, PerturbedCalls, PerturbedCheck, first_checks


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


@pytest.mark.parametrize(
    ("distributions", "perturbed"), [([OWN], 0), ([OWN, "x64"], 1), ([OWN, "x64", "few", "negated", "ties"], 3)]
)
def test_a_few_calls_at_random_places_are_on_perturbed_inputs(distributions: list[str], perturbed: int) -> None:
    places = set()
    for seed in range(20):
        calls = PerturbedCalls(random.Random(seed), distributions, 8)
        kinds = []
        while calls.remain:
            kinds.append(calls.next())
        some = [kind for kind in kinds if kind is not None]
        assert len(set(some)) == len(some) == perturbed
        assert set(some) <= set(distributions) - {OWN}
        assert calls.next() is None or len(kinds) < 8
        places.add(tuple(kind is None for kind in kinds))
    assert len(places) > 5 or not perturbed


def test_a_pair_has_a_call_on_inputs_that_no_sample_shows() -> None:
    names = [OWN, "x64", "negated", "ties", "zeros", "few"]
    kinds = set()
    for seed in range(20):
        calls = PerturbedCalls(random.Random(seed), names, 8)
        found = [calls.next() for _ in range(8)]
        assert "few" in found
        kinds.update(found)
    assert kinds == {*names, None} - {OWN}
    one = [PerturbedCalls(random.Random(seed), names, 1, most=1).next() for seed in range(200)]
    assert 60 < one.count("few") < 140, "of one call: not always"


def test_each_distribution_is_checked_in_random_order_and_some_come_again() -> None:
    names, twice = ["x64", "negated", "ties", "zeros"], ["few", "few x5", "edges", "rising ends"]
    orders = set()
    partly = 0
    for seed in range(60):
        checks = first_checks(random.Random(seed), [*names, *twice])
        assert checks[0] in [PerturbedCheck(name, partly=False) for name in SPARSE]
        assert all(PerturbedCheck(name, some) in checks for name in twice for some in (False, True))
        once = [check for check in checks if not check.optional and check.distribution in names]
        assert sorted(check.distribution for check in once) == sorted(names)
        assert {c.distribution for c in checks if c.optional} == {c.distribution for c in once if c.partly}
        assert not any(check.partly for check in checks if check.optional)
        partly += sum(check.partly for check in once)
        orders.add(tuple(checks))
    assert len(orders) > 50
    assert 0.2 < partly / 60 / 4 < 0.5
    assert first_checks(random.Random(1), []) == []


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
