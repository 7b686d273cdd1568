"""A row of the tree at every width."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import showcase

from engine.domain.model import Interval
from engine.domain.state import SessionState
from tui.viewmodel import cells, fmt, siblings, tree_cells, tree_columns, tree_rows
from tui.viewmodel.cells import Ink
from tui.viewmodel.tree_columns import Column, ColumnChoice, Shown

STATE = showcase.session()[0]
SCENE = tree_cells.tree_context(STATE)
ROWS = {row.kernel: row for row in tree_rows.rows(STATE)}


def shown(kernel: str, room: int, **options: str) -> str:
    return tree_cells.row_line(SCENE, ROWS[kernel], tree_columns.layout(room), **options).text


@given(st.integers(24, 260), st.sampled_from(sorted(ROWS)))
def test_every_row_fills_its_width_exactly(room: int, kernel: str) -> None:
    layout = tree_columns.layout(room)
    assert tree_cells.row_line(SCENE, ROWS[kernel], layout, marked="k7").width == room
    assert tree_columns.head(layout, "eager").width == room


def test_eighty_columns_show_outcome_speedup_and_time_and_two_hundred_show_all() -> None:
    assert tree_columns.layout(80).columns == (Column.NAME, Column.OUTCOME, Column.SPEEDUP, Column.TIME)
    assert set(tree_columns.layout(200).columns) == set(Column)


@pytest.mark.parametrize("room", [37, 60, 80, 120, 200])
def test_an_outcome_has_a_glyph_and_a_word_where_there_is_room(room: int) -> None:
    output = {"k12": "● measured", "k13": "◍ screened", "k6": "✗ build failed", "k17": "■ cancelled", "k20": "◔ building",
            "k19": "◑ verifying", "k18": "◕ measuring", "k21": "○ to build"}  # fmt: skip
    for kernel, words in output.items():
        text = shown(kernel, room)
        assert words in text if room >= 80 else words[0] in text
        if room < 80 and STATE.kernels[kernel].measurement is None:
            assert words.partition(" ")[2][:8] in text, "the word stands where the figures would"


def test_badges_are_in_the_gutter() -> None:
    assert shown("k14", 80).startswith("★")
    assert shown("k14", 80, marked="k14").startswith("★◆")
    assert shown("k7", 80, marked="k7").startswith("◆⚑")
    assert shown("k2", 80).startswith(" ⊘")


def test_a_kernel_without_figures_shows_the_reason() -> None:
    assert "expected ';' before '}' token" in shown("k6", 160)


def test_each_tunable_is_shown_once() -> None:
    assert "CHAINS=8" in shown("k12", 80)
    assert shown("k12", 200).count("CHAINS=8") == 1


def test_a_folded_row_shows_how_many_kernels_it_hides() -> None:
    row = next(r for r in tree_rows.rows(STATE, tree_rows.TreeShape(frozenset({"k7"}))) if r.kernel == "k7")
    text = tree_cells.row_line(SCENE, row, tree_columns.layout(120)).text
    assert "▸ k7" in text
    assert f"+{row.hidden}" in text


def test_the_speedup_has_a_sign_and_an_ink() -> None:
    line = tree_cells.row_line(SCENE, ROWS["k1"], tree_columns.layout(80))
    assert next(c for c in line.cells if c.ink is Ink.SLOWER).text == "▼ 0.420×"


def tuned(*variants: dict[str, int], parent: dict[str, int] | None = None) -> SessionState:
    """The showcase with the parent k7 and its children k12, k13 … as variants with these tunables."""
    kernels = dict(STATE.kernels)
    kernels["k7"] = replace(kernels["k7"], tunables=parent or {})
    for name, tunables in zip(("k12", "k13"), variants, strict=True):
        kernels[name] = replace(kernels[name], tunables=tunables)
    return replace(STATE, kernels=kernels)


def test_tunables_that_differ_among_siblings_come_first() -> None:
    state = tuned({"A": 1, "B": 2, "C": 3}, {"A": 1, "B": 2, "C": 4})
    found = siblings.labels(state, state.kernels["k12"])
    assert found["k12"] == siblings.Label({"C": 3}, {"A": 1, "B": 2})
    assert found["k13"] == siblings.Label({"C": 4}, {"A": 1, "B": 2})
    for room in (37, 57, 80, 120):
        rows = {row.kernel: row for row in tree_rows.rows(state)}
        view = tree_cells.tree_context(state)
        texts = [tree_cells.row_line(view, rows[name], tree_columns.layout(room)).text for name in ("k12", "k13")]
        assert "k12 C=3 " in texts[0]
        assert "k13 C=4 " in texts[1]


def test_a_variant_of_its_parent_is_told_apart_by_what_it_changed() -> None:
    state = tuned({"A": 1, "B": 0}, {"A": 2, "B": 2}, parent={"A": 1, "B": 2})
    found = siblings.labels(state, state.kernels["k12"])
    assert found == {"k12": siblings.Label({"B": 0}, {"A": 1}), "k13": siblings.Label({"A": 2}, {"B": 2})}


POSITIVE = st.floats(1e-7, 1e7)


@given(st.integers(12, 220), st.dictionaries(st.sampled_from("ABCDEF"), st.integers(0, 10**6)), POSITIVE, POSITIVE, POSITIVE)
def test_every_shown_figure_is_whole(room: int, tunables: dict[str, int], value: float, spread: float, time_us: float) -> None:
    ratio = Interval(value, value / (1 + spread), value * (1 + spread))
    kernel = STATE.kernels["k12"]
    assert kernel.measurement is not None
    measured = replace(kernel.measurement, speedup={"eager": ratio}, time_us=Interval(time_us, time_us, time_us))
    state = replace(STATE, kernels=STATE.kernels | {"k12": replace(kernel, tunables=tunables, measurement=measured)})
    shown = tree_columns.layout(room)
    text = tree_cells.row_line(tree_cells.tree_context(state), ROWS["k12"], shown).text
    assert len(text) == max(room, tree_columns.GUTTER + 1)
    at, title = tree_columns.GUTTER, "Reduce in eight independent chains"
    whole = {
        Column.SPEEDUP: fmt.speedup_forms(ratio), Column.INTERVAL: fmt.interval_forms(ratio),
        Column.TIME: (fmt.duration(time_us),), Column.SOL: (fmt.percent(measured.light.fraction) if measured.light else "",),
    }  # fmt: skip
    for column in shown.columns:
        content = text[at : at + shown.widths[column]].strip()
        at += shown.widths[column] + tree_columns.GAP
        if column in whole:
            assert content in ("", *whole[column])
    label = text[tree_columns.GUTTER : tree_columns.GUTTER + shown.widths[Column.NAME]]
    if "k12" in label:
        of_title = [word.rstrip("…") for word in title.split()]
        values = {str(one) for one in tunables.values()}
        for word in re.split(r"[\s·]+", label.partition("k12 ")[2]):
            digits = word.partition("=")[2] or word
            assert not any(map(str.isdigit, digits)) or digits in values or word in of_title


@given(st.text(st.sampled_from("ab1 9."), max_size=30), st.integers(0, 32))
def test_a_text_is_never_cut_inside_a_number(text: str, room: int) -> None:
    shown = cells.cut_whole(text, room)
    assert cells.width(shown) <= room
    words = set(text.split())
    assert all(word.rstrip("…") in words for word in shown.split() if any(map(str.isdigit, word)))


def test_a_failed_kernel_tells_its_outcome_and_reason_where_the_outcome_is_a_symbol() -> None:
    assert "build failed " in shown("k6", 60)
    chosen = tree_columns.layout(100, ColumnChoice().resize(Column.OUTCOME, 1))
    assert "build failed: k6.cpp:19:41" in tree_cells.row_line(SCENE, ROWS["k6"], chosen).text


def test_columns_are_shown_always_or_never_as_the_user_chose() -> None:
    chosen = ColumnChoice().show(Column.SOL, Shown.ALWAYS).show(Column.TIME, Shown.HIDDEN)
    for room in range(40, 220, 5):
        columns = tree_columns.layout(room, chosen).columns
        assert Column.SOL in columns
        assert Column.TIME not in columns
    assert tree_columns.layout(60, ColumnChoice().show(Column.NAME, Shown.HIDDEN)).columns[0] is Column.NAME


@given(st.integers(20, 240), st.sampled_from(list(Column)), st.integers(-5, 300), st.sampled_from(list(Shown)))
def test_a_row_fills_its_width_whatever_the_user_chose(room: int, column: Column, wide: int, when: Shown) -> None:
    chosen = ColumnChoice().resize(column, wide).show(column, when)
    layout = tree_columns.layout(room, chosen)
    assert tree_columns.head(layout, "eager_tf32").width == room
    assert tree_cells.row_line(SCENE, ROWS["k12"], layout).width == room
    if column in layout.widths and column is not Column.NAME:
        assert layout.widths[column] == chosen.widths[column]


@pytest.mark.parametrize("room", range(40, 90, 5))
def test_a_tunable_after_a_title_has_its_name(room: int) -> None:
    line = tree_cells.row_line(SCENE, ROWS["k4"], tree_columns.layout(room, ColumnChoice({Column.TUNABLES: Shown.HIDDEN})))
    assert "CHUNK=16" in line.text or "16" not in line.text.split("×")[0]


def test_deep_rows_show_the_nearest_guide_strokes() -> None:
    row = tree_rows.NodeRow("k1", 30, "│ " * 23 + "├─", 0, False, 0, False)
    assert tree_cells.shown_guides(row, 40).startswith("… ")
    assert len(tree_cells.shown_guides(row, 40)) <= 20


@pytest.mark.parametrize(
    ("room", "shown"),
    [(30, "softmax-2026-11-23-2"), (10, "soft…-23-2"), (6, "so…3-2"), (1, "…"), (0, "")],
)
def test_a_text_that_is_cut_in_its_middle_keeps_both_ends(room: int, shown: str) -> None:
    assert cells.cut_middle("softmax-2026-11-23-2", room) == shown
