"""A terminal of a few lines: one of tree and pane has it, and the other is a key away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import sessions, storm, ui
from support.ui import until
from textual.pilot import Pilot
from textual.widgets import DataTable

from tui.app import EspalierApp
from tui.screens.compare import CompareScreen
from tui.screens.gate import GateScreen
from tui.screens.session import SessionScreen
from tui.widgets.detail_tabs import DetailTabs
from tui.widgets.idea_list import IdeaList
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.lines import LinesView
from tui.widgets.session_table import SessionTable

Act = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sessions.whole(tmp_path / "s")
    return tmp_path / "s"


def replayed(folder: Path, size: tuple[int, int], act: Act) -> None:
    async def body() -> None:
        app = ui.app(None, "replay", folder)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            await act(app, pilot)

    sessions.run(body)


def heights(app: EspalierApp) -> tuple[int, int]:
    """The lines of the tree and of the kernel's pages."""
    return app.screen.query_one(KernelTree).region.height, app.screen.query_one(DetailTabs).region.height


@pytest.mark.slow
def test_the_tree_has_the_room_until_a_page_is_asked_for(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: heights(app)[0] >= 6 and not heights(app)[1])
        for key in ("5", "enter", "z"):
            await pilot.press(key)
            await until(pilot, lambda: not heights(app)[0] and heights(app)[1] >= 6)
            await until(pilot, lambda: isinstance(app.focused, LinesView))
            await pilot.press("escape" if key != "z" else "z")
            await until(pilot, lambda: heights(app)[0] >= 6 and isinstance(app.focused, KernelTree))
        assert isinstance(app.screen, SessionScreen)

    replayed(folder, (40, 12), act)


@pytest.mark.slow
def test_what_had_the_focus_stays_when_the_terminal_gets_short(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        app.screen.query_one("#kernel LinesView").focus()
        await ui.still(pilot)
        storm.resize(app, 40, 12)
        await until(pilot, lambda: not heights(app)[0] and isinstance(app.focused, LinesView))
        storm.resize(app, 120, 40)
        await until(pilot, lambda: all(heights(app)))
        app.screen.query_one(KernelTree).focus()
        await ui.still(pilot)
        storm.resize(app, 40, 12)
        await until(pilot, lambda: not heights(app)[1] and isinstance(app.focused, KernelTree))

    replayed(folder, (120, 40), act)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(20, 5), (40, 8)])
def test_a_tiny_terminal_shows_kernels_and_ideas_and_no_strips(folder: Path, size: tuple[int, int]) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: heights(app)[0] == size[1] - 2)
        lines = ui.screen_text(app).splitlines()
        assert "k" in lines[2]
        assert lines[-1].strip().startswith("? Help")
        assert not app.screen.max_scroll_y
        await pilot.press("i")
        await until(
            pilot, lambda: isinstance(app.screen, GateScreen) and app.screen.query_one(IdeaList).size.height == size[1] - 2
        )

    replayed(folder, size, act)


@pytest.mark.slow
def test_figures_of_two_kernels_are_compared_whole(folder: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("home", "m", "G", "v")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen) and isinstance(app.focused, DataTable))
        table = app.screen.query_one(DataTable)
        await until(pilot, lambda: table.region.height >= 8 and table.virtual_size.width <= 40)
        assert "k1  →  k" in ui.screen_text(app)
        await pilot.press("3")
        await until(pilot, lambda: not table.region.height and isinstance(app.focused, LinesView))
        await pilot.press("escape")
        await until(pilot, lambda: table.region.height >= 8)
        storm.resize(app, 120, 40)
        await until(
            pilot, lambda: len(table.columns) == 4 and all(one.region for one in (table, app.screen.query_one(DetailTabs)))
        )
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))

    replayed(folder, (40, 12), act)


@pytest.mark.slow
def test_the_text_of_an_idea_is_read_to_its_end_by_key(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        storm.resize(app, 40, 12)
        card = app.screen.query_one("#card")
        await until(pilot, lambda: isinstance(app.screen, GateScreen) and card.max_scroll_y > 0)
        while card.scroll_y < card.max_scroll_y:
            before = card.scroll_y
            await pilot.press("space")
            await until(pilot, lambda was=before: card.scroll_y > was)  # type: ignore[misc]
        await pilot.press("pageup")
        await until(pilot, lambda: card.scroll_y < card.max_scroll_y)

    ui.run_steered(tmp_path / "session", act)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(20, 5), (20, 6), (40, 8)])
def test_a_tiny_home_shows_both_lists(size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    sessions.whole(tmp_path / "mine")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=size) as pilot:
            table, problems = app.screen.query_one(SessionTable), app.screen.query_one("#problems")
            await until(pilot, lambda: problems.content_size.height >= size[1] - 2, "problems alone, in all of the room")
            (tmp_path / "sessions").mkdir()
            (tmp_path / "mine").rename(tmp_path / "sessions" / "mine")
            await pilot.press("f5")
            await until(pilot, lambda: table.content_size.height >= 2, "a header and a session")
            assert problems.content_size.height >= 1

    sessions.run(body)
