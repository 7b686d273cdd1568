"""Home's preview: what a session or a problem is, from journals alone; examples are replayed; the welcome stays beside them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support import sessions, ui
from support.ui import until
from textual.widgets import OptionList

from engine.domain.errors import EspalierError
from engine.journal import store
from tui.app import EspalierApp
from tui.bridge import Bridge, SavedSession, Say
from tui.opener import SessionOpener
from tui.screens.home import HomeScreen
from tui.screens.open_session import OpenSessionDialog
from tui.screens.session import SessionScreen
from tui.viewmodel.preview import problem_lines, session_lines
from tui.widgets.charts import SpeedupChart
from tui.widgets.lines import LinesView
from tui.widgets.session_table import SessionTable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    return tmp_path / "sessions"


def previewed(app: EspalierApp) -> str:
    return "\n".join(line.text for page in app.screen.query("#place LinesView").results(LinesView) for line in page.lines)


@pytest.mark.parametrize("room", [40, 58, 120])
def test_lines_of_a_session_and_of_a_problem_fit(room: int, tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    facts = SessionOpener().preview(tmp_path / "s")
    problem = next(one for one in SessionOpener().problems() if one.name == "softmax")
    for lines in (
        session_lines(facts, room),
        problem_lines(problem, ["s"], facts, room),
        problem_lines(problem, [], None, room),
    ):
        assert all(line.width <= room for line in lines)
    text = "\n".join(line.text for line in session_lines(facts, 120))
    assert "★ k" in text
    for narrow in (40, 58):
        shown = " ".join(" ".join(line.text for line in session_lines(facts, narrow)).split())
        assert " ".join(facts.lines[2].text.split()) in shown, "its progress is wrapped, not cut"
    assert "Last events" in text, "nobody decided on autopilot"
    text = "\n".join(line.text for line in problem_lines(problem, ["s"], facts, 120))
    assert "PyTorch  eager" in text
    assert "batch_size 4096" in text
    assert "class Model(nn.Module):" in text


@pytest.mark.slow
def test_a_cursor_that_moves_while_the_preview_is_made_is_followed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.screens.home._REST_SECONDS", 0)
    sessions.whole(home / "old")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            screen = app.screen
            assert isinstance(screen, HomeScreen)
            while "Last events" not in previewed(app):
                screen._describe()
                await pilot.pause(0.002)

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 100])
def test_what_is_wrong_with_a_damaged_session_is_shown_whole(home: Path, columns: int) -> None:
    sessions.whole(home / "old")
    journal = home / "old" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"\n", b"\n{broken\n", 1))

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(columns, 40)) as pilot:
            await until(pilot, lambda: "keep its" in previewed(app))
            assert all(
                line.width < columns for page in app.screen.query("#place LinesView").results(LinesView) for line in page.lines
            )

    asyncio.run(body())


@pytest.mark.slow
def test_the_preview_follows_cursor_and_focus(home: Path) -> None:
    sessions.whole(home / "old")

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "Last events" in previewed(app))
            chart = app.screen.query_one(SpeedupChart)
            assert chart.display
            assert chart.state is not None
            await pilot.press("tab")
            await until(pilot, lambda: "class Model" in previewed(app))
            assert not chart.display
            await pilot.resize_terminal(40, 12)
            await until(pilot, lambda: not app.screen.query_one("#place").display)
            await pilot.resize_terminal(80, 24)
            await until(pilot, lambda: app.screen.query_one("#place").size.height > 0)

    sessions.run(body)


@pytest.mark.slow
def test_examples_are_replayed_and_the_welcome_stays(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.whole(tmp_path / "shipped" / "softmax")
    sessions.whole(tmp_path / "shipped" / "softmax_autopilot")
    monkeypatch.setattr(store, "shipped_root", lambda: tmp_path / "shipped")
    monkeypatch.setattr(store, "is_shipped", lambda folder: folder.parent == tmp_path / "shipped")
    before = (tmp_path / "shipped" / "softmax" / "journal.jsonl").read_bytes()

    async def body() -> None:
        app = ui.app()
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and app.screen.has_class("-fresh"))
            assert isinstance(app.focused, OptionList), "two Enters start a session"
            assert app.screen.query_one("#welcome").display
            listed = [one.name for one in app.screen.query_one(SessionTable).sessions]
            assert listed == ["softmax", "softmax_autopilot"], "the later one nobody steered"
            await pilot.press("shift+tab", "delete")
            await until(pilot, lambda: any("it is not deleted" in one.message for one in app._notifications))
            assert "Delete" not in ui.screen_text(app).splitlines()[-1]
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            assert isinstance(app.screen, SessionScreen)
            assert app.screen.bridge.transport is not None, "a replay"
            await app._leave()

    sessions.run(body)
    assert (tmp_path / "shipped" / "softmax" / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_until_the_first_session_is_open_home_says_so_and_only_quits(home: Path, tmp_path: Path, own: bool) -> None:
    """Keys typed early would otherwise start a search; afterwards the focus is where it always is."""
    folder = (home if own else tmp_path) / "old"
    sessions.whole(folder)
    released = threading.Event()

    class Waiting(ui.FakeOpener):
        def replay(self, folder: Path) -> Bridge:
            released.wait()
            return super().replay(folder)

    async def body() -> None:
        app = ui.app(Waiting(), "replay", folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: len(app.screen.query("#about")) > 0)
            await pilot.press("n", "enter", "down", "enter")
            await pilot.pause(0.2)
            shown = ui.screen_text(app)
            assert "Opening …" in shown
            assert "new session" not in shown.lower()
            assert "Problems" not in shown
            assert isinstance(app.screen, HomeScreen)
            released.set()
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and app.screen._was_read)
            await until(pilot, lambda: app.focused is not None)
            assert app.focused is not None
            assert app.focused.id == ("sessions" if own else "problems")
            assert "Problems" in ui.screen_text(app)

    asyncio.run(body())


@pytest.mark.slow
def test_home_lists_the_sessions_if_the_first_one_cannot_be_opened(home: Path) -> None:
    sessions.whole(home / "old")

    class Failing(ui.FakeOpener):
        def replay(self, folder: Path) -> Bridge:
            raise EspalierError("it is damaged")

    async def body() -> None:
        app = ui.app(Failing(), "replay", home / "old")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.focused is not None and app.focused.id == "sessions")
            await until(pilot, lambda: any(one.message == "it is damaged" for one in app._notifications))
            assert "Opening" not in ui.screen_text(app)

    asyncio.run(body())


@pytest.mark.slow
def test_home_behind_the_opening_dialog_lists_the_sessions(home: Path) -> None:
    sessions.whole(home / "old")
    released = asyncio.Event()

    class Waiting(ui.FakeOpener):
        async def resume(self, saved: SavedSession, say: Say) -> Bridge:
            await released.wait()
            return await super().resume(saved, say)

    async def body() -> None:
        app = ui.app(Waiting(), "open", SavedSession(home / "old"))
        async with app.run_test(size=(120, 40)) as pilot:
            screen = app.screen_stack[1]
            assert isinstance(screen, HomeScreen)
            await until(pilot, lambda: isinstance(app.screen, OpenSessionDialog))
            await until(pilot, lambda: len(screen.query(LinesView)) > 0)
            told = []
            for _ in range(40):
                told.append("\n".join(line.text for page in screen.query(LinesView) for line in page.lines))
                await pilot.pause(0.02)
            assert not any("No session yet" in one for one in told), "nothing is known yet"
            await until(pilot, lambda: len(screen._sessions_table.sessions) > 0, "the sessions are listed behind the dialog")
            released.set()
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))

    asyncio.run(body())
