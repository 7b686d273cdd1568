"""Typed text is not lost by one key, and Ctrl-Q, Ctrl-C and Ctrl-Z act in every dialog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ui
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from tui.app import EspalierApp
from tui.screens.code_form import CodeForm
from tui.screens.dialogs import AskLine, Choice, Choose, Confirm, Dialog
from tui.screens.gate import GateScreen
from tui.screens.help import HelpScreen
from tui.screens.idea_form import IdeaForm
from tui.screens.palette import Palette
from tui.screens.prompt_form import PromptForm


def message(app: EspalierApp) -> str:
    return str(app.screen.query_one("#message").render())


@pytest.mark.slow
@pytest.mark.parametrize("key", ["e", "i"])
def test_an_idea_that_was_changed_needs_a_second_escape(tmp_path: Path, key: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await pilot.press(key)
        await ui.until(pilot, lambda: isinstance(app.screen, IdeaForm))
        await pilot.press("escape")
        await ui.until(pilot, lambda: isinstance(app.screen, GateScreen))
        await pilot.press(key)
        await ui.until(pilot, lambda: isinstance(app.screen, IdeaForm))
        area = app.screen.query_one(TextArea)
        area.text = "ten minutes of thought"
        await pilot.press("escape")
        await pilot.pause()
        assert "Unsaved changes" in message(app)
        area.text += " and more"
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, IdeaForm), "what was typed after the warning is not lost either"
        await pilot.press("escape")
        await ui.until(pilot, lambda: isinstance(app.screen, GateScreen))

    ui.run_steered(tmp_path / "s", act)


@pytest.mark.slow
def test_a_rationale_is_wrapped_again_when_the_terminal_gets_narrower(tmp_path: Path) -> None:
    """Also where it has as many lines as before: then nothing else has it drawn again."""

    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await pilot.press("e")
        await ui.until(pilot, lambda: isinstance(app.screen, IdeaForm))
        area = app.screen.query_one(TextArea)
        area.text = "Range reduction on whole vectors gives the same accuracy with a tenth of the instructions. " * 4
        for width in (120, 80, 100, 80):
            await pilot.resize_terminal(width, 36)
            await ui.still(pilot)
            drawn = ui.screen_text(app)
            area.refresh()
            await ui.still(pilot)
            assert drawn == ui.screen_text(app), width

    ui.run_steered(tmp_path / "s", act, size=(120, 36))


@pytest.mark.slow
def test_a_pasted_reply_needs_a_second_escape(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await pilot.press("Q")
        await ui.until(pilot, lambda: isinstance(app.screen, PromptForm))
        app.screen.query_one("#reply", TextArea).text = "```cpp"
        await pilot.press("escape")
        await pilot.pause()
        assert "Unsaved changes" in message(app)
        await pilot.press("escape")
        await ui.until(pilot, lambda: not isinstance(app.screen, PromptForm))

    ui.run_steered(tmp_path / "s", act, mode="autopilot", opener=ui.FakeOpener(ideas=ui.BY_HAND))


DIALOGS: list[Callable[[], Dialog[object] | Palette]] = [
    lambda: Confirm("Delete?", "", "Delete"),
    lambda: AskLine("Note", ""),
    lambda: Choose("Fork from", [Choice("a", "here")]),
    lambda: HelpScreen(None, (), {}, "keys.toml"),
    lambda: CodeForm("Write", "k.cpp", "", ("k.cpp", "")),
    Palette,
]
NAMES = ["confirm", "line", "choice", "help", "code", "palette"]


@pytest.mark.slow
@pytest.mark.parametrize("make", DIALOGS, ids=NAMES)
def test_ctrl_q_quits_from_a_dialog(make: Callable[[], Dialog[object] | Palette]) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(100, 30)) as pilot:
            app.push_screen(dialog := make())
            await ui.until(pilot, lambda: app.screen is dialog)
            app.post_message(events.Key("ctrl+c", None))
            await ui.until(pilot, lambda: any("Ctrl-Q quits" in one.message for one in app._notifications))
            app.post_message(events.Key("ctrl+q", None))
            await ui.until(pilot, lambda: app._exit)

    asyncio.run(body())


@pytest.mark.slow
def test_ctrl_q_asks_before_typed_text_is_lost() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(100, 30)) as pilot:
            app.push_screen(dialog := AskLine("Note", ""))
            await ui.until(pilot, lambda: app.screen is dialog)
            dialog.query_one(Input).value = "worth keeping"
            for _ in range(3):
                app.post_message(events.Key("ctrl+q", None))
            await ui.until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.pause(0.2)
            assert sum(isinstance(one, Confirm) for one in app.screen_stack) == 1
            await pilot.press("n")
            await ui.until(pilot, lambda: app.screen is dialog)
            assert not app._exit
            await pilot.press("ctrl+q")
            await ui.until(pilot, lambda: isinstance(app.screen, Confirm))
            await pilot.press("y")
            await ui.until(pilot, lambda: app._exit)

    asyncio.run(body())
