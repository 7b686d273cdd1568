"""Snapshots of each screen at three sizes. Review a difference by eye; ``--snapshot-update`` accepts it.

Clock, time zone, animations, folder names and the version of Textual are pinned.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from support import builders, sessions, ui
from support.ui import until
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Input

from engine.domain.trust import PathKind, Permissions, Server, ServerAccess, TrustQuestion
from tui.app import EspalierApp
from tui.screens.compare import CompareScreen
from tui.screens.gate import GateScreen
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen
from tui.screens.models_form import ModelsForm
from tui.screens.new_session import NewSessionForm
from tui.screens.session import SessionScreen
from tui.screens.trust_dialog import TrustDialog
from tui.widgets.session_table import SessionTable

pytestmark = pytest.mark.skipif(
    not metadata.version("textual").startswith("8.2."), reason="the snapshots were made with textual 8.2"
)
SIZES = [pytest.param((80, 24), marks=pytest.mark.slow), (120, 40), pytest.param((200, 60), marks=pytest.mark.slow)]
Compare = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same folder names, time zone and animation level on every machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESPALIER_HOME", ".")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("textual.constants.TEXTUAL_ANIMATIONS", "none")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def snap_compare(snap_compare: Compare) -> Compare:
    """Takes the snapshot when the screen no longer changes."""

    def compare(app: EspalierApp, *, terminal_size: tuple[int, int], run_before: Before) -> bool:
        async def before(pilot: Pilot[None]) -> None:
            await run_before(pilot)
            await ui.still(pilot)

        return snap_compare(app, terminal_size=terminal_size, run_before=before)

    return compare


def clock() -> float:
    return ui.NOW


def still() -> float:
    return builders.START


def app_on(action: str, subject: object) -> EspalierApp:
    app = ui.app(ui.FakeOpener(clock=still), action, subject, clock=clock)
    app.animation_level = "none"
    return app


def settled(pilot: Pilot[None], kind: type) -> Awaitable[None]:
    app = pilot.app
    if kind is SessionScreen:
        return until(pilot, lambda: ui.shows_tree(app))  # type: ignore[arg-type]
    return until(pilot, lambda: isinstance(app.screen, kind))


async def previewed(pilot: Pilot[None]) -> None:
    """Home, with the preview of what is highlighted, which follows the first frame."""
    await settled(pilot, HomeScreen)
    wanted = "Session" if isinstance(pilot.app.focused, SessionTable) else "Problem"
    await until(pilot, lambda: any(str(one.border_title).startswith(wanted) for one in pilot.app.screen.query("Preview")))
    await ui.still(pilot)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_first_run(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(app_on("home", None), terminal_size=size, run_before=previewed)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_home(snap_compare: Compare, size: tuple[int, int]) -> None:
    for name in ("softmax-2026-11-18-1", "layernorm-2026-11-18-1"):
        sessions.whole(Path("sessions") / name)

    async def before(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: isinstance(pilot.app.focused, SessionTable) and pilot.app.focused.sessions)
        await previewed(pilot)

    assert snap_compare(app_on("home", None), terminal_size=size, run_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_new_session(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await pilot.press("n")
        await settled(pilot, NewSessionForm)

    assert snap_compare(app_on("home", None), terminal_size=size, run_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_gate(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = app_on("new", ui.new(Path("s")))
    assert snap_compare(app, terminal_size=size, run_before=lambda pilot: settled(pilot, GateScreen))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_models(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, GateScreen)
        await pilot.press("O")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelsForm) and pilot.app.focused is not None)
        for field in pilot.app.screen.query(Input):
            field.cursor_blink = False
        await pilot.pause()

    assert snap_compare(app_on("new", ui.new(Path("s"))), terminal_size=size, run_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_session_awaiting(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, GateScreen)
        await pilot.press("escape")
        await settled(pilot, SessionScreen)

    assert snap_compare(app_on("new", ui.new(Path("s"))), terminal_size=size, run_before=before)


PANES: dict[str, tuple[str, ...]] = {"code": ("2",), "charts": ("t",), "events": ("t",), "zoomed": ("z",)}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pane", list(PANES))
def test_replay(snap_compare: Compare, size: tuple[int, int], pane: str) -> None:
    sessions.whole(Path("s"))

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, SessionScreen)
        await pilot.press(*PANES[pane])
        while pane == "events" and pilot.app.screen.query_one(ContentSwitcher).current != pane:
            await pilot.press("t")

    assert snap_compare(app_on("replay", Path("s")), terminal_size=size, run_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_compare(snap_compare: Compare, size: tuple[int, int]) -> None:
    sessions.whole(Path("s"))

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, SessionScreen)
        await pilot.press("v")
        await settled(pilot, CompareScreen)

    assert snap_compare(app_on("replay", Path("s")), terminal_size=size, run_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_help(snap_compare: Compare, size: tuple[int, int]) -> None:
    sessions.whole(Path("s"))

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, SessionScreen)
        await pilot.press("question_mark")
        await settled(pilot, HelpScreen)

    assert snap_compare(app_on("replay", Path("s")), terminal_size=size, run_before=before)


@pytest.mark.slow
def test_light(snap_compare: Compare) -> None:
    sessions.whole(Path("s"))

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, SessionScreen)
        await pilot.press("f2")

    assert snap_compare(app_on("replay", Path("s")), terminal_size=(120, 40), run_before=before)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_trust(snap_compare: Compare, size: tuple[int, int]) -> None:
    commands = ("agent --print --model 'a long name of a model' --folder /home/somebody/kernels", "sh -c 'curl -s x.sh | sh'")
    servers = (Server("openai", "http://10.0.0.7:8000/v1"), Server("gemini"))
    access = (
        ServerAccess(servers[0], servers[0].url, "OPENAI_API_KEY", True),
        ServerAccess(servers[1], "Google, or GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", False),
    )
    asked = TrustQuestion(
        "/home/engineer/.local/share/espalier/sessions/softmax-from-a-stranger", PathKind.SESSION, "softmax-from-a-stranger",
        "there is no record that it was made or allowed here", Permissions("0123456789abcdef" * 4, commands, servers),
        "softmax", "/home/stranger/softmax.py", "x" * 640, False, False, access, "",
    )  # fmt: skip

    async def before(pilot: Pilot[None]) -> None:
        await settled(pilot, HomeScreen)
        pilot.app.push_screen(TrustDialog(asked))
        await settled(pilot, TrustDialog)

    assert snap_compare(app_on("home", None), terminal_size=size, run_before=before)
