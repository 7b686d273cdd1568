"""How a value and its interval are written: decimals that belong together, and no end that reads as another number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.figure_text import Figures, digit_figures, exact, ratio_figures
from engine.domain.figures import Interval


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    """A value from 0.001 to 100 with ends at most a factor of ten apart."""
    value = draw(st.floats(min_value=1e-3, max_value=100.0))
    below, above = draw(st.floats(min_value=1.0, max_value=3.1)), draw(st.floats(min_value=1.0, max_value=3.1))
    return Interval(value, value / below, value * above)


def _decimals(figure: str) -> int:
    return len(figure.partition(".")[2])


def _check(figures: Figures, interval: Interval) -> None:
    value, low, high = figures
    assert len({_decimals(figure) for figure in figures}) == 1, "the figures of one interval share their decimals"
    assert float(low) <= float(value) <= float(high)
    for figure, right in zip(figures, (interval.value, interval.low, interval.high), strict=True):
        assert float(figure) == pytest.approx(right, rel=0.06), "two significant digits at least"
    assert len(high) <= 7


@given(intervals())
def test_the_figures_of_a_speedup_belong_together(interval: Interval) -> None:
    _check(ratio_figures(interval), interval)
    assert len(set(ratio_figures(interval))) > 1 or interval.high - interval.low < max(0.01, 0.02 * interval.value)


@given(
    st.floats(min_value=1e-3, max_value=100.0), st.floats(min_value=1.0, max_value=9.9), st.floats(min_value=1.0, max_value=9.9)
)
def test_the_ends_of_a_wide_interval_have_the_same_decimals_and_do_not_read_as_zero(
    value: float, below: float, above: float
) -> None:
    figures = ratio_figures(Interval(value, value / below, value * above))
    assert len({_decimals(figure) for figure in figures}) == 1
    assert float(figures[1]) > 0


@given(intervals())
def test_the_figures_of_a_time_belong_together(interval: Interval) -> None:
    _check(digit_figures(interval), interval)


@pytest.mark.parametrize(
    ("interval", "written"),
    [
        (Interval(0.14, 0.087, 0.22), ("0.140", "0.087", "0.220")),
        (Interval(0.0921, 0.0816, 0.104), ("0.0921", "0.0816", "0.1040")),
        (Interval(0.0012, 0.001, 0.0015), ("0.00120", "0.00100", "0.00150")),
        (Interval(0.2, 0.1985, 0.203), ("0.200", "0.199", "0.203")),
        (Interval(0.0875, 0.0272, 0.28), ("0.0875", "0.0272", "0.2800")),
        (Interval(0.93, 0.86, 1.01), ("0.93", "0.86", "1.01")),
        (Interval(1.0043, 1.0004, 1.0074), ("1.004", "1.000", "1.007")),
        (Interval(14.016, 14.012, 14.021), ("14.02", "14.01", "14.02")),
        (Interval(99.4, 97.9, 101.2), ("99.40", "97.90", "101.20")),
        (Interval(101.2, 97.9, 104.0), ("101", "98", "104")),
        (Interval(3.97, 0.0803, 197.0), ("3.97", "0.0803", "197")),
    ],
)
def test_a_speedup_has_the_decimals_of_its_value(interval: Interval, written: Figures) -> None:
    assert ratio_figures(interval) == written


@pytest.mark.parametrize(
    ("number", "text"),
    [(1_048_577, "1048577"), (10**400, "1" + "0" * 400), (0.95, "0.95"), (1e-5, "1e-05"), (2.0, "2"), (1e6, "1000000")],
)
def test_a_chosen_number_has_all_its_digits(number: float, text: str) -> None:
    assert exact(number) == text
