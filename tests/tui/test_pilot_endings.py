"""Screens dismissed twice or while covered, sessions with a deleted folder, internal errors of the terminal UI."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import sessions, ui
from support.ui import until
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static

from engine.cli import exit_codes
from engine.domain.errors import EspalierError
from engine.journal import log_file, store
from tui import app as terminal_ui
from tui.app import EspalierApp
from tui.bridge import Bridge, NewSession, SavedSession, Say
from tui.screens import home as home_screen
from tui.screens.code_form import CodeForm
from tui.screens.dialogs import AskLine, Confirm
from tui.screens.gate import GateScreen
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen
from tui.screens.new_session import NewSessionForm
from tui.screens.open_session import OpenSessionDialog
from tui.screens.session import SessionScreen

On = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


class HeldOpener(ui.FakeOpener):
    """Opens a session only after ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def begin(self, wanted: NewSession, say: Say) -> Bridge:
        await self.go.wait()
        return await super().begin(wanted, say)

    async def resume(self, saved: SavedSession, say: Say) -> Bridge:
        await self.go.wait()
        return await super().resume(saved, say)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    return tmp_path / "sessions"


def at_home(on: On) -> None:
    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and app.screen.is_mounted)
            await on(app, pilot)

    sessions.run(body)


@pytest.mark.slow
def test_an_opened_session_waits_until_its_dialog_is_on_top(home: Path) -> None:
    sessions.whole(home / "old")

    async def body() -> None:
        opener = HeldOpener()
        saved = SavedSession(home / "old", "cpu", "autopilot", fresh=True)
        app = ui.app(opener, "open", saved)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, OpenSessionDialog))
            app.action_help()
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            opener.go.set()
            await pilot.pause(0.2)
            assert isinstance(app.screen, HelpScreen), "the help screen must stay"
            assert opener.resumed == [saved]
            await pilot.press("escape")
            await until(pilot, lambda: ui.shows_tree(app))
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_a_started_session_waits_until_its_form_is_on_top(home: Path) -> None:
    async def body() -> None:
        opener = HeldOpener()
        app = ui.app(opener)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, NewSessionForm))
            await pilot.press("ctrl+s")
            app.action_help()
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            opener.go.set()
            await pilot.pause(0.2)
            assert isinstance(app.screen, HelpScreen)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_escape_after_the_dialog_closed_does_not_close_home(home: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        async def fails(say: Say) -> Bridge:
            raise EspalierError("no such device")

        opening, answers = OpenSessionDialog("Opening", fails), []
        await app.push_screen(opening, answers.append)
        await until(pilot, lambda: answers)
        opening.action_cancel()
        await pilot.pause()
        assert isinstance(app.screen, HomeScreen)
        assert [str(one) for one in answers] == ["no such device"]

    at_home(on)


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda: Confirm("Sure?", "It is.", "Yes"),
    lambda: CodeForm("Write", "a.cpp", "", ("a.cpp", "")),
    lambda: AskLine("Why?", "Words."),
], ids=["confirm", "code", "line"])  # fmt: skip
def test_escape_before_a_dialog_is_drawn_cancels_it(home: Path, make: Callable[[], Screen[object]]) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        answers: list[object] = []
        asked = make()
        drawn = app.push_screen(asked, answers.append)
        asked.action_cancel()  # type: ignore[attr-defined]  # each of these dialogs has it
        await drawn
        await until(pilot, lambda: answers)
        assert isinstance(app.screen, HomeScreen)
        assert not answers[0]

    at_home(on)


@pytest.mark.slow
def test_a_confirmation_focuses_the_safe_answer(home: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await app.push_screen(Confirm("Sure?", "It is.", "Yes"))
        await until(pilot, lambda: app.focused is not None and app.focused.id == "no")

    at_home(on)


@pytest.mark.slow
def test_a_bouncing_key_closes_only_the_gate(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        gate = app.screen
        assert isinstance(gate, GateScreen)
        gate.action_back()
        gate.action_back()
        await pilot.pause()
        assert isinstance(app.screen, SessionScreen)

    ui.run_steered(tmp_path / "s", act)


@pytest.mark.slow
def test_the_gate_does_not_open_over_a_dialog(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        session = app.screen
        assert isinstance(session, SessionScreen)
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        session._offered = frozenset()
        await pilot.pause(0.3)
        assert isinstance(app.screen, AskLine)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, GateScreen))

    ui.run_steered(tmp_path / "s", act)


def with_a_deleted_folder(folder: Path, on: On) -> EspalierApp:
    """Open a session, delete its folder, then run ``on``."""
    made = ui.app(None, "new", ui.new(folder))

    async def body() -> None:
        async with made.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(made.screen, GateScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(made.screen, SessionScreen))
            shutil.rmtree(folder)
            await on(made, pilot)

    sessions.run(body)
    return made


@pytest.mark.slow
def test_a_command_that_cannot_be_recorded_shows_the_error(tmp_path: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        app.screen.query_one(Input).value = "a thought"
        await pilot.press("enter")
        await until(pilot, lambda: any("cannot be written" in one.message for one in app._notifications))
        await app._leave()

    with_a_deleted_folder(tmp_path / "s", on)


@pytest.mark.slow
def test_quitting_a_session_with_a_deleted_folder_reports_the_error(tmp_path: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app.return_code is not None)

    app = with_a_deleted_folder(tmp_path / "s", on)
    assert isinstance(app.fault, EspalierError)
    assert f"session {tmp_path / 's'} cannot be written" in str(app.fault)


@pytest.mark.slow
def test_another_session_opens_after_the_folder_of_the_first_was_deleted(tmp_path: Path) -> None:
    async def on(app: EspalierApp, pilot: Pilot[None]) -> None:
        app._open("New session", lambda say: app.opener.begin(ui.new(tmp_path / "t"), say))
        await until(pilot, lambda: store.is_session(tmp_path / "t") and isinstance(app.screen, GateScreen))
        assert any("cannot be written" in one.message for one in app._notifications)
        await app._leave()

    assert with_a_deleted_folder(tmp_path / "s", on).fault is None


def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EspalierApp, "run", lambda self: App.run(self, headless=True))


@pytest.mark.slow
def test_an_internal_error_is_one_line_with_the_traceback_in_the_log(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(devices: object = ()) -> Static:
        raise LookupError("no [such] thing")

    headless(monkeypatch)
    monkeypatch.setattr(home_screen, "_brand", broken)
    assert exit_codes.exit_status_of(terminal_ui.main) == exit_codes.FAILED
    output = capsys.readouterr().err
    assert output.startswith("espalier: internal error: LookupError: no [such] thing; the traceback is in ")
    assert output.count("\n") == 1
    assert "in broken" in log_file.path().read_text()


@pytest.mark.slow
def test_a_failed_worker_reports_its_own_exception(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> list[store.SessionSummary]:
        raise LookupError("no summaries")

    headless(monkeypatch)
    monkeypatch.setattr(store, "summaries", broken)
    assert exit_codes.exit_status_of(terminal_ui.main) == exit_codes.FAILED
    assert "internal error: LookupError: no summaries; " in capsys.readouterr().err
