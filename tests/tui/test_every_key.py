"""Every key of the registry acts on every screen that it is listed for; help and footer list the keys that act, no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import sessions, stored_showcase, ui
from support.ui import until
from textual.pilot import Pilot
from textual.screen import Screen

from tui import actions
from tui.actions import Place
from tui.app import EspalierApp
from tui.screens.compare import CompareScreen
from tui.screens.gate import GateScreen
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen
from tui.screens.session import SessionScreen
from tui.screens.workloads import WorkloadsScreen
from tui.widgets.key_footer import KeyFooter
from tui.widgets.session_table import SessionTable

Reach = Callable[[EspalierApp, Pilot[None], Path], Awaitable[None]]
"""Goes to a screen."""


async def home(app: EspalierApp, pilot: Pilot[None], folder: Path) -> None:
    await until(pilot, lambda: isinstance(app.focused, SessionTable) and app.focused.sessions)


async def tree(app: EspalierApp, pilot: Pilot[None], folder: Path) -> None:
    await until(pilot, lambda: ui.shows_tree(app))


async def gate(app: EspalierApp, pilot: Pilot[None], folder: Path) -> None:
    if not isinstance(app.screen, GateScreen):
        await tree(app, pilot, folder)
        await pilot.press("i")
    await until(pilot, lambda: isinstance(app.screen, GateScreen))


async def compare(app: EspalierApp, pilot: Pilot[None], folder: Path) -> None:
    await tree(app, pilot, folder)
    await pilot.press("m", "j", "v")
    await until(pilot, lambda: isinstance(app.screen, CompareScreen))


async def workloads(app: EspalierApp, pilot: Pilot[None], folder: Path) -> None:
    await tree(app, pilot, folder)
    await pilot.press("W")
    await until(pilot, lambda: isinstance(app.screen, WorkloadsScreen))


SUITE = ("full", "small")
SCREENS: Mapping[str, tuple[str, Place, type[Screen[Any]], Reach]] = {
    "home": ("home", Place.HOME, HomeScreen, home),
    "tree, steered": ("autopilot", Place.SESSION, SessionScreen, tree),
    "tree, followed": ("follow", Place.SESSION, SessionScreen, tree),
    "tree, replayed": ("replay", Place.SESSION, SessionScreen, tree),
    "gate, steered": ("ask", Place.GATE, GateScreen, gate),
    "gate, followed": ("follow", Place.GATE, GateScreen, gate),
    "compare, steered": ("autopilot", Place.COMPARE, CompareScreen, compare),
    "compare, replayed": ("replay", Place.COMPARE, CompareScreen, compare),
    "workloads": ("autopilot", Place.WORKLOADS, WorkloadsScreen, workloads),
}
"""Name → how the session is opened, the place, the screen, and the way there."""


def shown(how: str, tmp_path: Path, act: Callable[[EspalierApp, Pilot[None]], Awaitable[None]]) -> None:
    """Open a session so, and act."""
    folder = tmp_path / "sessions" / "s"
    if how in ("ask", "autopilot"):

        async def steer(app: EspalierApp, pilot: Pilot[None], watch: ui.Watch) -> None:
            await act(app, pilot)

        ui.run_steered(folder, steer, mode=how, opener=ui.FakeOpener(workloads=SUITE))
        return
    folder.parent.mkdir(parents=True)
    stored_showcase.store(folder)

    async def body() -> None:
        app = ui.app(None, how, None if how == "home" else folder)
        async with app.run_test(size=(120, 40)) as pilot:
            await act(app, pilot)
            await app._leave()

    sessions.run(body)


PAGES = ("idea", "code", "diff", "checks", "timing", "resources", "log")
IN_WIDGETS: Mapping[str, str] = {
    "home:ctrl+home": "scroll_top",
    "workloads:ctrl+home": "scroll_top",
    "gate:enter": "choose",
    **{f"compare:{number}": f"show('{page}')" for number, page in enumerate(PAGES, 1)},
}
"""Keys that the focused list or page takes itself, to the same effect: its call."""


class Recorder:
    """Records the actions that keys call, in place of running them."""

    def __init__(self, app: EspalierApp) -> None:
        self.ran: list[str] = []
        app._dispatch_action = self.dispatch  # type: ignore[method-assign]

    async def dispatch(self, namespace: Any, name: str, parameters: tuple[object, ...]) -> bool:
        if not hasattr(namespace, f"action_{name}") and not hasattr(namespace, f"_action_{name}"):
            return False
        self.ran.append(f"{name}({', '.join(map(repr, parameters))})" if parameters else name)
        return True


def call_of(action: actions.Action) -> str:
    """The call of an action without its namespace."""
    return action.run.removeprefix("app.")


FAST = ("home", "gate, steered", "workloads")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in SCREENS])
def test_every_key_that_help_lists_acts_and_no_other_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    how, place, kind, reach = SCREENS[name]
    wrong: list[str] = []

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await reach(app, pilot, tmp_path)
        await ui.still(pilot)
        screen = app.screen
        assert isinstance(screen, kind)
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        listed = [one for _, group in actions.actions_by_group(place) for one in group if one in app.screen._able]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        footer = [one for one in screen.query_one(KeyFooter).keys if one.action]
        wrong.extend(f"{one.action} is in the footer, not in help" for one in footer if actions.by_id(one.action) not in listed)
        recorder = Recorder(app)
        acts = {key: call_of(one) for one in listed for key in one.key.split(",")}
        offered = (*actions.actions(place), *actions.actions(Place.ANYWHERE))
        own = {call_of(one) for one in offered}
        for key in dict.fromkeys(key for one in offered for key in one.key.split(",")):
            recorder.ran.clear()
            await pilot.press(key)
            call = IN_WIDGETS.get(f"{place}:{key}", acts[key]) if key in acts else ""
            ran = [one for one in recorder.ran if one == call or one in own]
            if ran != ([call] if call else []):
                wrong.append(f"{key} called {recorder.ran}, not {call or 'nothing'}")

    shown(how, tmp_path, act)
    assert not wrong, "\n".join(wrong)
