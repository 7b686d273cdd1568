"""A click on an option or a column that has gone since the last paint is no error."""

from __future__ import annotations

import asyncio

import pytest
from rich.style import Style
from support import ui
from support.ui import until
from textual.app import App, ComposeResult
from textual.command import CommandList
from textual.events import Click
from textual.widget import Widget
from textual.widgets import DataTable, OptionList

from tui.screens.palette import Palette
from tui.stale_clicks import guard_stale_clicks


class _Shown(App[None]):
    """One widget, and what was chosen in it."""

    def __init__(self, widget: Widget) -> None:
        guard_stale_clicks()
        super().__init__()
        self.widget = widget
        self.chosen: list[int] = []

    def compose(self) -> ComposeResult:
        yield self.widget

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.chosen.append(event.option_index)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        self.chosen.append(event.column_index)


def click(widget: Widget, style: Style) -> None:
    """A click on what was painted in this style. It bubbles to the app, which forwards it to the corner, where nothing is."""
    widget.post_message(Click(widget, 79, 23, 0, 0, 1, False, False, False, style=style))


@pytest.mark.parametrize("kind", [OptionList, CommandList])
@pytest.mark.parametrize("left", [0, 2, 3])
def test_a_click_on_an_option_chooses_it_only_while_it_is_there(kind: type[OptionList], left: int) -> None:
    async def act() -> list[int]:
        listed = kind("one", "two", "three")
        app = _Shown(listed)
        async with app.run_test() as pilot:
            listed.visible = True
            await pilot.pause()
            content = listed.content_region
            painted = app.screen.get_style_at(content.x + 2, content.y + 2)
            assert painted.meta["option"] == 2
            listed.set_options(["one", "two", "three"][:left])
            click(listed, painted)
            await pilot.pause()
        return app.chosen

    assert asyncio.run(act()) == ([2] if left == 3 else [])


@pytest.mark.parametrize("left", [0, 2, 3])
def test_a_click_on_a_header_chooses_it_only_while_it_is_there(left: int) -> None:
    async def act() -> list[int]:
        table: DataTable[str] = DataTable()
        app = _Shown(table)
        async with app.run_test() as pilot:
            table.add_columns("one", "two", "three")
            table.add_row("1", "2", "3")
            await pilot.pause()
            painted = next(style for x in range(40) if (style := app.screen.get_style_at(x, 0)).meta.get("column") == 2)
            table.clear(columns=True)
            table.add_columns(*("one", "two", "three")[:left])
            click(table, painted)
            await pilot.pause()
        return app.chosen

    assert asyncio.run(act()) == ([2] if left == 3 else [])


@pytest.mark.slow
def test_a_click_beyond_a_terminal_that_became_smaller_is_on_nothing() -> None:
    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=(40, 12)) as pilot:
            await pilot.press("ctrl+p")
            await until(pilot, lambda: isinstance(app.screen, Palette))
            app.screen.post_message(Click(app.screen, 70, 20, 0, 0, 1, False, False, False, screen_x=70, screen_y=20))
            await pilot.pause()
        assert app.fault is None

    asyncio.run(act())
