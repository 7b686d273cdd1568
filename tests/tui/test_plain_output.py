"""Nothing that a terminal obeys reaches it through a name."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from support import ui
from textual.app import ComposeResult
from textual.color import Color
from textual.screen import Screen
from textual.widgets import DataTable, Header, OptionList, Static
from textual.widgets.option_list import Option

from tui.app import EspalierApp
from tui.plain_output import PlainOutput

HOSTILE = "a\x1b[2Jb\x07c\u202ed\u200be\x9bf\x00g\ufeffh\u2066i\x7fj\rk\x85l\u2028m"
NASTY = st.text(
    st.characters(categories=("Cc", "Cf", "Zl", "Zp", "Lu", "Nd", "So")) | st.sampled_from("\u200d\ufe0f\u20e3👩👍🏽❤"),
    max_size=40,
)
BLACK = Color(0, 0, 0)


@pytest.mark.slow
@given(st.lists(NASTY, max_size=4))
def test_segments_keep_their_width_and_lose_what_a_terminal_obeys(texts: list[str]) -> None:
    segments = [Segment(text) for text in texts]
    found = PlainOutput().apply(segments, BLACK)
    assert [segment.cell_length for segment in found] == [segment.cell_length for segment in segments]
    assert all(segment.text.isprintable() for segment in found)


def test_printable_segments_are_not_copied() -> None:
    segments = [Segment("µs × é"), Segment("├─ k1")]
    assert PlainOutput().apply(segments, BLACK) is segments


class _Names(Screen[None]):
    """Widgets that show names."""

    def compose(self) -> ComposeResult:
        self.title = HOSTILE
        yield Header()
        yield Static(HOSTILE, markup=False)
        yield OptionList(Option(HOSTILE))
        table: DataTable[str] = DataTable()
        table.add_column(HOSTILE)
        table.add_row(HOSTILE)
        yield table


def _lines(app: EspalierApp) -> Iterator[str]:
    for strip in app.screen._compositor.render_strips():
        yield strip.text


@pytest.mark.slow
def test_no_widget_draws_what_a_terminal_obeys() -> None:
    async def drawn() -> list[str]:
        app = ui.app()
        async with app.run_test(size=(100, 30)) as pilot:
            await app.push_screen(_Names())
            await pilot.pause()
            return list(_lines(app))

    lines = asyncio.run(drawn())
    assert sum("j" in line for line in lines) >= 3
    assert all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\x9b", "\x00"])
def test_a_character_that_a_terminal_obeys_is_unsafe(character: str) -> None:
    (found,) = PlainOutput().apply([Segment(f"a{character}b")], BLACK)
    assert character not in found.text


def _on_a_simple_terminal(text: str) -> int:
    """The cells of a terminal that draws one character after the other."""
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)


@pytest.mark.parametrize("joined", ["👩‍👩‍👧‍👦", "👍🏽", "❤️", "1️⃣", "🏳️‍🌈", "👩🏾‍🚀"])
def test_joined_characters_have_one_width_on_every_terminal(joined: str) -> None:
    whole = f"a {joined} b {joined}{joined} c"
    (found,) = PlainOutput().apply([Segment(whole)], BLACK)
    assert found.cell_length == Segment(whole).cell_length == _on_a_simple_terminal(found.text)
    assert joined[0] in found.text


def test_accents_and_wide_characters_stay() -> None:
    (found,) = PlainOutput().apply([Segment("e\u0301 漢字 🚀 \u05d0\u0628")], BLACK)
    assert found.text == "e\u0301 漢字 🚀 \u05d0\u0628"
