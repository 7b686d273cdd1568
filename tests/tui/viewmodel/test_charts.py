"""Charts fit their room, keep the baseline at 1×, name every ceiling, and cover nothing with a label."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support.hosts import STATE

from engine.domain import queries
from engine.domain.figures import Interval
from engine.report.facts import charts as facts
from engine.report.facts.ticks import log_ticks, round_ticks
from tui.viewmodel import charts, plot
from tui.viewmodel.cells import Ink
from tui.viewmodel.charts import ChartPage
from tui.viewmodel.plot import WHOLE, Canvas, Plane, PlotAxis, PlotWindow

SIZES = [(38, 8), (78, 12), (52, 14), (118, 30), (198, 50)]
MAKERS = (charts.speedup_chart, charts.roofline_chart)


def _moved(steps: int, moves: list[tuple[int, int]]) -> PlotWindow:
    window = WHOLE.zoomed(steps)
    for right, up in moves:
        window = window.moved(right, up)
    return window


windows = st.builds(_moved, st.integers(-2, 15), st.lists(st.tuples(*[st.integers(-9, 9)] * 2)))


def text(chart: ChartPage) -> str:
    return "\n".join(line.text for line in chart.lines)


@given(st.sampled_from(MAKERS), windows, st.integers(24, 220), st.integers(5, 70))
def test_a_chart_fills_exactly_its_room(make: object, window: PlotWindow, room: int, height: int) -> None:
    assert callable(make)
    chart = make(STATE, "k12", window, room, height)
    assert len(chart.lines) == height
    assert {line.width for line in chart.lines[1:]} == {room}


@given(windows)
def test_a_window_stays_within_the_plot(window: PlotWindow) -> None:
    (left, right), (low, high) = window.spans((0.0, 10.0), (-1.0, 1.0))
    assert -1e-9 <= left < right <= 10 + 1e-9
    assert -1 - 1e-9 <= low < high <= 1 + 1e-9


@pytest.mark.parametrize("size", SIZES)
def test_the_baseline_is_at_its_tick(size: tuple[int, int]) -> None:
    rows = [line for line in text(charts.speedup_chart(STATE, "", WHOLE, *size)).splitlines() if "┄" in line]
    assert len(rows) == 1
    assert rows[0].lstrip().startswith("1×┤")


@pytest.mark.parametrize("size", [*SIZES, (76, 7), (38, 6), (38, 5)])
def test_a_kernel_that_is_half_as_fast_is_below_the_baseline(size: tuple[int, int]) -> None:
    speedup = queries.speedup(STATE, STATE.kernels["k1"])
    assert speedup is not None
    assert 0.4 < speedup.value < 0.5
    chart = text(charts.speedup_chart(STATE, "k1", WHOLE, *size)).splitlines()
    (baseline,) = (place for place, row in enumerate(chart) if "┄" in row)
    (k1,) = (place for place, row in enumerate(chart) if "◆" in row)
    assert k1 > baseline


@given(st.floats(0.01, 1.0), st.floats(1.1, 100.0), st.integers(5, 60))
def test_the_span_of_the_speedups_holds_them_all_with_1_in_the_middle_of_a_row(least: float, top: float, rows: int) -> None:
    low, high = charts._through_one(least, top, rows)
    assert low <= least + 1e-9
    assert high >= top - 1e-9
    place = (1.0 - low) / (high - low) * (rows - 1)
    assert place == pytest.approx(round(place), abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_the_axes_have_units_and_the_slope_is_named(size: tuple[int, int]) -> None:
    shown = text(charts.roofline_chart(STATE, "", WHOLE, *size))
    assert "FLOP/s" in shown.splitlines()[0]
    assert shown.splitlines()[-1].endswith("FLOP/byte")
    assert re.search(r"[\d.]+ [KMGTP]?B/s", shown)


@pytest.mark.parametrize("size", SIZES[1:])
def test_each_ceiling_is_named(size: tuple[int, int]) -> None:
    found = facts.roofline(STATE)
    assert found is not None
    shown = text(charts.roofline_chart(STATE, "", WHOLE, *size))
    assert all(name in shown for name, _ in found.peaks), shown


def test_text_goes_only_where_nothing_is() -> None:
    canvas = Canvas(Plane((0.0, 1.0), (0.0, 1.0), 20, 3))
    canvas.along(0.5, 0.0, 1.0, "─", Ink.PLAIN)
    assert not canvas.text("label", [(4, 1)], Ink.PLAIN)
    assert canvas.text("label", [(4, 1), (4, 0)], Ink.PLAIN)
    assert not canvas.text("next", [(9, 0)], Ink.PLAIN), "a blank stays between two labels"
    assert "".join(cell.text for cell in canvas.line(1)) == "─" * 20


def test_the_line_follows_the_races_and_the_best_measured_kernel_is_a_dot() -> None:
    shown = charts.speedup_chart(STATE, "", WHOLE, 100, 30)
    best = queries.incumbent(STATE)
    assert best is not None
    values = {
        k.id: ratio.value for k in queries.ranked(STATE) if queries.is_precise(k) and (ratio := queries.speedup(STATE, k))
    }
    assert ("◇" in text(shown)) == (max(values, key=lambda name: values[name]) != best.id)


def test_without_rows_the_figures_stay() -> None:
    best = queries.incumbent(STATE)
    assert best is not None
    ratio = queries.speedup(STATE, best)
    assert ratio is not None
    assert f"{charts.fmt.digits(ratio.value)}×" in text(charts.speedup_chart(STATE, "", WHOLE, 38, 2))
    assert "B/s" in text(charts.roofline_chart(STATE, "", WHOLE, 38, 1))


def test_a_session_without_measurements_says_so() -> None:
    empty = b.fold(b.opened())
    assert "no kernel is measured yet" in text(charts.speedup_chart(empty, "", WHOLE, 60, 12))
    assert "available after the preparation" in text(charts.roofline_chart(empty, "", WHOLE, 60, 12))


@pytest.mark.parametrize(("span", "most", "ticks"), [((0.0, 2.1), 4, [0, 1, 2]), ((0.9, 1.3), 4, [0.9, 1.0, 1.1, 1.2, 1.3])])
def test_ticks_are_round_numbers(span: tuple[float, float], most: int, ticks: list[float]) -> None:
    assert round_ticks(span, most) == pytest.approx(ticks)


def test_an_endless_axis_has_no_ticks() -> None:
    assert round_ticks((0.0, math.inf), 5) == []
    assert round_ticks((0.0, 1e300), 5) == []


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("value", [1e300, math.inf])
def test_a_speedup_beyond_all_bounds_is_drawn(make: Callable[..., ChartPage], value: float) -> None:
    """A runner's claim can make it so: the terminal UI ended with an internal error."""
    best = queries.incumbent(STATE)
    assert best is not None
    assert best.measurement is not None
    measured = replace(best.measurement, speedup={"eager": Interval(value, value, value)})
    state = replace(STATE, kernels={**STATE.kernels, best.id: replace(best, measurement=measured)})
    assert text(make(state, "", WHOLE, 100, 30))


def test_logarithmic_ticks_are_powers_and_in_a_short_span_their_parts() -> None:
    assert log_ticks((-1.2, 3.1), 3) == [-1.0, 1.0, 3.0]
    assert [round(10**value, 3) for value in log_ticks((0.1, 0.9), 5)] == [2.0, 5.0]


def test_labels_of_neighbouring_rows_are_not_both_drawn() -> None:
    canvas = Canvas(plot.plane_of((0, 1), (0, 1), PlotAxis(((0.5, "a"), (0.52, "b"), (1.0, "c")), ""), 20, 12))
    lines = plot.framed(canvas, PlotAxis((), ""), PlotAxis(((0.5, "a"), (0.52, "b"), (1.0, "c")), ""))
    assert [line.text[0] for line in lines if line.text[0] != " "] == ["c", "a"]


@pytest.mark.parametrize("make", MAKERS)
def test_without_room_for_a_plot_no_figure_is_cut(make: Callable[..., ChartPage]) -> None:
    whole = text(make(STATE, "", WHOLE, 400, 4)).split()
    shown = make(STATE, "", WHOLE, 30, 4)
    assert text(shown).split() == whole
    assert all(line.width <= 30 for line in shown.lines)


def test_a_kernel_of_a_round_that_never_opened_is_drawn() -> None:
    rounds = {number: one for number, one in STATE.rounds.items() if number < 4}
    drawn = text(charts.speedup_chart(replace(STATE, rounds=rounds), "", WHOLE, 118, 30)).splitlines()
    whole = text(charts.speedup_chart(STATE, "", WHOLE, 118, 30)).splitlines()
    (ticks,) = (place for place, one in enumerate(drawn) if "3+" in one)
    assert drawn[:ticks] + drawn[ticks + 1 :] == whole[:ticks] + whole[ticks + 1 :]
