"""Confidence intervals: quantiles, containment, coverage under noise, drift and pairing."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Interval
from engine.domain.stats import (
    block_interval,
    is_measurable,
    median_interval,
    pair_log_ratio,
    ratio_interval,
    significant,
    t95,
    widened,
)

times = st.floats(1e-3, 1e9)
blocks = st.lists(st.lists(times, min_size=1, max_size=5), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (20, 2.0860), (30, 2.0423), (40, 2.0211), (60, 2.0003),
     (120, 1.9799), (1000, 1.9623), (10**6, 1.9600)],
)  # fmt: skip
def test_quantiles_are_those_of_students_t(degrees: int, quantile: float) -> None:
    assert t95(degrees) == pytest.approx(quantile, abs=2e-3)


def test_quantiles_fall_and_need_two_values() -> None:
    values = [t95(n) for n in range(1, 500)]
    assert values == sorted(values, reverse=True)
    assert values[-1] > 1.96
    with pytest.raises(ValueError, match="at least two values"):
        t95(0)


@given(st.lists(times, min_size=1))
def test_a_median_lies_in_its_interval_of_samples(samples: list[float]) -> None:
    found = median_interval(samples)
    assert found.value == median(samples)
    assert found.low <= found.value <= found.high
    assert {found.low, found.high} <= set(samples)


@pytest.mark.parametrize("n", [6, 9, 10, 25, 40, 41, 200])
def test_the_median_interval_covers_the_true_median_95_percent_of_the_time(n: int) -> None:
    dice = random.Random(n)
    held = 0
    for _ in range(1000):
        found = median_interval([dice.lognormvariate(0.0, 0.3) for _ in range(n)])
        held += found.low <= 1.0 <= found.high
    assert held >= 935


@pytest.mark.parametrize("n", range(6, 201))
def test_the_median_interval_is_symmetric_and_covers_95_percent_exactly(n: int) -> None:
    found = median_interval(range(n))
    assert found.low + found.high == n - 1
    outside = sum(math.comb(n, k) for k in range(int(found.low) + 1)) / 2**n
    assert 1 - 2 * outside >= 0.95


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30), st.floats(0, 1))
def test_a_ratio_is_inside_its_interval_which_is_never_narrower_than_the_floor(logs: list[float], floor: float) -> None:
    found = ratio_interval(logs, floor)
    assert 0.0 <= found.low <= found.value <= found.high
    if len(logs) > 1:
        assert math.log(found.high / found.value) >= floor - 1e-9
        assert math.log(found.value / found.low) >= floor - 1e-9


@pytest.mark.parametrize("logs", [[700.0, -700.0], [800.0, 801.0], [-800.0, -801.0], [710.0]])
def test_absurd_times_give_an_absurd_interval_and_no_error(logs: list[float]) -> None:
    found = ratio_interval(logs)
    assert 0.0 <= found.low <= found.value <= found.high


def test_one_pair_shows_no_difference() -> None:
    assert ratio_interval([0.7]) == Interval(math.exp(0.7), 0.0, math.inf)
    assert significant(ratio_interval([5.0])) == "undecided"


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=10))
def test_swapping_baseline_and_kernel_inverts_the_interval(logs: list[float]) -> None:
    there, back = ratio_interval(logs), ratio_interval([-x for x in logs])
    assert back.value == pytest.approx(1 / there.value)
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [3, 4, 6, 10])
def test_noise_gives_no_difference(pairs: int) -> None:
    """A/A: a thousand measurements of a program against itself, with variation between processes."""
    held = 0
    for seed in range(1000):
        dice = random.Random(seed)
        logs = [pair_log_ratio(_process(dice), _process(dice)) for _ in range(pairs)]
        found = ratio_interval(logs)
        held += found.low <= 1.0 <= found.high
    assert 930 <= held <= 970


def _process(dice: random.Random, true_us: float = 100.0) -> list[list[float]]:
    """Blocks of skewed samples of one process, with an offset per process."""
    luck = dice.gauss(0.0, 0.02)
    return [[true_us * math.exp(luck) * dice.lognormvariate(0.0, 0.05) for _ in range(3)] for _ in range(3)]


def test_a_real_difference_is_found_and_named() -> None:
    dice = random.Random(1)
    logs = [pair_log_ratio(_process(dice, 100.0), _process(dice, 80.0)) for _ in range(8)]
    found = ratio_interval(logs)
    assert found.low < 1.25 < found.high
    assert significant(found) == "faster"
    assert significant(ratio_interval([-x for x in logs])) == "slower"


def test_drift_slower_than_a_block_cancels() -> None:
    """The device slows down to half its speed; baseline and kernel alternate block by block."""
    baseline = [[100.0 * (1 + n / 10)] * 5 for n in range(10)]
    kernel = [[50.0 * (1 + n / 10)] * 5 for n in range(10)]
    assert math.exp(pair_log_ratio(baseline, kernel)) == pytest.approx(2.0)
    assert block_interval(baseline, kernel).value == pytest.approx(2.0)


def test_one_disturbed_block_does_not_change_a_pair() -> None:
    baseline, kernel = [[100.0] * 3] * 5, [[50.0] * 3] * 4 + [[5000.0] * 3]
    assert math.exp(pair_log_ratio(baseline, kernel)) == pytest.approx(2.0)


def test_empty_blocks_are_left_out_and_nothing_at_all_is_an_error() -> None:
    assert pair_log_ratio([[], [2.0]], [[1.0], [1.0]]) == pytest.approx(math.log(2.0))
    with pytest.raises(ValueError, match="no block pairs"):
        pair_log_ratio([[]], [[1.0]])
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="zip"):
        pair_log_ratio([[1.0]], [[1.0], [2.0]])


@pytest.mark.slow
@given(st.data())
def test_the_interval_of_a_screen_contains_its_value(data: st.DataObject) -> None:
    baseline = data.draw(blocks)
    kernel = data.draw(st.lists(st.lists(times, min_size=1, max_size=5), min_size=len(baseline), max_size=len(baseline)))
    found = block_interval(baseline, kernel)
    assert 0.0 <= found.low <= found.value <= found.high


@given(times, st.floats(1.0, 10.0))
def test_widening_keeps_the_value(value: float, factor: float) -> None:
    wide = widened(Interval(value, value, value), factor)
    assert (wide.value, wide.low, wide.high) == (value, value / factor, value * factor)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(1.01, 2.0, "faster"), (0.5, 0.99, "slower"), (0.9, 1.1, "undecided"), (1.0, 1.2, "undecided"), (0.8, 1.0, "undecided"),
     (0.0, math.inf, "undecided")],
)  # fmt: skip
def test_a_difference_needs_an_interval_without_1(low: float, high: float, word: str) -> None:
    assert significant(Interval((low + high) / 2, low, high)) == word


@pytest.mark.parametrize(
    ("low", "high", "measurable"),
    [(0.9, 1.1, True), (0.4, 4.0, True), (0.39, 4.0, False), (0.0803, 197.0, False), (0.0, math.inf, False), (0.0, 2.0, False),
     (1.01, 20.0, True), (0.001, 0.9, True)],
)  # fmt: skip
def test_an_interval_that_allows_both_ten_times_more_and_less_says_nothing(low: float, high: float, measurable: bool) -> None:
    assert is_measurable(Interval((low + high) / 2, low, high)) is measurable
