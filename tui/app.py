"""The app: themes, keys, screens, and the workers that run a search. Contains no search logic; imports no torch.

Home is drawn before the engine is imported: a session's imports stand where they are used, after ``load_session_screens``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.command import Provider
from textual.screen import Screen
from textual.worker import Worker, WorkerFailed, WorkerState

from engine.domain.errors import EspalierError, JournalError, JournalLocked, UntrustedError
from tui import actions
from tui.garbage import shorten_collections
from tui.opener import SessionOpener
from tui.plain_output import plain_text
from tui.removals import guard_removals, while_shown
from tui.screens.home import HomeScreen, OpenMode
from tui.screens.loading import load_session_screens
from tui.stale_clicks import guard_stale_clicks
from tui.strips import lighten_strips
from tui.terminal import TerminalLost
from tui.terminal_app import TerminalApp
from tui.timers import guard_timers
from tui.tiny_terminals import guard_tiny_terminals

if TYPE_CHECKING:
    from engine.domain.trust import TrustQuestion
    from tui.bridge import Bridge, SavedSession, Say
    from tui.screens.open_session import OpenBridge
    from tui.screens.transport import TransportScreen
    from tui.session_watch import SessionWatch

_UPDATES_A_SECOND = 2


def _actions_of_the_palette() -> type[Provider]:
    from tui.screens.palette import ActionProvider

    return ActionProvider


def _nodes_of_the_palette() -> type[Provider]:
    from tui.screens.palette import NodeProvider

    return NodeProvider


class EspalierApp(TerminalApp):
    """Runs at most one search: two would disturb each other's measurements."""

    TITLE = "Espalier"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.ANYWHERE)]
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_actions_of_the_palette, _nodes_of_the_palette}

    def __init__(
        self,
        opener: SessionOpener | None = None,
        action: str = "home",
        subject: object = None,
        *,
        clock: Callable[[], float] = time.time,
        keymap: Path | None = None,
        colours: str | None = None,
    ) -> None:
        """``action`` and ``subject``: as for ``main``. ``colours``: the terminal's colour system, as rich names it."""
        guard_timers()
        guard_tiny_terminals()
        guard_removals()
        guard_stale_clicks()
        lighten_strips()
        super().__init__(keymap=keymap, colours=colours)
        self.opener = opener or SessionOpener()
        self.clock = clock
        self._first = (action, subject)
        self._session_watch: SessionWatch | None = None
        self._search: Bridge | None = None
        """The session that this process searches, if any; the search continues while other screens are shown."""
        self._leaving = False
        self.farewell = ""
        """The line about the session that ran here last, for the shell."""
        self.fault: BaseException | None = None
        """The exception that ended the app. The command line prints it after the terminal is restored."""

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Empty: ``ActionProvider`` offers the actions of the registry."""
        return ()

    def on_mount(self) -> None:
        self.apply_settings()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._on_terminate_signal)
            self.watch_interrupts(self._on_terminate_signal)
        first = "" if self._first[0] == "home" else "Opening …"
        self.push_screen(
            HomeScreen(self.opener, self.clock, lambda: getattr(self._search, "folder", None), self._close_other_search, first)
        )
        self.set_interval(1 / _UPDATES_A_SECOND, self._update_notices)
        if first:
            self.call_after_refresh(self._run_first_action)

    def _update_notices(self) -> None:
        """Tell what happened to the session that runs here, or else to the one that is shown."""
        shown = (found for screen in reversed(self.screen_stack) if (found := getattr(screen, "bridge", None)))
        bridge = self._search or next(shown, None)
        if bridge is None:
            self.notices.set_title(self.TITLE)
        elif bridge.transport is not None:
            self.notices.set_title(f"{bridge.name} · replay")
        else:
            from tui.session_watch import SessionWatch

            if self._session_watch is None or self._session_watch.name != bridge.name:
                self._session_watch = SessionWatch(bridge.name, self.notices, is_new=bridge.runs_here)
            if self._session_watch.update(bridge.state, bridge.stopped) and isinstance(self.screen, HomeScreen):
                self.screen.action_refresh()

    @work(group="first")
    async def _run_first_action(self) -> None:
        await while_shown(self, load_session_screens())
        from tui.bridge import NewSession, SavedSession

        match self._first:
            case ("new", NewSession() as request):
                self._open(f"New session: {request.problem.name}", partial(self.opener.begin, request))
            case ("open", SavedSession() as saved):
                self._resume(saved)
            case ("replay" | "follow" as mode, Path() as folder):
                self._open_folder(folder, OpenMode(mode))

    @on(HomeScreen.OpenRequested)
    def _open_requested(self, event: HomeScreen.OpenRequested) -> None:
        self._open_folder(event.folder, event.mode)

    @on(HomeScreen.SessionBegun)
    async def _session_begun(self, event: HomeScreen.SessionBegun) -> None:
        await self._show(event.bridge)

    def on_transport_screen_fork_requested(self, event: TransportScreen.ForkRequested) -> None:
        """Copy the session up to this point and resume the copy."""
        from tui.bridge import SavedSession

        async def fork(say: Say) -> Bridge:
            say("copying the journal up to this point")
            folder, lost = await asyncio.to_thread(self.opener.fork, event.folder, event.position)
            if lost:
                self.notify(lost, severity="warning", markup=False, timeout=20)
            return await self.opener.resume(SavedSession(folder), say)

        self._open(f"Fork of {event.folder.name}", fork)

    def _open_folder(self, folder: Path, mode: OpenMode) -> None:
        if (running := self._search) is not None and running.folder == folder and mode is not OpenMode.REPLAY:
            self._show_screen(running)
        elif mode is OpenMode.OPEN:
            from tui.bridge import SavedSession

            self._resume(SavedSession(folder))
        else:
            self._watch(folder, mode)

    def _resume(self, saved: SavedSession) -> None:
        self._open(f"Opening {saved.folder.name}", partial(self.opener.resume, saved), saved)

    @work(group="watch", exclusive=True)
    async def _watch(self, folder: Path, mode: OpenMode, fault: str = "") -> None:
        await while_shown(self, load_session_screens())
        opened = {OpenMode.REPLAY: self.opener.replay, OpenMode.JOIN: self.opener.join}.get(mode, self.opener.follow)
        try:
            bridge = await while_shown(self, asyncio.to_thread(opened, folder))
            bridge.fault = fault
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False, timeout=10)
            if isinstance(self.screen, HomeScreen):
                self.screen.action_refresh()
        else:
            await self._show(bridge)

    @work(group="open", exclusive=True)
    async def _open(self, title: str, opening: OpenBridge, saved: SavedSession | None = None) -> None:
        """Open a session to run it; if another process runs it, steer it there."""
        await while_shown(self, load_session_screens())
        from tui.bridge import Bridge
        from tui.screens.open_session import OpenSessionDialog
        from tui.viewmodel.notices import joined_words

        if not await self._close_other_search():
            return
        outcome = await self.push_screen_wait(OpenSessionDialog(title, opening))
        match outcome:
            case Bridge():
                await self._show(outcome)
            case UntrustedError():
                await self._ask_trust(outcome.question, title, opening, saved)
            case JournalLocked() if saved is not None:
                self.notify(joined_words(saved.options()), markup=False, timeout=10)
                self._watch(saved.folder, OpenMode.JOIN)
            case EspalierError():
                self.notify(str(outcome), severity="error", markup=False, timeout=15)
                if saved is not None:
                    self._watch(saved.folder, OpenMode.FOLLOW, str(outcome))

    async def _ask_trust(self, asked: TrustQuestion, title: str, opening: OpenBridge, saved: SavedSession | None) -> None:
        """Ask whether this may run here, then open it, replay it, or do nothing. A fork is not made a second time."""
        from engine.domain.trust import PathKind
        from tui.bridge import SavedSession
        from tui.screens.trust_dialog import TrustAnswer, TrustDialog

        answer = await self.push_screen_wait(TrustDialog(asked))
        session = Path(asked.path) if asked.kind is PathKind.SESSION else None
        if session is not None and (saved is None or session.resolve() != saved.folder.resolve()):
            opening = partial(self.opener.resume, saved := SavedSession(session))
        if answer is TrustAnswer.REPLAY and session is not None:
            self._watch(session, OpenMode.REPLAY)
        if answer is not TrustAnswer.TRUST:
            return
        try:
            await while_shown(self, asyncio.to_thread(self.opener.trust, asked))
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False, timeout=15)
        else:
            self._open(title, opening, saved)

    async def _close_other_search(self) -> bool:
        """Close the running search, if any, after asking. Returns whether another one may start."""
        if (running := self._search) is None:
            return True
        from tui.screens.dialogs import Confirm

        words = (
            f"{running.name} is running here. Two searches disturb each other's measurements, so only one can run. "
            "A closed session can be resumed."
        )
        if running.in_hand and not await self.push_screen_wait(Confirm("Close the running session?", words, "Close")):
            return False
        await self._close_and_report(running)
        return True

    async def _show(self, bridge: Bridge) -> None:
        if bridge.runs_here:
            if self._search is not None:
                await self._close_and_report(self._search)
            self._search = bridge
            self.run_worker(bridge.run(), name="run", group="engine", exit_on_error=False)
        self.run_worker(bridge.pump(), name="pump", group=f"pump-{id(bridge)}", exit_on_error=False)
        self._show_screen(bridge)

    def _show_screen(self, bridge: Bridge) -> None:
        from tui.layout_file import LAYOUT, LayoutFile
        from tui.screens.dialogs import DismissOnceScreen
        from tui.screens.session import SessionScreen

        for above in reversed(self.screen_stack):
            if not (isinstance(above, DismissOnceScreen) and above.gives_way):
                break
            above.dismiss(None)
        layouts = LayoutFile(self.keymap_file.with_name(LAYOUT))
        for error in layouts.errors:
            self.notify(error, severity="warning", markup=False, timeout=15)
        self.push_screen(SessionScreen(bridge, self.clock, layouts))

    async def on_session_screen_home_requested(self) -> None:
        """Go back to home. A session that is searched here goes on; another is closed."""
        from tui.screens.session import SessionScreen

        screen = self.screen
        if isinstance(screen, SessionScreen):
            self.pop_screen()
            if isinstance(self.screen, HomeScreen):
                self.screen.return_from(screen.bridge.folder)
            if screen.bridge is not self._search:
                await self._close_and_report(screen.bridge)

    @on(Worker.StateChanged)
    def _worker_ended(self, event: Worker.StateChanged) -> None:
        worker = event.worker
        if event.state is WorkerState.ERROR and worker.name in ("run", "pump") and worker.error is not None:
            logging.getLogger(__name__).error("the session's %s worker failed", worker.name, exc_info=worker.error)
            words = str(worker.error) if isinstance(worker.error, JournalError) else f"internal error: {worker.error!r}"
            if self._search is not None:
                self._search.fail(words)
            self.notify(words, severity="error", markup=False, timeout=30)

    async def _close_and_report(self, bridge: Bridge) -> None:
        """Close a session. An error is shown and the app continues."""
        try:
            await self._close(bridge)
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False, timeout=15)

    async def _close(self, bridge: Bridge) -> None:
        if bridge is self._search:
            from tui.viewmodel.farewell import farewell

            self._search = None
            self.farewell = farewell(bridge.state_now, bridge.shell_name)
        await bridge.close()

    def _on_terminate_signal(self) -> None:
        self.end_soon()
        self.call_later(self._leave)

    @on(TerminalLost)
    async def _leave(self) -> None:
        """Close the search and exit, once."""
        if self._leaving:
            return
        self._leaving = True
        try:
            if self._search is not None:
                await self._close(self._search)
        except EspalierError as error:
            self.fault = error
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """Replace Textual's traceback of many pages: the exception goes to the log."""
        super()._handle_exception(error)
        self._exit_renderables.clear()
        self.fault = self.fault or (error.error if isinstance(error, WorkerFailed) else error)

    @work(group="quit", exclusive=True)
    async def _ask_to_quit(self) -> None:
        from tui.screens.dialogs import Confirm, Dialog

        if any(isinstance(screen, Dialog) and screen.typed() for screen in self.screen_stack):
            words = "What you typed here is kept nowhere else."
            if not await self.push_screen_wait(Confirm("Quit and discard unsaved changes?", words, "Quit", "Stay")):
                return
        if (running := self._search) is not None and running.in_hand:
            from tui.viewmodel.farewell import under_way

            title, words = "Quit while the search is running?", under_way(running.in_hand, running.shell_name)
            if not await self.push_screen_wait(Confirm(title, words, "Quit", "Stay")):
                return
        await self._leave()

    async def action_quit(self) -> None:
        """Quit; asks first while work is running or a form has text that is kept nowhere else."""
        if not any(worker.group == "quit" and not worker.is_finished for worker in self.workers):
            self._ask_to_quit()

    def action_command_palette(self) -> None:
        """Open the palette."""
        from tui.screens.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_help(self) -> None:
        """List the keys of this screen."""
        from tui.screens.help import HelpScreen
        from tui.screens.palette import place_of

        if not isinstance(self.screen, HelpScreen):
            screen, place = self.screen, place_of(self.screen)
            able = [action for action in actions.ACTIONS if screen.check_action(action.verb, ())]
            self.push_screen(HelpScreen(place, able, self.user_keys, str(self.keymap_file)))

    def action_keys(self) -> None:
        """Show the keys that act now; press one to use it."""
        from tui.screens.key_panel import KeyPanel
        from tui.screens.palette import place_of

        screen, place = self.screen, place_of(self.screen)
        if place is not None:
            able = [action for action in actions.ACTIONS if screen.check_action(action.verb, ())]
            self.push_screen(KeyPanel(place, able, self.user_keys), self._press)

    def _press(self, key: str | None) -> None:
        if key is not None:
            self.simulate_key(key)


def main(action: str = "home", subject: object = None) -> None:
    """Run the terminal UI, as ``engine.cli.ui.TerminalUI`` describes it. Raises the exception that ended it, if any."""
    app = EspalierApp(SessionOpener(), action, subject)
    shorten_collections()
    app.run_as_program()
    if app.farewell:
        sys.stdout.write(f"{plain_text(app.farewell)}\n")
    if app.fault is not None:
        raise app.fault
