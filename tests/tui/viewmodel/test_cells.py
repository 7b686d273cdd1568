"""Measuring, cutting, cleaning and wrapping text by terminal cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.viewmodel.cells import (
    Cell,
    Ink,
    Line,
    clean,
    cut,
    cut_cells,
    fold_line,
    join_fitting,
    merge_cells,
    one_line,
    pad,
    pad_cells,
    width,
    wrap,
)

TEXTS = st.text(max_size=60)
LINES = st.lists(st.builds(Cell, TEXTS.map(clean), st.sampled_from([Ink.PLAIN, Ink.STRONG])), max_size=6)


@pytest.mark.parametrize(
    ("text", "room", "expected"),
    [("softmax", 7, "softmax"), ("softmax", 6, "softm…"), ("soft max", 6, "soft…"), ("核心核心", 5, "核心…"), ("x", 0, "")],
)
def test_cut_text_ends_with_an_ellipsis(text: str, room: int, expected: str) -> None:
    assert cut(text, room) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x07", "␛[31mred␇"),
        ("a\tb", "a   b"),
        ("right\u202eleft", "right�left"),
        ("zero\u200bwidth", "zero�width"),
        ("no\u00a0break", "no break"),
        ("del\x7f", "del␡"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(TEXTS)
def test_cleaned_text_is_printable_on_one_line(text: str) -> None:
    assert clean(text).isprintable()
    assert "\n" not in one_line(text)


@given(TEXTS, st.integers(1, 40), st.booleans())
def test_padded_text_takes_exactly_its_room(text: str, room: int, right: bool) -> None:
    assert width(pad(clean(text), room, right=right)) == room


@given(LINES, st.integers(1, 50))
def test_padded_cells_take_exactly_their_room(cells: list[Cell], room: int) -> None:
    assert Line(pad_cells(cells, room)).width == room
    assert Line(cut_cells(cells, room)).width <= room


@given(TEXTS, st.integers(4, 40))
def test_wrapping_keeps_every_word_within_the_room(text: str, room: int) -> None:
    lines = wrap(text, room)
    assert all(width(line) <= room for line in lines)
    assert "".join("".join(lines).split()) == "".join("".join(map(clean, text.strip().splitlines())).split())


@given(LINES, st.integers(12, 40))
def test_folding_loses_only_spaces(cells: list[Cell], room: int) -> None:
    shown = Line(tuple(cells))
    parts = fold_line(shown, room, 3)
    assert "".join("".join(p.text for p in parts).split()) == "".join(shown.text.split())
    assert all(width(part.text.rstrip()) <= room for part in parts)


@pytest.mark.parametrize("figure", ["4 min 40 s", "803 µs,", "(2.3 s)", "2 h 05 min"])
def test_wrapping_keeps_a_number_with_its_unit(figure: str) -> None:
    for room in range(14, 60):
        assert any(figure in line for line in wrap(f"waiting for cpu, held by process 11347 … {figure} of it", room))


@pytest.mark.parametrize("figure", ["4 min 40 s", "803 µs,", "(2.3 s)", "2 h 05 min"])
def test_folding_keeps_a_number_with_its_unit(figure: str) -> None:
    shown = Line((Cell(f"34 of 34 kernels verified · active {figure}"), Cell(" · engineer")))
    for room in range(14, 60):
        assert any(figure in part.text for part in fold_line(shown, room, 3))


def test_neighbours_of_one_ink_are_merged() -> None:
    assert merge_cells([Cell("a"), Cell("b"), Cell("c", Ink.STRONG)]) == (Cell("ab"), Cell("c", Ink.STRONG))


@given(st.lists(st.text("abc 核", min_size=1, max_size=9), max_size=6), st.integers(1, 60))
def test_parts_are_whole_or_left_out(texts: list[str], room: int) -> None:
    shown = join_fitting([(Cell(text),) for text in texts], Cell("|"), room)
    joined = "".join(cell.text for cell in shown)
    assert width(joined) <= room
    parts = [part for part in joined.split("|") if part]
    assert parts in (texts[: len(parts)], [*texts[: len(parts) - 1], "…"])
    assert (parts == texts) == (width("|".join(texts)) <= room)


@pytest.mark.parametrize("joined", ["👩‍👩‍👧‍👦", "👍🏽", "❤️", "1️⃣"])
def test_of_joined_characters_the_first_stays(joined: str) -> None:
    assert clean(f"a {joined} b") == f"a {joined[0]} b"
    assert width(clean(joined)) == cell_len(clean(joined))
