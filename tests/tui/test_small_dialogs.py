"""Dialogs at the smallest size: what is asked, what is typed and how to answer are in sight."""

from __future__ import annotations

import asyncio

import pytest
from support import ui
from textual.widget import Widget
from textual.widgets import Button, Input, Label

from tui.screens.dialogs import AskLine, Choice, Choose, Confirm, Dialog

LONG = "words that do not fit on one line of a small terminal, and go on for several of them, to the very end of the dialog"
DIALOGS: list[tuple[Dialog[object], type[Widget]]] = [
    (Confirm("End?", LONG, "End"), Button),
    (AskLine("Reason", LONG), Input),
    (Choose("Fork from", [Choice(str(n), f"round {n}, before its ideas", LONG) for n in range(9)]), Label),
]


@pytest.mark.parametrize(("dialog", "wanted"), DIALOGS, ids=["confirm", "line", "choice"])
def test_a_dialog_shows_how_to_answer_at_the_smallest_size(dialog: Dialog[object], wanted: type[Widget]) -> None:
    async def act() -> None:
        app = ui.app()
        async with app.run_test(size=(40, 12)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            last = dialog.query(wanted).last()
            assert dialog.query_one(".dialog").content_region.contains_region(last.region)

    asyncio.run(act())
