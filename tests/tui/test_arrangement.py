"""The columns of the tree and its share of the screen: changed by key and by mouse, and kept for every session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import sessions, stored_showcase, ui
from support.ui import until
from textual.pilot import Pilot
from textual.widgets import OptionList

from tui.app import EspalierApp
from tui.layout_file import LAYOUT, LEAST_SHARE, MOST_SHARE, LayoutFile, ScreenLayout, read_layout, write_layout
from tui.screens.columns_form import ColumnsForm
from tui.screens.session import SessionScreen
from tui.viewmodel.tree_columns import GUTTER, LEAST_WIDTHS, Column, ColumnChoice, Shown
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.splitter import Splitter

SHARES = st.none() | st.floats(LEAST_SHARE, MOST_SHARE)
WIDTHS = st.dictionaries(st.sampled_from(list(Column)), st.integers(16, 200))
SHOWN = st.dictionaries(st.sampled_from(list(Column)[1:]), st.sampled_from(list(Shown)))


@pytest.mark.slow
@given(WIDTHS, SHOWN, SHARES, SHARES)
def test_a_layout_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    widths: dict[Column, int], shown: dict[Column, Shown], beside: float | None, below: float | None,
) -> None:  # fmt: skip
    path = tmp_path_factory.getbasetemp() / LAYOUT
    given_layout = ScreenLayout(ColumnChoice(shown, widths), *(round(one, 3) if one else one for one in (beside, below)))
    write_layout(path, given_layout)
    assert read_layout(path) == (given_layout, ())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("beside = 2.0", "beside must be a share from 0.15 to 0.85, not 2.0"),
        ("[columns.colour]\nwidth = 3", "'colour' is not a valid Column"),
        ('[columns.sol]\nshown = "maybe"', "'maybe' is not a valid Shown"),
        ("beside = ", "the usual layout applies"),
    ],
)
def test_a_wrong_entry_is_told_and_skipped(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / LAYOUT
    path.write_text(text)
    found, (only,) = read_layout(path)
    assert found == ScreenLayout()
    assert error in only


def test_two_processes_keep_each_others_changes(tmp_path: Path) -> None:
    path = tmp_path / LAYOUT
    write_layout(path, ScreenLayout(ColumnChoice(widths={Column.NAME: 40}), beside=0.5))
    one, other = LayoutFile(path), LayoutFile(path)
    one.keep(ScreenLayout(ColumnChoice({Column.SOL: Shown.HIDDEN}, {Column.NAME: 40}), beside=0.3))
    other.keep(ScreenLayout(ColumnChoice(widths={Column.NAME: 60}), beside=0.5, below=0.7))
    both = ScreenLayout(ColumnChoice({Column.SOL: Shown.HIDDEN}, {Column.NAME: 60}), beside=0.3, below=0.7)
    assert read_layout(path) == (both, ())
    one.keep(ScreenLayout())
    assert read_layout(path) == (ScreenLayout(below=0.7), ()), "what was reset is the usual one again"
    assert [file.name for file in tmp_path.iterdir() if file.suffix not in (".toml", ".lock")] == []


Act = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


def replayed(tmp_path: Path, act: Act, size: tuple[int, int] = (120, 40)) -> ScreenLayout:
    """Replay the showcase, act on it, and return what the layout's file then says."""
    folder = stored_showcase.store(tmp_path / "softmax-1") if not (tmp_path / "softmax-1").exists() else tmp_path / "softmax-1"

    async def body() -> None:
        app = ui.app(action="replay", subject=folder, keymap=tmp_path / "keys.toml")
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: ui.shows_tree(app))
            await act(app, pilot)
            await app._leave()

    sessions.run(body)
    return LayoutFile(tmp_path / LAYOUT).layout


def tree(app: EspalierApp) -> KernelTree:
    return app.screen.query_one(KernelTree)


@pytest.mark.parametrize("size", [(120, 40), pytest.param((80, 24), marks=pytest.mark.slow)])
def test_the_split_moves_by_key_and_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    below = size[0] < 110
    extents: list[int] = []

    def extent(app: EspalierApp) -> int:
        return tree(app).size.height if below else tree(app).size.width

    async def widen(app: EspalierApp, pilot: Pilot[None]) -> None:
        before = extent(app)
        await pilot.press("greater_than_sign", "greater_than_sign", "greater_than_sign", "less_than_sign")
        await until(pilot, lambda: extent(app) > before)
        extents.append(extent(app))

    async def look(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: extent(app) == extents[0])

    kept = replayed(tmp_path, widen, size)
    assert (kept.below if below else kept.beside) is not None
    replayed(tmp_path, look, size)


@pytest.mark.slow
def test_the_split_and_a_column_are_dragged_by_the_mouse(tmp_path: Path) -> None:
    async def drag(app: EspalierApp, pilot: Pilot[None]) -> None:
        line = app.screen.query_one(Splitter)
        await pilot.mouse_down(line, offset=(0, 5))
        await pilot.hover(offset=(90, 20))
        await pilot.mouse_up(offset=(90, 20))
        await until(pilot, lambda: tree(app).size.width == 90)
        edge = GUTTER + tree(app).shown_columns.widths[Column.NAME]
        await pilot.mouse_down(tree(app), offset=(edge, 0))
        await pilot.hover(tree(app), offset=(edge + 6, 0))
        await pilot.mouse_up(tree(app), offset=(edge + 6, 0))
        await until(pilot, lambda: Column.NAME in tree(app).columns.widths)

    kept = replayed(tmp_path, drag)
    assert kept.beside == pytest.approx(90 / 119, abs=0.01)
    assert kept.columns.widths[Column.NAME] > LEAST_WIDTHS[Column.NAME]


@pytest.mark.slow
def test_columns_are_chosen_in_a_dialog(tmp_path: Path) -> None:
    async def choose(app: EspalierApp, pilot: Pilot[None]) -> None:
        behind = tree(app)
        await pilot.press("vertical_line")
        await until(pilot, lambda: isinstance(app.screen, ColumnsForm))
        app.screen.query_one(OptionList).highlighted = list(Column).index(Column.SOL)
        await pilot.press("enter")
        await until(pilot, lambda: Column.SOL in behind.shown_columns.columns)
        await pilot.press("right", "right")
        app.screen.query_one(OptionList).highlighted = list(Column).index(Column.TIME)
        await pilot.press("enter", "enter")
        await until(pilot, lambda: Column.TIME not in behind.shown_columns.columns)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))

    kept = replayed(tmp_path, choose)
    assert kept.columns == ColumnChoice({Column.SOL: Shown.ALWAYS, Column.TIME: Shown.HIDDEN}, {Column.SOL: 7})
