"""A row of the tree at every width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import showcase

from tui.viewmodel import tree_cells, tree_rows
from tui.viewmodel.cells import Ink
from tui.viewmodel.tree_cells import Column

STATE = showcase.session()[0]
SCENE = tree_cells.tree_context(STATE)
ROWS = {row.kernel: row for row in tree_rows.rows(STATE)}


def shown(kernel: str, room: int, **options: str) -> str:
    return tree_cells.row_line(SCENE, ROWS[kernel], tree_cells.layout(room), **options).text


@given(st.integers(24, 260), st.sampled_from(sorted(ROWS)))
def test_every_row_fills_its_width_exactly(room: int, kernel: str) -> None:
    layout = tree_cells.layout(room)
    assert tree_cells.row_line(SCENE, ROWS[kernel], layout, marked="k7").width == room
    assert tree_cells.head(layout, "eager").width == room


def test_eighty_columns_show_outcome_speedup_and_bar_and_two_hundred_show_all() -> None:
    assert tree_cells.layout(80).columns == (Column.NAME, Column.OUTCOME, Column.SPEEDUP, Column.BAR)
    assert set(tree_cells.layout(200).columns) == set(Column)


@pytest.mark.parametrize("room", [60, 80, 120, 200])
def test_an_outcome_has_a_glyph_and_a_word(room: int) -> None:
    output = {"k12": "● measured", "k13": "◍ screened", "k6": "✗ build failed", "k17": "■ cancelled", "k20": "◔ building",
            "k19": "◑ verifying", "k18": "◕ measuring", "k21": "○ to build"}  # fmt: skip
    for kernel, words in output.items():
        assert words in shown(kernel, room)


def test_badges_are_in_the_gutter() -> None:
    assert shown("k14", 80).startswith("★")
    assert shown("k14", 80, marked="k14").startswith("★◆")
    assert shown("k7", 80, marked="k7").startswith("◆⚑")
    assert shown("k2", 80).startswith(" ⊘")


def test_a_kernel_without_figures_shows_the_reason() -> None:
    assert "expected ';' before '}' token" in shown("k6", 160)


def test_tunables_without_a_column_follow_the_title() -> None:
    assert "CHAINS=8" in shown("k12", 80)
    assert shown("k12", 200).count("CHAINS=8") == 1


def test_a_folded_row_shows_how_many_kernels_it_hides() -> None:
    row = next(r for r in tree_rows.rows(STATE, tree_rows.TreeShape(frozenset({"k7"}))) if r.kernel == "k7")
    text = tree_cells.row_line(SCENE, row, tree_cells.layout(120)).text
    assert "▸ k7" in text
    assert f"+{row.hidden}" in text


def test_the_speedup_has_a_sign_and_an_ink() -> None:
    line = tree_cells.row_line(SCENE, ROWS["k1"], tree_cells.layout(80))
    assert next(c for c in line.cells if c.ink is Ink.SLOWER).text == "▼ 0.42×"


def test_deep_rows_show_the_nearest_guide_strokes() -> None:
    row = tree_rows.NodeRow("k1", 30, "│ " * 23 + "├─", 0, False, 0, False)
    assert tree_cells.shown_guides(row, 40).startswith("… ")
    assert len(tree_cells.shown_guides(row, 40)) <= 20
