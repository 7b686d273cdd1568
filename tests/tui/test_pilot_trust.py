"""On the screen, a session from elsewhere asks before it runs anything; replay, follow and cancel run nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import forged, sessions, ui
from support.model_servers import OPENAI_KEY, OpenAIServer
from support.pretended import PretendedBench
from support.ui import until
from textual.pilot import Pilot

from engine.domain.settings import ModelServer
from engine.journal import store
from engine.session import benches, trust
from tui.app import EspalierApp
from tui.bridge import Capability, SavedSession
from tui.opener import SessionOpener
from tui.screens.home import HomeScreen
from tui.screens.session import SessionScreen
from tui.screens.transport import TransportScreen
from tui.screens.trust_dialog import TrustDialog

Act = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "s"
    sessions.whole(folder)
    return folder


@pytest.fixture
def stranger(tmp_path: Path, original: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session whose reference, proposer and writer leave a file, open after its first round."""
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(benches, "TrialBench", PretendedBench)
    commands = forged.with_settings(source=forged.touching(marker), writer=forged.touching(marker))
    folder = tmp_path / "home" / "sessions" / "stranger"
    return forged.forge(original, folder, forged.with_reference(marker), commands, rounds=1)


def run(action: str, subject: object, act: Act) -> None:
    async def body() -> None:
        app = EspalierApp(SessionOpener(), action, subject, keymap=Path(ui.own_folder(), "keys.toml"), colours="truecolor")
        async with app.run_test(size=(120, 40)) as pilot:
            await act(app, pilot)
            await app._leave()

    sessions.run(body)


def opened_to_steer(app: EspalierApp) -> bool:
    return app._search is not None


def replayed(app: EspalierApp) -> bool:
    screen = app.screen
    return isinstance(screen, SessionScreen) and screen.bridge.can(Capability.SEEK)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["escape", "enter", "r"])
def test_nothing_runs_before_the_session_is_trusted(stranger: Path, marker: Path, key: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: isinstance(app.screen, TrustDialog))
        await pilot.press(key)
        await until(pilot, lambda: replayed(app) if key == "r" else isinstance(app.screen, HomeScreen))
        if key == "r":
            await pilot.press("home", "space", "end")
        assert not opened_to_steer(app)

    run("open", SavedSession(stranger), act)
    assert not marker.exists()
    assert not trust.is_trusted(stranger, store.state_of(stranger))


@pytest.mark.slow
def test_what_is_trusted_on_the_screen_runs(stranger: Path, marker: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: isinstance(app.screen, TrustDialog))
        await pilot.press("t")
        await until(pilot, lambda: opened_to_steer(app))

    run("open", SavedSession(stranger), act)
    assert trust.is_trusted(stranger, store.state_of(stranger))


@pytest.mark.slow
def test_a_session_on_the_home_screen_asks(stranger: Path, marker: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.focused is not None and app.focused.id == "sessions")
        for key, shown in [("enter", TrustDialog), ("o", TrustDialog)]:
            await pilot.press(key)
            await until(pilot, lambda kind=shown: isinstance(app.screen, kind))  # type: ignore[misc]
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, HomeScreen))
        await pilot.press("r")
        await until(pilot, lambda: replayed(app))
        await pilot.press("q")

    run("home", None, act)
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize("action", ["replay", "follow"])
def test_watching_asks_nothing_and_runs_nothing(stranger: Path, marker: Path, action: str) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: ui.shows_tree(app))
        await pilot.press("1", "2", "3", "4", "5", "6", "7")
        assert not opened_to_steer(app)

    run(action, stranger, act)
    assert not marker.exists()


@pytest.mark.slow
def test_a_fork_from_the_screen_asks_once_and_is_one_copy(stranger: Path, marker: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: replayed(app))
        app.screen.post_message(TransportScreen.ForkRequested(stranger, 5))
        await until(pilot, lambda: isinstance(app.screen, TrustDialog))
        await pilot.press("t")
        await until(pilot, lambda: opened_to_steer(app))

    run("replay", stranger, act)
    assert len(list(stranger.parent.iterdir())) == 2


@pytest.mark.slow
def test_no_key_leaves_before_trust_and_only_then(stranger: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    with OpenAIServer(["no ideas"]) as server:
        with_key = ModelServer("openai", server.url, "OPENAI_API_KEY")
        settings = forged.with_settings(source="openai:some-model", servers=(with_key,))
        folder = forged.forge(original, stranger.parent / "asking", settings, rounds=1)

        async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
            await until(pilot, lambda: isinstance(app.screen, TrustDialog))
            assert server.requests == []
            await pilot.press("t")
            await until(pilot, lambda: server.requests)

        run("open", SavedSession(folder), act)
        assert {request.key for request in server.requests} == {OPENAI_KEY}
