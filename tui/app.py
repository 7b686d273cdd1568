"""The app: themes, keys, which screen is shown, and the workers that a search lives in. No logic of a search.

``main`` is what the command line calls. Loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

import platformdirs
from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.command import Provider
from textual.driver import Driver
from textual.screen import Screen
from textual.worker import Worker, WorkerFailed, WorkerState

from engine.cli.ending import BAD_INPUT, DONE, LogFile
from engine.domain.errors import EspalierError, JournalError
from tui import actions, theme
from tui.bridge import Bridge, Capability, Doors, EngineDoors, NewSession, Say
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen, How
from tui.screens.opening import Open, Opening
from tui.screens.palette import ActionProvider, NodeProvider, place_of
from tui.screens.prompts import Confirm
from tui.screens.replaying import TransportScreen
from tui.screens.session import SessionScreen
from tui.terminal import LAST_SECONDS, TerminalDriver, Vanished, end_within, resumable


def keymap_file() -> Path:
    """Where a person's own keys are: ``keys.toml`` in the user's folder of settings."""
    return platformdirs.user_config_path("espalier") / "keys.toml"


class EspalierApp(App[None]):
    """One process, at most one search: two would disturb each other's clocks."""

    TITLE = "Espalier"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.ANYWHERE)]
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ActionProvider, NodeProvider}

    def __init__(
        self,
        doors: Doors | None = None,
        action: str = "home",
        subject: object = None,
        *,
        clock: Callable[[], float] = time.time,
        keymap: Path | None = None,
        colours: str | None = None,
    ) -> None:
        """``action`` and ``subject``: as ``main`` is given them.

        ``colours``: what the terminal can show, as rich names it; asked of the terminal where it is not given.
        """
        super().__init__()
        self._colours = colours or self.console.color_system
        self.doors = doors or EngineDoors()
        self.clock = clock
        self._first = (action, subject)
        self._keymap_file = keymap or keymap_file()
        self._own_keys: dict[str, str] = {}
        self._search: Bridge | None = None
        """The session that this process is searching, if any; it goes on while other screens are shown."""
        self._leaving = False
        self.fault: BaseException | None = None
        """What ended the face against the engineer's wish; it is for the command line to say, once the terminal is its own."""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(theme.variable_defaults(self.current_theme.dark))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """None but the registry's own, which ``ActionProvider`` offers."""
        return ()

    def on_mount(self) -> None:
        for one in theme.THEMES:
            self.register_theme(one)
        self.theme = theme.suited(self._colours)
        keys, wrong = actions.read_keymap(self._keymap_file)
        self._own_keys = dict(keys)
        self.set_keymap(keys)
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            self.notify(f"{wrong[0]}{more}", severity="warning", markup=False, timeout=15)
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._told_to_go)
        self.push_screen(HomeScreen(self.doors, self.clock, self._searched, behind=self._first[0] != "home"))
        self.call_after_refresh(self._begin_with)

    def _searched(self) -> Path | None:
        return self._search.folder if self._search is not None else None

    def _begin_with(self) -> None:
        match self._first:
            case ("new", NewSession() as wanted):
                self._open(f"New session: {wanted.problem.name}", partial(self.doors.begin, wanted))
            case ("open", Path() as folder):
                self._want(folder, How.STEER)
            case ("replay", Path() as folder):
                self._want(folder, How.REPLAY)
            case ("follow", Path() as folder):
                self._want(folder, How.FOLLOW)
            case _:
                pass

    @on(HomeScreen.Wanted)
    def _wanted(self, event: HomeScreen.Wanted) -> None:
        self._want(event.folder, event.how)

    @on(HomeScreen.Begun)
    async def _begun(self, event: HomeScreen.Begun) -> None:
        await self._show(event.bridge)

    @on(TransportScreen.Forked)
    def _forked(self, event: TransportScreen.Forked) -> None:
        async def go_on(say: Say) -> Bridge:
            say("copying what happened until here")
            folder = await asyncio.to_thread(self.doors.fork, event.folder, event.position)
            return await self.doors.resume(folder, say)

        self._open(f"Fork of {event.folder.name}", go_on)

    def _want(self, folder: Path, how: How) -> None:
        running = self._search
        if running is not None and running.folder == folder and how is not How.REPLAY:
            self.push_screen(SessionScreen(running, self.clock))
        elif how is How.STEER:
            self._open(f"Opening {folder.name}", partial(self.doors.resume, folder), folder)
        else:
            self._watch(folder, how)

    @work(group="watch", exclusive=True)
    async def _watch(self, folder: Path, how: How) -> None:
        try:
            bridge = await asyncio.to_thread(self.doors.replay if how is How.REPLAY else self.doors.follow, folder)
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False, timeout=10)
        else:
            await self._show(bridge)

    @work(group="open", exclusive=True)
    async def _open(self, title: str, opening: Open, folder: Path | None = None) -> None:
        """Open a session to steer it; one that cannot be is offered to be watched."""
        if not await self._lay_down():
            return
        found = await self.push_screen_wait(Opening(title, opening))
        match found:
            case Bridge():
                await self._show(found)
            case EspalierError():
                self.notify(str(found), severity="error", markup=False, timeout=15)
                if folder is not None:
                    self._watch(folder, How.FOLLOW)
            case None:
                pass

    async def _lay_down(self) -> bool:
        """Make room for another search: only one at a time measures."""
        running = self._search
        if running is None:
            return True
        words = f"{running.name} is being searched here, and two searches disturb each other's times. It stays resumable."
        if running.in_hand and not await self.push_screen_wait(Confirm("Lay the other session down?", words, "Lay it down")):
            return False
        await self._let_go(running)
        return True

    async def _show(self, bridge: Bridge) -> None:
        if bridge.can(Capability.SUBMIT):
            if self._search is not None:
                await self._let_go(self._search)
            self._search = bridge
            self.run_worker(bridge.run(), name="run", group="engine", exit_on_error=False)
        self.run_worker(bridge.pump(), name="pump", group=f"pump-{id(bridge)}", exit_on_error=False)
        self.push_screen(SessionScreen(bridge, self.clock))

    @on(SessionScreen.Left)
    async def _left(self) -> None:
        screen = self.screen
        if isinstance(screen, SessionScreen):
            self.pop_screen()
            if screen.bridge is not self._search:
                await self._let_go(screen.bridge)

    @on(Worker.StateChanged)
    def _worker_ended(self, event: Worker.StateChanged) -> None:
        worker = event.worker
        if event.state is WorkerState.ERROR and worker.name in ("run", "pump") and worker.error is not None:
            logging.getLogger(__name__).error("the session's %s ended", worker.name, exc_info=worker.error)
            words = str(worker.error) if isinstance(worker.error, JournalError) else f"a fault of the program: {worker.error!r}"
            if self._search is not None:
                self._search.trouble = words
            self.notify(words, severity="error", markup=False, timeout=30)

    async def _let_go(self, bridge: Bridge) -> None:
        """Close a session and go on without it; what was wrong with that is said."""
        try:
            await self._close(bridge)
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False, timeout=15)

    async def _close(self, bridge: Bridge) -> None:
        if bridge is self._search:
            self._search = None
        await bridge.close()

    def get_driver_class(self) -> type[Driver]:
        """A terminal's own driver is ours, which notices when the terminal vanishes."""
        found = super().get_driver_class()
        return TerminalDriver if issubclass(TerminalDriver, found) else found

    def _told_to_go(self) -> None:
        end_within(LAST_SECONDS)
        self.call_later(self._leave)

    @on(Vanished)
    async def _leave(self) -> None:
        """Let go of the search in good order, and end; asked twice, once."""
        if self._leaving:
            return
        self._leaving = True
        try:
            if self._search is not None:
                await self._close(self._search)
        except EspalierError as error:
            self.fault = error
        self.exit(return_code=DONE if self.fault is None else BAD_INPUT)

    def _handle_exception(self, error: Exception) -> None:
        """Textual's own ends the app, and would print a traceback of many pages: that is kept with the program's others."""
        super()._handle_exception(error)
        self._exit_renderables.clear()
        self.fault = self.fault or (error.error if isinstance(error, WorkerFailed) else error)

    @work(group="quit", exclusive=True)
    async def _ask_to_leave(self) -> None:
        running = self._search
        if running is not None and running.in_hand:
            under_way = ", ".join(sorted(work.rpartition(":")[0].replace(":", " ") or work for work in running.in_hand))
            words = f"Under way: {under_way}.\n\nNothing is lost: `espalier open {running.name}` does it again and goes on."
            if not await self.push_screen_wait(Confirm("Leave while the search is under way?", words, "Leave", "Stay")):
                return
        await self._leave()

    async def action_quit(self) -> None:
        """Leave; says first what is under way."""
        self._ask_to_leave()

    def action_suspend(self) -> None:
        """Give the terminal back to the shell, as Ctrl-Z does elsewhere."""
        if self._driver is None or not self._driver.can_suspend or not resumable():
            self.notify("No shell stands behind this terminal that could bring Espalier back.", severity="warning")
            return
        self.action_suspend_process()

    def action_help(self) -> None:
        """Every key of this screen."""
        if not isinstance(self.screen, HelpScreen):
            screen, place = self.screen, place_of(self.screen)
            able = [action for action in actions.ACTIONS if screen.check_action(action.verb, ())]
            self.push_screen(HelpScreen(place, able, self._own_keys, str(self._keymap_file)))

    def action_dark(self) -> None:
        """The other theme."""
        self.theme = theme.LIGHT if self.current_theme.dark else theme.suited(self._colours)

    def action_picture(self) -> None:
        """Save what is on the screen."""
        self.deliver_screenshot()


def main(action: str = "home", subject: object = None) -> None:
    """Open the face: ``home`` and nothing, ``new`` and a ``NewSession``; ``open``, ``replay`` or ``follow`` and a folder.

    Raises what ended the face, if that was not the engineer.
    """
    logging.getLogger().addHandler(LogFile())
    app = EspalierApp(EngineDoors(), action, subject)
    app.run()
    if app.fault is not None:
        raise app.fault
