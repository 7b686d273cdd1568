"""Formatting of figures, bars, intervals and histograms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Interval
from tui.viewmodel import fmt
from tui.viewmodel.cells import Ink, Line

POSITIVE = st.floats(0.001, 1000)


@pytest.mark.parametrize(
    ("interval", "output"),
    [
        (Interval(1.5, 1.4, 1.6), "▲ 1.50×"),
        (Interval(0.5, 0.4, 0.6), "▼ 0.50×"),
        (Interval(1.01, 0.99, 1.03), "≈ 1.01×"),
        (Interval(1.2, 1.0, 1.4), "≈ 1.20×"),
        (Interval(123.4, 120, 126), "▲ 123×"),
        (Interval(3.97, 0.0803, 197.0), "≈ not measurable"),
        (Interval(40.0, 8.0, 200.0), "▲ 40.00×"),
    ],
)
def test_a_speedup_is_claimed_only_if_the_whole_interval_supports_it(interval: Interval, output: str) -> None:
    assert fmt.speedup(interval).text == output


def drawn(value: float, low: float, high: float, top: float, room: int) -> str:
    return "".join(cell.text for cell in fmt.bar(Interval(value, low, high), top, room))


def test_a_bar_is_solid_to_the_low_end_and_lighter_to_the_high_end() -> None:
    cells = fmt.bar(Interval(1.5, 1.0, 2.0), 4.0, 8)
    assert [(c.text, c.ink) for c in cells if c.text.strip()] == [("██", Ink.UNDECIDED_BAR), ("██", Ink.UNDECIDED_BAND)]
    assert drawn(0.5, 0.5, 0.5, 4.0, 8) == "█ ▏     "
    assert drawn(0.25, 0.25, 0.25, 4.0, 8) == "▌ ▏     "


@given(POSITIVE, st.floats(0, 0.5), POSITIVE, st.integers(1, 60))
def test_a_bar_takes_exactly_its_room(value: float, spread: float, top: float, room: int) -> None:
    assert len(drawn(value, value * (1 - spread), value * (1 + spread), top, room)) == room


@given(st.floats(-1, 3), st.integers(1, 40))
def test_a_meter_takes_exactly_its_room(share: float, room: int) -> None:
    assert Line(fmt.meter(share, room)).width == room


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(5, 2, 8), "  ├──●──┤  "),
        (Interval(5, 5, 5), "    ├●┤    "),
        (Interval(5, -4, 14), "◂────●────▸"),
        (Interval(0, 0, 1), "●┤         "),
        (Interval(5, 0, math.inf), "├────●────▸"),
        (Interval(math.inf, math.inf, math.inf), "         ├●"),
    ],
)
def test_an_interval_is_drawn_on_its_scale(interval: Interval, expected: str) -> None:
    (cell,) = fmt.interval_line(interval, 0, 10, 11, Ink.PLAIN)
    assert cell.text == expected


@given(POSITIVE, st.floats(0, 2), st.floats(0, 5), st.floats(5, 500), st.integers(1, 60))
def test_an_interval_always_shows_its_value(value: float, spread: float, low: float, high: float, room: int) -> None:
    (cell,) = fmt.interval_line(Interval(value, value - spread, value + spread), low, high, room, Ink.PLAIN)
    assert "●" in cell.text
    assert len(cell.text) == room


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=200), st.integers(4, 60))
def test_a_histogram_has_its_room_and_a_full_column(values: list[float], room: int) -> None:
    rows, low, high = fmt.histogram(values, room)
    assert [len(row) for row in rows] == [room] * 4
    assert "█" in rows[0]
    assert min(values) == low <= high <= max(values)


def test_an_outlier_does_not_squeeze_a_histogram_into_one_column() -> None:
    rows, _, high = fmt.histogram([100 + n % 10 for n in range(200)] + [5000], 20)
    assert high < 200
    assert sum(char != " " for char in rows[-1]) >= 10


@pytest.mark.parametrize(
    ("seconds", "output"), [(0.84, "0.8 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (-3, "0.0 s")]
)
def test_elapsed_time(seconds: float, output: str) -> None:
    assert fmt.elapsed(seconds) == output


@pytest.mark.parametrize(
    ("size", "output"), [(0, "0 B"), (16, "16 B"), (49152, "48 KiB"), (1536, "1.5 KiB"), (3 << 20, "3 MiB")]
)
def test_sizes(size: int, output: str) -> None:
    assert fmt.binary_bytes(size) == output


def test_change_of_a_count() -> None:
    assert fmt.change(64, 48).text == "▼ 16"
    assert fmt.change(64, 48).ink is Ink.GOOD
    assert fmt.change(48, 64).ink is Ink.WARN
    assert fmt.change(48, 64, fewer_is_better=False).ink is Ink.GOOD
    assert fmt.change(5, 5).text == "="


def test_sparkline_runs_from_the_smallest_to_the_largest() -> None:
    assert fmt.sparkline([1, 2, 8]) == "▁▂█"
    assert fmt.sparkline([3, 3]) == "▄▄"
    assert fmt.sparkline([]) == ""
