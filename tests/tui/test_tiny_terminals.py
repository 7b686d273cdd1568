"""Lists and texts without room are no error."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets import OptionList

from tui.tiny_terminals import guard_tiny_terminals


@pytest.mark.parametrize("action", ["page_up", "page_down"])
def test_a_page_key_in_a_list_without_room_leaves_the_highlight(action: str) -> None:
    guard_tiny_terminals()

    class Listed(App[None]):
        def compose(self) -> ComposeResult:
            listed = OptionList("one", "two")
            listed.styles.height = 0
            yield listed

    async def act() -> int | None:
        app = Listed()
        async with app.run_test() as pilot:
            listed = app.query_one(OptionList)
            listed.highlighted = 1
            await pilot.pause()
            await listed.run_action(action)
            return listed.highlighted

    assert asyncio.run(act()) == 1


@pytest.mark.parametrize("width", [-1, 0, 1])
def test_a_text_without_room_has_a_height(width: int) -> None:
    guard_tiny_terminals()
    assert Content("wörd").get_height({}, width) == 4
