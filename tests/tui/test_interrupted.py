"""A session whose process has ended, followed: what was begun does not run, and the screen says how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sessions, ui
from support.ui import until
from textual.pilot import Pilot

from engine.domain.errors import ProblemError
from engine.domain.events import WorkStarted
from engine.journal import journal
from engine.journal.lock import WriterLock
from engine.session.factory import SavedSession
from tui.app import EspalierApp
from tui.bridge import Bridge, Say


def interrupted(folder: Path, kind: str) -> None:
    """A session that ended right after work of this kind began."""
    sessions.whole(folder)
    entries = journal.read(folder).entries
    begun = [n for n, one in enumerate(entries) if isinstance(one.event, WorkStarted) and one.event.work.startswith(kind)]
    file = folder / "journal.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[: begun[0] + 1]))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "running"), [("prepare", "preparing"), ("verify", "verifying"), ("measure", "measuring")])
def test_no_work_is_said_to_run_in_a_session_that_no_process_runs(kind: str, running: str, tmp_path: Path) -> None:
    interrupted(tmp_path / "s", kind)

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "No process runs this session" in ui.screen_text(app))
        shown = ui.screen_text(app)
        assert "not running" in shown
        assert "1 task interrupted" in shown
        assert running not in shown.replace(f"0 {running}", "")
        lock = WriterLock(tmp_path / "s")
        await until(pilot, lambda: "following" in ui.screen_text(app))
        assert "No process" not in ui.screen_text(app)
        lock.release()

    async def body() -> None:
        app = ui.app(None, "follow", tmp_path / "s")
        async with app.run_test(size=(120, 40)) as pilot:
            await act(app, pilot)
            await app._leave()

    sessions.run(body)


@pytest.mark.slow
def test_why_a_session_cannot_be_resumed_here_stays_on_the_screen(tmp_path: Path) -> None:
    """A notice vanishes, and the command that the screen then named was the one that had failed."""

    class Elsewhere(ui.FakeOpener):
        async def resume(self, saved: SavedSession, say: Say) -> Bridge:
            raise ProblemError("no GPU found, and k1 is a cuda kernel")

    interrupted(tmp_path / "s", "verify")

    async def body() -> None:
        app = ui.app(Elsewhere(), "open", SavedSession(tmp_path / "s"))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: "not running" in ui.screen_text(app))
            app.clear_notifications()
            await until(pilot, lambda: not app._notifications)
            await ui.still(pilot)
            assert "no GPU found, and k1 is a cuda kernel" in ui.screen_text(app)
            assert "espalier open" not in ui.screen_text(app)
            await app._leave()

    sessions.run(body)
