"""Successive halving of tunables on each workload of a suite."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain.strategy.halving import CANDIDATES, WorkloadHalving, is_over, trials

OWN = {"LANES": 1}
OTHERS = [{"LANES": lanes} for lanes in range(2, 20)]


def run(
    halvings: list[WorkloadHalving], speed: Mapping[str, Mapping[int, float]], spread: float = 0.01
) -> tuple[list[WorkloadHalving], int]:
    """The halvings at their end, and the trials that they took. A speed of 0 is a failure of the whole trial."""
    count = 0
    while (lap := trials(halvings)) and not is_over(halvings):
        for trial in range(lap):
            count += 1
            found = {one.workload: speed[one.workload][one.candidates[one.place(trial)]["LANES"]] for one in halvings}
            failed = not all(found.values())
            halvings = [one.with_result(trial, None if failed else b.interval(found[one.workload], spread)) for one in halvings]
        halvings = [one.halved() for one in halvings]
    return halvings, count


SPEEDS = st.lists(st.floats(0.5, 2.0), min_size=CANDIDATES, max_size=CANDIDATES)


@given(SPEEDS, SPEEDS)
def test_each_workload_gets_its_own_fastest_values_within_twelve_trials(one: list[float], other: list[float]) -> None:
    speed = {"a": dict(enumerate(one, 1)), "b": dict(enumerate(other, 1))}
    halvings, count = run([WorkloadHalving.start(name, OWN, OTHERS) for name in speed], speed)
    assert count <= 12
    for halving in halvings:
        values, ratio = halving.fastest()
        mine, best = speed[halving.workload][1], max(speed[halving.workload].values())
        if best > mine * 1.05:
            assert speed[halving.workload][values["LANES"]] == best
            assert abs(ratio.value - best / mine) < 1e-9
            assert ratio.low > 1.0
        if best < mine * 1.0:
            assert values == OWN


def test_what_is_slower_everywhere_ends_after_one_lap() -> None:
    speed = {"a": {lanes: 1.0 if lanes == 1 else 0.5 for lanes in range(1, 20)}}
    halvings, count = run([WorkloadHalving.start("a", OWN, OTHERS)], speed)
    assert (count, halvings[0].fastest()[0]) == (CANDIDATES, OWN)


def test_values_that_fail_are_not_chosen_however_fast_they_are_elsewhere() -> None:
    speed = {"a": {1: 1.0, 2: 0.0, 3: 1.5}, "b": {1: 1.0, 2: 9.0, 3: 1.2}}
    halvings, _ = run([WorkloadHalving.start(name, OWN, OTHERS[:2]) for name in speed], speed)
    assert [one.fastest()[0]["LANES"] for one in halvings] == [3, 3]


def test_a_workload_without_other_values_keeps_its_own() -> None:
    speed = {"a": {1: 1.0, 2: 2.0}, "b": {1: 1.0}}
    halvings, count = run([WorkloadHalving.start("a", OWN, OTHERS[:1]), WorkloadHalving.start("b", OWN, [OWN])], speed)
    assert [one.fastest()[0]["LANES"] for one in halvings] == [2, 1]
    assert count == 4


def test_a_gain_within_the_noise_changes_nothing() -> None:
    halvings, _ = run([WorkloadHalving.start("a", OWN, OTHERS[:1])], {"a": {1: 1.0, 2: 1.02}}, spread=0.2)
    assert halvings[0].fastest() == (OWN, b.interval(1.0, 0.0))
