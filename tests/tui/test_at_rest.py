"""A screen on which nothing happens draws nothing: over SSH every redraw costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import sessions, ui
from support.ui import until
from textual._compositor import LayoutUpdate

from tui.screens import steering
from tui.screens.session import SessionScreen
from tui.screens.steering import BridgeScreen


@pytest.mark.parametrize("size", [(120, 40), pytest.param((200, 60), marks=pytest.mark.slow)])
@pytest.mark.parametrize("keys", [("comma", "comma"), ("left_square_bracket", "t")])
def test_a_paused_replay_draws_nothing(
    keys: tuple[str, ...], size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)
    drawn: list[object] = []

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            await pilot.press(*keys)
            await ui.still(pilot)
            await pilot.pause(0.5)
            display = app._display

            def counted(screen: Any, renderable: Any) -> None:
                drawn.append(renderable)
                display(screen, renderable)

            monkeypatch.setattr(app, "_display", counted)
            drains = 0
            drain = app.screen.drain  # type: ignore[attr-defined]
            while drains < 10:
                drain()
                drains += 1
                await asyncio.sleep(0.02)

    asyncio.run(act())
    assert drawn == []


def test_an_event_repaints_what_it_changes_and_not_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)
    drawn: list[object] = []

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            await pilot.press("comma", "comma")
            await ui.still(pilot)
            display = app._display

            def noted(screen: Any, renderable: Any) -> None:
                drawn.append(renderable)
                display(screen, renderable)

            monkeypatch.setattr(app, "_display", noted)
            await pilot.press("comma")
            await until(pilot, lambda: bool(drawn))
            await ui.still(pilot)

    asyncio.run(act())
    assert drawn
    assert not [one for one in drawn if isinstance(one, LayoutUpdate)]


@pytest.mark.parametrize(
    ("transport", "started", "is_run", "frames"),
    [
        pytest.param(None, {"measure:k1:0": 1}, True, 10, id="work runs"),
        pytest.param(None, {"measure:k1:0": 1}, False, 3, id="no process runs it"),
        pytest.param(SimpleNamespace(position=0, playing=True, speed=1.0), {"measure:k1:0": 1}, True, 30, id="a replay plays"),
        pytest.param(None, {}, True, 3, id="nothing happens"),
    ],
)
def test_frames_in_three_seconds(
    transport: object, started: dict[str, int], is_run: bool, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(BridgeScreen):
        is_active = True  # type: ignore[assignment]  # no app is needed
        drained = 0

        def drain(self) -> None:
            self.drained += 1
            self._drawn_at = steering.time.monotonic()

    ticks = iter(range(1000, 2000))
    now = [0.0]
    monkeypatch.setattr(steering.time, "monotonic", lambda: now[0])
    state = SimpleNamespace(started=started)
    bridge = SimpleNamespace(state=state, transport=transport, fault="", stopped={}, is_run=is_run)
    screen = Counted(bridge)  # type: ignore[arg-type]
    screen.set_reactive(BridgeScreen.state, state)
    for _ in range(30):
        now[0] = next(ticks) / 10
        screen._next_frame()
    assert screen.drained == frames


def test_a_screen_looks_for_changes_once_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "session"
    looking: list[str] = []
    sessions.whole(folder)
    usual = BridgeScreen.set_interval

    def counted(screen: BridgeScreen, interval: float, *rest: Any, **more: Any) -> Any:
        if screen._next_frame in rest:
            looking.append(type(screen).__name__)
        return usual(screen, interval, *rest, **more)

    monkeypatch.setattr(BridgeScreen, "set_interval", counted)

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            await pilot.press("i")
            await until(pilot, lambda: looking[1:])
            await pilot.press("escape", "m", "down", "v")
            await until(pilot, lambda: looking[2:])

    asyncio.run(act())
    assert looking == ["SessionScreen", "GateScreen", "CompareScreen"]
