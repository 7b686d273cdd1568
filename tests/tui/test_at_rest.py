"""A screen on which nothing happens draws nothing: over SSH every redraw costs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import sessions, ui
from support.ui import until
from textual._compositor import LayoutUpdate

from engine.domain.state import SessionState
from engine.domain.work_key import WorkKey
from tui.screens import bridge_screen
from tui.screens.bridge_screen import BridgeScreen
from tui.screens.gate import GateScreen
from tui.screens.session import SessionScreen
from tui.widgets.bars import TransportBar


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


@pytest.mark.slow
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


class _Screen(BridgeScreen):
    """Without an app: its timers fire when ``run`` reaches their time."""

    is_seen = True
    _is_seen = property(lambda screen: screen.is_seen)  # type: ignore[assignment]

    def __init__(self, bridge: Any, now: list[float]) -> None:
        super().__init__(bridge)
        self.now = now
        self.timers: list[tuple[float, Any, SimpleNamespace]] = []
        self.frames: list[float] = []

    def set_timer(self, delay: float, callback: Any = None, **_: Any) -> Any:
        timer = SimpleNamespace()
        entry = (self.now[0] + delay, callback, timer)
        timer.stop = lambda: self.timers.remove(entry)
        self.timers.append(entry)
        return timer

    def update_live(self) -> None:
        self.frames.append(round(self.now[0], 3))

    def run(self, until: float, changes: Iterable[float] = ()) -> None:
        left = sorted(changes)
        while True:
            timer = min(self.timers, key=lambda one: one[0], default=None)
            if left and (timer is None or left[0] < timer[0]):
                self.now[0] = left.pop(0)
                self.draw_soon()
            elif timer is not None and timer[0] <= until:
                self.timers.remove(timer)
                self.now[0] = timer[0]
                timer[1]()
            else:
                return


@pytest.fixture
def screen_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., _Screen]:
    """A screen over a session in which this work runs."""
    now = [100.0]
    app = SimpleNamespace(batch_update=contextlib.nullcontext)
    monkeypatch.setattr(bridge_screen.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bridge_screen, "is_going", lambda screen: False)
    monkeypatch.setattr(_Screen, "app", app)

    def made(*started: str, transport: object = None, is_run: bool = True) -> _Screen:
        state = SessionState(started=dict.fromkeys(map(WorkKey.parse, started), 1))
        screen = _Screen(SimpleNamespace(state=state, transport=transport, is_run=is_run), now)
        screen.set_reactive(BridgeScreen.state, state)
        screen.drain()
        return screen

    return made


WORK = "measure:k1:0"


@pytest.mark.parametrize(
    ("started", "more", "frames"),
    [
        pytest.param((), {}, [100.0, 101.0, 102.0, 103.0], id="nothing runs"),
        pytest.param((WORK,), {"is_run": False}, [100.0, 101.0, 102.0, 103.0], id="no process runs it"),
        pytest.param((WORK,), {"transport": SimpleNamespace()}, [100.0, 101.0, 102.0, 103.0], id="a replay"),
        pytest.param((WORK,), {}, [100 + quarter / 4 for quarter in range(13)], id="work runs"),
    ],
)
def test_the_clock_of_a_screen_that_is_seen(
    screen_of: Callable[..., _Screen], started: tuple[str, ...], more: dict[str, Any], frames: list[float]
) -> None:
    screen = screen_of(*started, **more)
    screen.run(103.0)
    assert screen.frames == frames


def test_a_hidden_screen_draws_changes_alone(screen_of: Callable[..., _Screen]) -> None:
    screen = screen_of()
    screen.is_seen = False
    screen.run(103.0)
    assert screen.frames == [100.0, 101.0]
    screen.run(110.0, [105.0])
    assert screen.frames == [100.0, 101.0, 105.0]
    assert not screen.timers


def test_changes_are_drawn_at_once_and_at_most_ten_times_a_second(screen_of: Callable[..., _Screen]) -> None:
    screen = screen_of()
    screen.run(100.9, [100.5, 100.51, 100.52, 100.8])
    assert screen.frames == [100.0, 100.5, 100.6, 100.8]


def test_changes_are_drawn_less_often_while_work_runs(screen_of: Callable[..., _Screen]) -> None:
    screen = screen_of(WORK)
    screen.run(100.9, [100.01, 100.1, 100.2, 100.3])
    assert screen.frames == [100.0, 100.25, 100.5, 100.75]


@pytest.mark.slow
def test_a_closed_screen_is_told_of_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            bridge = app.screen.bridge  # type: ignore[attr-defined]
            assert len(bridge._watchers) == 1
            await pilot.press("i")
            await until(pilot, lambda: len(bridge._watchers) == 2)
            await pilot.press("escape")
            await until(pilot, lambda: len(bridge._watchers) == 1)

    asyncio.run(act())


@pytest.mark.slow
def test_playing_pausing_and_speed_are_drawn_without_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)
    monkeypatch.setattr(bridge_screen, "_CLOCK_SECONDS", 3600.0)

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            bar = app.screen.query_one(TransportBar)
            await pilot.press("space")
            await until(pilot, lambda: bar.playing)
            await pilot.press("space")
            await until(pilot, lambda: not bar.playing)
            await pilot.press("plus")
            await until(pilot, lambda: bar.speed == 2.0)
            await pilot.press("full_stop")
            position = app.screen.bridge.transport.position  # type: ignore[attr-defined]
            await until(pilot, lambda: bar.position == position)

    asyncio.run(act())


@pytest.mark.slow
def test_a_screen_that_is_being_closed_is_not_seen(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    sessions.whole(folder)

    async def act() -> None:
        app = ui.app(action="replay", subject=folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, SessionScreen) and ui.shows_tree(app))
            await pilot.press("i")
            await until(pilot, lambda: isinstance(app.screen, GateScreen))
            gate = app.screen
            assert isinstance(gate, GateScreen)
            removal = app.pop_screen()
            gate.drain()
            await removal

    asyncio.run(act())
