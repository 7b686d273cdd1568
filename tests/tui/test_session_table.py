"""The columns of the table of sessions fit its width, whenever and however that changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import sessions, ui
from support.ui import until
from textual.app import App, ComposeResult

from engine.domain.model import Interval
from engine.journal import store
from tui.widgets.session_table import SessionTable, legend

ONE = store.SessionSummary(
    "softmax-2026-11-18-1", Path("/sessions/softmax-2026-11-18-1"), "closed", "3 rounds", 0.0, "softmax", "large",
    "NVIDIA H200", "eager", Interval(46.9, 46.2, 47.7), "k9", 3, 12, 9, (1.0, 20.0, 46.9), corroborated=True,
)  # fmt: skip


class Host(App[None]):
    def compose(self) -> ComposeResult:
        yield SessionTable(lambda: 60.0, lambda: None, id="sessions")


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(120, 40, 200), (40, 120), (20, 80, 20)])
def test_columns_follow_the_width(widths: tuple[int, ...]) -> None:
    async def body() -> None:
        app = Host()
        async with app.run_test(size=(widths[0], 10)) as pilot:
            table = app.query_one(SessionTable)
            table.show([ONE])
            for width in widths:
                await pilot.resize_terminal(width, 10)
                await until(pilot, lambda width=width: table.size.width == width and table.max_scroll_x == 0)
                shown = [str(key.value) for key in table.columns]
                assert shown[0] == "session"
                assert ("last" in shown) == (width >= 80)
                assert (len(shown) == 8) == (width >= 120)
                assert table.highlighted == ONE

    sessions.run(body)


def test_the_first_frame_shows_cells_whole() -> None:
    async def body() -> None:
        app = Host()
        async with app.run_test(size=(120, 10)):
            table = app.query_one(SessionTable)
            table.show([ONE])
            assert table.ordered_columns[0].get_render_width(table) - 2 == len(ONE.name)
            assert table.virtual_size.width <= table.size.width

    sessions.run(body)


@pytest.mark.parametrize(("awaiting", "words"), [(0, "● running"), (2, "● 2 to approve")])
def test_the_session_that_is_searched_here_says_what_awaits(awaiting: int, words: str) -> None:
    one = replace(ONE, status="open", awaiting=awaiting)

    class Searched(App[None]):
        def compose(self) -> ComposeResult:
            yield SessionTable(lambda: 60.0, lambda: one.folder, id="sessions")

    async def body() -> None:
        app = Searched()
        async with app.run_test(size=(120, 10)):
            table = app.query_one(SessionTable)
            table.show([one])
            assert words in [cell.plain for cell in table.get_row_at(0)]

    sessions.run(body)


def test_an_example_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "is_shipped", lambda folder: folder == ONE.folder)

    async def body() -> None:
        app = Host()
        async with app.run_test(size=(120, 10)):
            table = app.query_one(SessionTable)
            table.show([ONE])
            assert "▷ example" in [cell.plain for cell in table.get_row_at(0)]

    sessions.run(body)


@pytest.mark.parametrize(("width", "figure"), [(80, "▲ 46.90× [46.20, 47.70]"), (40, "▲ 46.90×")])
def test_the_incumbent_is_shown_without_its_interval_where_that_has_no_room(width: int, figure: str) -> None:
    async def body() -> None:
        app = Host()
        async with app.run_test(size=(width, 10)):
            table = app.query_one(SessionTable)
            table.show([ONE])
            assert figure in [cell.plain for cell in table.get_row_at(0)]

    sessions.run(body)


@pytest.mark.parametrize(("width", "words"), [(80, "none corroborated"), (40, "?")])
def test_a_session_without_a_corroborated_time_says_so(width: int, words: str) -> None:
    doubted = replace(ONE, best=None, incumbent="", best_so_far=(), corroborated=False, doubted=("k1",))

    async def body() -> None:
        app = Host()
        async with app.run_test(size=(width, 10)):
            table = app.query_one(SessionTable)
            table.show([doubted])
            assert words in [cell.plain for cell in table.get_row_at(0)]

    sessions.run(body)
    assert "none corroborated" in {symbol.plain for symbol, _ in legend(lambda _: "")}


@pytest.mark.parametrize("status", ["open", "closed", "unreadable"])
@pytest.mark.parametrize("awaiting", [0, 3])
@pytest.mark.parametrize("shipped", [False, True])
@pytest.mark.parametrize("searched", [None, ONE.folder])
def test_the_legend_of_help_has_every_state(
    status: Any, awaiting: int, shipped: bool, searched: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "is_shipped", lambda folder: shipped)
    table = SessionTable(lambda: 60.0, lambda: searched, id="sessions")
    monkeypatch.setattr(SessionTable, "_colour", lambda *_: "")
    words = table._state(replace(ONE, status=status, awaiting=awaiting)).plain.replace("3", "2")
    assert words in {symbol.plain for symbol, _ in legend(lambda _: "")}


@pytest.mark.slow
def test_neither_an_empty_nor_a_long_list_has_a_scrollbar_across() -> None:
    async def body() -> None:
        app = Host()
        async with app.run_test(size=(120, 8)) as pilot:
            table = app.query_one(SessionTable)
            for width in range(60, 90, 5):
                await pilot.resize_terminal(width, 8)
                table.show([])
                await pilot.pause()
                assert not table.show_horizontal_scrollbar
                table.show([replace(ONE, folder=Path(f"/sessions/{number}")) for number in range(20)])
                await until(pilot, lambda width=width: table.size.width in (width, width - 1))  # less the scrollbar down
                assert not table.show_horizontal_scrollbar

    sessions.run(body)


@pytest.mark.slow
@pytest.mark.parametrize(("last", "first"), [("G", "g"), ("end", "home"), ("ctrl+end", "ctrl+home")])
def test_keys_go_to_the_last_session_and_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, first: str
) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    for number in range(3):
        sessions.whole(tmp_path / "sessions" / f"s{number}")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.focused, SessionTable) and len(app.focused.sessions) > 2)
            table = app.screen.query_one(SessionTable)
            await pilot.press(last)
            await until(pilot, lambda: table.cursor_coordinate.row == table.row_count - 1)
            await pilot.press(first)
            await until(pilot, lambda: table.cursor_coordinate.row == 0)

    sessions.run(body)
