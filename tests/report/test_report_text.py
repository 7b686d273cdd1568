"""The format of figures and tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Interval
from engine.report.text import lines
from engine.report.text.lines import Span, scaled


@pytest.mark.parametrize(
    ("us", "written"),
    [
        (0.5, "0.500 µs"),
        (812.4, "812 µs"),
        (5430.0, "5.43 ms"),
        (54321.0, "54.3 ms"),
        (1.2e6, "1.20 s"),
        (3.6e9, "3600 s"),
        (0, "0 µs"),
    ],
)
def test_durations_have_three_digits_and_a_suitable_unit(us: float, written: str) -> None:
    assert lines.duration(us) == written


def test_both_ends_of_an_interval_have_the_unit_and_the_decimals_of_its_value() -> None:
    assert lines.duration_interval(Interval(1010.0, 990.0, 1040.0)) == "1.01 ms [0.99, 1.04]"


@pytest.mark.parametrize(
    ("interval", "written"),
    [
        (Interval(1.523, 1.491, 1.552), "1.52× [1.49, 1.55]"),
        (Interval(1.0035, 1.0021, 1.0049), "1.004× [1.002, 1.005]"),
        (Interval(1.0, 1.0, 1.0), "1.00× [1.00, 1.00]"),
        (Interval(0.0123, 0.0119, 0.0131), "0.0123× [0.0119, 0.0131]"),
        (Interval(123.4, 120.1, 128.0), "123× [120, 128]"),
        (Interval(3.97, 0.0803, 197.0), "not measurable [0.0803, 197]"),
        (Interval(1.0, 0.4, 4.0), "1.00× [0.40, 4.00]"),
        (Interval(40.0, 8.0, 200.0), "40.00× [8.00, 200.00]"),
        (Interval(2.0, 0.0, math.inf), "not measurable [0, ∞]"),
        (Interval(16.94, 1e-107, 2.3e108), "not measurable [0, ∞]"),
    ],
)
def test_a_speedup_has_the_digits_of_its_interval_or_is_not_measurable(interval: Interval, written: str) -> None:
    assert lines.times(interval) == written


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_durations_read_back_to_three_digits(us: float) -> None:
    number, unit = lines.duration(us).split()
    scale = {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    assert float(number) * scale == pytest.approx(us, rel=0.006)


@given(st.text(max_size=80), st.integers(min_value=1, max_value=60))
def test_shortened_cuts_only_what_is_too_long(words: str, width: int) -> None:
    short = lines.shortened(words, width)
    assert len(short) <= width
    assert short == words or len(words) > width


def test_columns_align_and_a_last_cell_does_not_widen_its_column() -> None:
    rows = [[Span("a"), Span("bb"), Span("c")], [Span("aaa"), Span("a long last cell")], [Span("a"), Span(""), Span("d")]]
    assert [lines.plain(row) for row in lines.table(rows)] == ["a    bb  c", "aaa  a long last cell", "a        d"]


def test_an_empty_column_has_no_width() -> None:
    assert lines.plain(lines.table([[Span("a"), Span(""), Span("c")]])[0]) == "a  c"


@pytest.mark.parametrize(
    ("value", "written"),
    [(49.887e12, "49.9 T"), (7.8e14, "780 T"), (1e14, "100 T"), (1e12, "1 T"), (9.996e11, "1000 G"), (950.0, "950 ")],
)
def test_large_figures_have_an_si_prefix(value: float, written: str) -> None:
    assert scaled(value) == written


CELLS = st.text(alphabet="ab ", max_size=60).map(Span)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=6), min_size=1, max_size=6), st.integers(1, 200))
def test_a_fitted_table_is_as_wide_as_the_terminal_at_most(rows: list[list[Span]], width: int) -> None:
    found = [lines.plain(spans) for spans in lines.fitted(rows, width, wide=1, least=10, spare=(4, 2, 5))]
    assert len(found) == len(rows)
    assert max(map(len, found)) <= width
    whole = [lines.plain(spans) for spans in lines.table(rows)]
    assert max(map(len, whole)) > width or found == whole
    assert [lines.plain(spans) for spans in lines.fitted(rows, 0, wide=1, least=10, spare=(4, 2, 5))] == whole


def test_columns_are_left_out_in_the_order_given_and_the_wide_one_is_cut() -> None:
    rows = [[Span(text) for text in ("k1", "a title of some length", "BLOCK=1", "1.50×", "a remark")]]
    fit = {width: lines.plain(lines.fitted(rows, width, wide=1, least=10, spare=(2, 4))[0]) for width in (60, 42, 33, 24, 18)}
    assert fit == {
        60: "k1  a title of some length  BLOCK=1  1.50×  a remark",
        42: "k1  a title of…  BLOCK=1  1.50×  a remark",
        33: "k1  a title of…  1.50×  a remark",
        24: "k1  a title of s…  1.50×",
        18: "k1  a titl…  1.50×",
    }


@pytest.mark.parametrize(("width", "written"), [(2, "a…"), (4, "abc…"), (5, "abcd…"), (6, "abcdef"), (9, "abcdef")])
def test_a_line_is_cut_to_its_width_at_a_span_too(width: int, written: str) -> None:
    assert lines.plain(lines.cut((Span("ab"), Span("cd"), Span("ef")), width)) == written
