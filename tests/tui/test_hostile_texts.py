"""Words of models and strangers stay words: no markup, no control character, and every row as wide as the terminal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from support import sessions, ui
from support.scripted import ScriptedProposer
from textual.pilot import Pilot

from tui.app import EspalierApp
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm, Dialog
from tui.screens.gate import GateScreen
from tui.screens.idea_form import IdeaForm

HOSTILE = "[/] [b]x[/b] \x1b[2J\x1b]0;t\x07\t漢字 👩‍👩‍👧‍👦 \u202eabc\r é\u0301"
_GIVEN = sessions.proposal("wide", "k1")
IDEA = replace(_GIVEN, text=replace(_GIVEN.text, title=HOSTILE, category=HOSTILE, rationale=f"{HOSTILE}\n{HOSTILE}"))


def assert_shows_words(app: EspalierApp, columns: int) -> None:
    for strip in app.screen._compositor.render_strips():
        assert strip.text.isprintable(), ascii(strip.text)
        assert sum(cell_len(segment.text) for segment in strip) == columns, ascii(strip.text)


@pytest.mark.parametrize("key", ["", "e", "r", "W", "m", "w", "p"])
def test_an_idea_is_shown_and_edited_as_words(tmp_path: Path, key: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await ui.until(pilot, lambda: isinstance(app.screen, GateScreen))
        watch.pass_grace()
        if key:
            await pilot.press(key)
            await ui.until(pilot, lambda: not isinstance(app.screen, GateScreen) or app._notifications)
        assert key != "e" or isinstance(app.screen, IdeaForm)
        await ui.still(pilot)
        assert_shows_words(app, app.size.width)

    ideas = ScriptedProposer(rounds={**sessions.TREE.rounds, 1: (IDEA,)}, drafts=sessions.TREE.drafts)
    ui.run_steered(tmp_path / "session", act, opener=ui.FakeOpener(ideas=ideas))


@pytest.mark.parametrize(
    "dialog",
    [
        Confirm(HOSTILE, HOSTILE, "Yes"),
        AskLine(HOSTILE, HOSTILE),
        Choose(HOSTILE, [Choice("a", HOSTILE, HOSTILE), Choice("b", "  k1", "one")]),
    ],
    ids=lambda dialog: type(dialog).__name__,
)
def test_a_dialog_shows_words(dialog: Dialog[object]) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(100, 40)) as pilot:
            app.push_screen(dialog)
            await ui.until(pilot, lambda: app.screen is dialog)
            await ui.still(pilot)
            assert_shows_words(app, 100)

    asyncio.run(body())
