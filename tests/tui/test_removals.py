"""A screen is removed at any time, before its widgets are there too, and the program goes on or ends without a traceback."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sessions, storm, ui
from textual import work
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import TextArea
from textual.worker import WorkerCancelled

from tui import actions
from tui.app import EspalierApp
from tui.bridge import Bridge, SavedSession
from tui.opener import SessionOpener
from tui.screens.compare import CompareScreen
from tui.screens.dialogs import Choice, Choose, Confirm
from tui.screens.gate import GateScreen
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen
from tui.screens.open_session import OpenSessionDialog
from tui.screens.seed_form import SeedForm, bank
from tui.screens.session import SessionScreen


class _Asking(Screen[None]):
    """A screen with an action that asks."""

    @work
    async def ask(self) -> None:
        await self.app.push_screen_wait(Confirm("Really?", "", "Yes"))


async def hears(app: EspalierApp) -> None:
    """Wait until the app handles a message. Raises TimeoutError if it does not."""
    heard = asyncio.Event()
    app.call_later(heard.set)
    await asyncio.wait_for(heard.wait(), 20)


@pytest.mark.slow
def test_a_screen_that_asks_while_it_closes_leaves_the_app_running() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test() as pilot:
            screen = _Asking()
            await app.push_screen(screen)
            app.pop_screen()
            screen.ask()
            await pilot.pause()
            await hears(app)

    asyncio.run(body())


async def _no_room() -> bool:
    return False


SCREENS: dict[str, Callable[[Bridge], Screen[Any]]] = {
    "session": SessionScreen,
    "gate": GateScreen,
    "compare": lambda bridge: CompareScreen(bridge, "k1", "k2"),
    "help": lambda bridge: HelpScreen(None, (), {}, ""),
    "choose": lambda bridge: Choose("Which?", [Choice("a", "a")]),
    "home": lambda bridge: HomeScreen(ui.FakeOpener(), float, lambda: None, _no_room),
}
TURNS = (0, 2)
"""Turns of the event loop after which a screen is removed."""


async def turn(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.mark.slow
def test_screens_close_before_their_widgets_are_there(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")

    async def body() -> None:
        app = ui.app()
        async with app.run_test():
            for make, turns in itertools.product(SCREENS.values(), TURNS):
                app.push_screen(make(SessionOpener().follow(tmp_path / "s")))
                await turn(turns)
                app.pop_screen()
                await hears(app)
        assert app.fault is None

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 8])
def test_the_program_ends_before_widgets_are_there(turns: int, tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")

    async def body() -> None:
        app = ui.app()
        async with app.run_test():
            for make in SCREENS.values():
                app.push_screen(make(SessionOpener().follow(tmp_path / "s")))
            await turn(turns)
            app.exit()
        assert app.fault is None

    asyncio.run(body())


class _Writing(Screen[None]):
    """A screen that gives the focus to a text."""

    def compose(self) -> ComposeResult:
        yield TextArea("")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["pop_screen", "exit"])
def test_a_screen_that_goes_before_it_gives_the_focus(end: str) -> None:
    async def body(turns: int) -> None:
        app = ui.app()
        async with app.run_test():
            app.push_screen(_Writing())
            await turn(turns)
            getattr(app, end)()
            if end == "pop_screen":
                await hears(app)
        assert app.fault is None

    for turns in range(12):
        asyncio.run(body(turns))


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(0, 16, 3))
def test_opening_a_session_is_cancelled_while_the_terminal_changes_its_size(turns: int) -> None:
    async def open_never(_: object) -> Bridge:
        await asyncio.Event().wait()
        raise AssertionError

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            dialog = OpenSessionDialog("Opening", open_never)
            app.push_screen(dialog)
            await turn(turns)
            storm.resize(app, 80, 24)
            if app.screen is dialog:
                dialog.dismiss(None)
            await pilot.pause()
            await hears(app)

    asyncio.run(body())


@pytest.mark.slow
def test_a_key_that_is_handled_after_its_screen_was_removed_does_nothing(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")

    async def body() -> None:
        app = ui.app()
        bridge = await ui.FakeOpener().resume(SavedSession(tmp_path / "s"), lambda _: None)
        async with app.run_test():
            screen = SessionScreen(bridge)
            await app.push_screen(screen)
            await app.pop_screen()
            for action in (one for one in actions.ACTIONS if actions.Place.SESSION in one.places):
                assert not await app.run_action(action.run, screen)
            await hears(app)
        await bridge.close()

    asyncio.run(body())


@pytest.mark.slow
def test_a_form_is_left_while_it_reads_the_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.whole(tmp_path / "s")

    async def body() -> None:
        app = ui.app()
        async with app.run_test():
            form, read = SeedForm(SessionOpener().follow(tmp_path / "s"), ""), threading.Event()
            monkeypatch.setattr(bank, "banked_kernels", lambda: read.wait() and ())
            await app.push_screen(form)
            await form.query("*").remove()  # as while it closes: its widgets go first
            form._pruning = True
            read.set()
            await asyncio.wait_for(app.workers.wait_for_complete([one for one in app.workers if one.node is form]), 20)

    with pytest.raises(WorkerCancelled):
        asyncio.run(body())


class _AskingFirst(Screen[None]):
    """A screen with an action that asks, then looks for its widgets."""

    @work
    async def ask(self) -> None:
        await self.app.push_screen_wait(Confirm("Really?", "", "Yes"))
        self.query_one("#gone")


@pytest.mark.slow
def test_a_screen_is_left_while_its_question_is_open() -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test() as pilot:
            screen = _AskingFirst()
            await app.push_screen(screen)
            asking = screen.ask()
            await ui.until(pilot, lambda: isinstance(app.screen, Confirm))
            screen._pruning = True  # as while it closes
            await pilot.press("y")
            await asyncio.wait_for(app.workers.wait_for_complete([asking]), 20)

    with pytest.raises(WorkerCancelled):
        asyncio.run(body())


@pytest.mark.slow
def test_the_program_ends_while_a_session_is_read(tmp_path: Path) -> None:
    reading, read = threading.Event(), threading.Event()

    class SlowOpener(ui.FakeOpener):
        def replay(self, folder: Path) -> Bridge:
            reading.set()
            read.wait(20)
            return super().replay(folder)

    sessions.whole(tmp_path / "s")

    async def body() -> None:
        app = ui.app(SlowOpener(), "replay", tmp_path / "s")
        async with app.run_test() as pilot:
            await ui.until(pilot, reading.is_set)
            app.exit()
            read.set()
            watching = [one for one in app.workers if one.group == "watch"]
            await asyncio.wait_for(asyncio.gather(*(one.wait() for one in watching), return_exceptions=True), 20)
        assert app.fault is None
        assert all(one.is_cancelled for one in watching)

    asyncio.run(body())
