"""When a measurement has enough process pairs."""

from __future__ import annotations

import pytest

from engine.trial.judge.timing import stopping

CLEAR, WIDE = (0.70, 0.70, 0.70), (0.1, 0.9, 0.5)
EVERY = frozenset({0, 1, 2})


@pytest.mark.parametrize(
    ("logs", "doubted", "owed"),
    [
        ((CLEAR, CLEAR, CLEAR), [], frozenset()),
        ((CLEAR, CLEAR, CLEAR), [1], frozenset({1})),
        ((CLEAR, WIDE, CLEAR), [1], EVERY),
        ((CLEAR, WIDE, CLEAR), [], EVERY),
        ((CLEAR, (*CLEAR, 0.1), CLEAR), [1], frozenset({1})),
    ],
    ids=["settled", "one doubted", "wide and doubted", "wide", "the doubted one has a further pair"],
)  # fmt: skip
def test_a_doubt_calls_for_pairs_on_its_workload_and_a_wide_mean_on_all(
    logs: tuple[tuple[float, ...], ...], doubted: list[int], owed: frozenset[int]
) -> None:
    assert stopping.owed(logs, doubted, "cpu", 0.01) == owed


def test_the_mean_over_workloads_has_the_pairs_that_all_of_them_have() -> None:
    assert stopping.mean_logs([(0.2, 0.4, 9.0), (0.4, 0.8)]) == pytest.approx([0.3, 0.6])


def test_a_single_workload_is_settled_without_a_doubt_and_with_a_narrow_interval() -> None:
    assert stopping.owed([CLEAR], [], "cpu", 0.01) == frozenset()
    assert stopping.owed([CLEAR], [0], "cpu", 0.01) == stopping.owed([WIDE], [], "cpu", 0.01) == {0}


def test_pairs_that_differ_by_thousands_settle_nothing_however_uncertain_the_cost_of_a_call_is() -> None:
    wild = [0.4, 8.2, 0.8]
    assert stopping.owed([wild], [], "cpu", claimable=30.0) == {0}
    assert stopping.owed([WIDE], [], "cpu", claimable=30.0) == frozenset()


@pytest.mark.parametrize(
    ("itself", "others", "settled"),
    [
        ((0.001, 0.0), (), False),
        ((0.001, 0.0, -0.001), (), True),
        ((0.011, 0.012, 0.011), (), False),
        ((0.01, 0.0, -0.01), (), False),
        ((0.001, 0.0, -0.001), ((0.7, 0.7, 0.701),), True),
        ((0.001, 0.0, -0.001), ((0.7, 0.8, 0.7),), False),
    ],
    ids=["too few pairs", "the same", "narrow beside 1", "wide", "another baseline, narrow", "another baseline, wide"],
)  # fmt: skip
def test_a_baseline_that_shows_no_difference_to_itself_needs_no_further_pair(
    itself: tuple[float, ...], others: tuple[tuple[float, ...], ...], settled: bool
) -> None:
    assert stopping.is_same(itself, others, "cuda") == settled


@pytest.mark.parametrize(
    ("owed", "seconds", "ends"),
    [({0}, 5.0, False), ({0}, 75.0, True), (frozenset(), 75.0, False)],
    ids=["quick pairs", "slow pairs", "settled anyway"],
)
def test_a_measurement_of_slow_calls_ends_with_the_fewest_pairs_and_says_so(
    owed: frozenset[int], seconds: float, ends: bool
) -> None:
    note = stopping.cut_short(owed, seconds)
    assert bool(note) == ends
    assert not ends or "75 s" in note


@pytest.mark.parametrize(
    ("logs", "seconds", "ends"),
    [
        ((0.0, 0.05, -0.05), 10.0, False),
        ((0.0, 0.05, -0.05, 0.02), 15.0, False),
        ((0.0, 0.05, -0.05, 0.02), 75.0, True),
        ((0.0, 0.01, -0.01, 0.02), 15.0, True),
        ((0.0, 0.05, -0.05, 0.02, 0.01, 0.0, 0.0), 29.0, False),
        ((0.0, 0.02, -0.02, 0.02, 0.01, 0.0, 0.0), 29.0, True),
    ],
    ids=["few pairs", "wide", "wide and slow", "as the power limit moves the clock", "still wide", "narrowed by more pairs"],
)
def test_a_wide_interval_back_to_back_calls_for_more_pairs(logs: tuple[float, ...], seconds: float, ends: bool) -> None:
    assert stopping.is_enough_sustained([logs], "cuda", seconds) == ends
    assert stopping.is_enough_sustained([logs, logs], "cuda", seconds) == ends
