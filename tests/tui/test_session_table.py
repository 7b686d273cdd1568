"""The columns of the table of sessions fit its width, whenever and however that changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions
from support.ui import until
from textual.app import App, ComposeResult

from engine.domain.model import Interval
from engine.journal import store
from tui.widgets.session_table import SessionTable

ONE = store.SessionSummary(
    "softmax-2026-11-18-1", Path("/sessions/softmax-2026-11-18-1"), "closed", "3 rounds", 0.0, "softmax", "large",
    "NVIDIA H200", "eager", Interval(46.9, 46.2, 47.7), "k9", 3, 12, 9, (1.0, 20.0, 46.9), corroborated=True,
)  # fmt: skip


class Host(App[None]):
    def compose(self) -> ComposeResult:
        yield SessionTable(lambda: 60.0, lambda: None, id="sessions")


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


def test_an_example_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "is_shipped", lambda folder: folder == ONE.folder)

    async def body() -> None:
        app = Host()
        async with app.run_test(size=(120, 10)):
            table = app.query_one(SessionTable)
            table.show([ONE])
            assert "▷ example" in [cell.plain for cell in table.get_row_at(0)]

    sessions.run(body)


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
