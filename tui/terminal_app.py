"""The app's terminal and its user: colours, keys, settings, notices, toasts, screenshots. Knows no session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import platformdirs
from textual import events, work
from textual.actions import ActionParseResult
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.notifications import Notify
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import DataTable, Input
from textual.worker import get_current_worker

from engine.journal.user_folders import config_folder
from tui import actions, theme
from tui.kept_stylesheet import KeptStylesheet
from tui.key_queue import KeyQueue
from tui.notices import Notices
from tui.plain_output import PlainOutput
from tui.preferences import PREFERENCES, Preferences, read_preferences, write_preferences
from tui.removals import is_going, while_shown
from tui.terminal import SHUTDOWN_SECONDS, TerminalDriver, exit_within, has_colours, has_job_control

_MOST_TOASTS = 3
_ANIMATIONS = "TEXTUAL_ANIMATIONS"
"""Textual's own variable, with which a user asks for them."""


def screenshot_folder() -> Path:
    """Where screenshots go: the folder of downloads if there is one, else the working folder, else that of temporary files."""
    able = (platformdirs.user_downloads_path(), Path.cwd())
    return next((folder for folder in able if folder.is_dir() and os.access(folder, os.W_OK)), Path(tempfile.gettempdir()))


class TerminalApp(App[None]):
    """The part of the app that would be the same over any subject."""

    def __init__(self, *, keymap: Path | None, colours: str | None) -> None:
        """``keymap``: the user's key bindings, ``keys.toml`` in the configuration folder; the settings are beside it.

        ``colours``: the terminal's colour system, as rich names it.
        """
        super().__init__()
        self.stylesheet = KeptStylesheet(self.get_css_variables())
        self._unstyled: WeakSet[Screen[Any]] = WeakSet()
        """Hidden screens that have the styles of an earlier theme."""
        if _ANIMATIONS not in os.environ:
            self.animation_level = "none"  # a page that glides to its end is drawn fifty times: half a megabyte over SSH
        self._colours = colours or self.console.color_system
        if colours is None and not self.no_color and not has_colours(os.environ):
            self.no_color = True
            self._filters.append(NoColor())
        self.keymap_file = keymap or config_folder() / "keys.toml"
        self.user_keys: dict[str, str] = {}
        self._preferences_file = self.keymap_file.with_name(PREFERENCES)
        self._plain_output = PlainOutput()
        self._is_lent = False
        """Whether another program has the terminal."""
        self._is_program = False
        """Whether the process ends with the app."""
        self._interrupts_before: Any = None
        self._keys = KeyQueue(self, self._handle_event)
        self.notices = Notices(self._write_to_terminal, os.environ, time.monotonic, Preferences())

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(theme.variable_defaults(self.current_theme.dark))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Without colours (NO_COLOR), none is sent at all: Textual would send greys."""
        usual = (NoColor() if isinstance(one, Monochrome) else one for one in super().get_line_filters())
        return [*usual, self._plain_output]

    def apply_settings(self) -> None:
        """Use the user's settings and keys; a wrong one is told."""
        for one in theme.THEMES:
            self.register_theme(one)
        chosen, wrong_settings = read_preferences(self._preferences_file)
        self._apply(chosen)
        keys, wrong_keys = actions.read_keymap(self.keymap_file)
        self.user_keys = dict(keys)
        self.set_keymap(keys)
        if wrong := (*wrong_settings, *wrong_keys):
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            self.notify(f"{wrong[0]}{more}", severity="warning", markup=False, timeout=15)

    def refresh_css(self, animate: bool = True) -> None:
        """Restyle the screens that can be seen. Textual (8.2.8) restyles all, and draws nothing meanwhile; others can wait."""
        self.stylesheet.set_variables(self.get_css_variables())
        self.stylesheet.reparse()
        self.stylesheet.apply(self)
        self._unstyled.update(self.screen_stack)
        self._style_seen_screens(animate)

    def pop_screen(self) -> AwaitComplete:
        """Remove the screen on top, and restyle those below it that waited for it."""
        removed = super().pop_screen()
        self._style_seen_screens(animate=False)
        return removed

    def _style_seen_screens(self, animate: bool) -> None:
        for screen in reversed(self.screen_stack):
            if screen in self._unstyled:
                self._unstyled.discard(screen)
                self.stylesheet.update(screen, animate=animate)
                screen._css_update_count = self._css_update_count
                screen.refresh(layout=True)
            if screen.styles.background.a == 1:
                break

    def get_driver_class(self) -> type[Driver]:
        """``TerminalDriver`` on a terminal: it detects that the terminal is lost."""
        usual = super().get_driver_class()
        return TerminalDriver if issubclass(TerminalDriver, usual) else usual

    def run_as_program(self) -> None:
        """Run the app in a process that ends with it."""
        self._is_program = True
        self.run()

    def end_soon(self) -> None:
        """End within seconds, whatever is waited for.

        Further interrupts change nothing: Python's own handler, or asyncio's, would end the program with status 130 or a
        traceback while it cleans up.
        """
        exit_within(SHUTDOWN_SECONDS)
        if self._is_program:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch_interrupts(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the event loop on each SIGINT. Raises ValueError outside the main thread.

        Not a handler of the loop, which runs only after the editor has ended: Ctrl-C in an editor reaches this process too.
        """
        loop = asyncio.get_running_loop()

        def interrupted(number: int, frame: object) -> None:
            if not self._is_lent:
                loop.call_soon_threadsafe(act)

        self._interrupts_before = signal.signal(signal.SIGINT, interrupted)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Lend the terminal to another program. Ctrl-C is that program's meanwhile.

        Textual (8.2.8) takes the terminal back only where nothing was raised meanwhile; otherwise the screen would stay away.
        """
        raised: BaseException | None = None
        self._is_lent = True
        try:
            with super().suspend():
                try:
                    yield
                except BaseException as error:
                    raised = error
        finally:
            self._is_lent = False
        if raised is not None:
            raise raised

    def get_key_display(self, binding: Binding) -> str:
        """A key as the footer and help write it: Ctrl-S, not ^s."""
        return actions.key_names(binding.key)

    def simulate_key(self, key: str) -> None:
        """Press a key, before those that wait: it is what the one that is handled now does."""
        self.call_later(self._handle_event, events.Key(key, None))

    def on_unmount(self) -> None:
        self._keys.close()
        if self._interrupts_before is not None:
            self._stop_watching_interrupts()
        self.notices.restore_title()

    def _stop_watching_interrupts(self) -> None:
        if not self._is_program:
            signal.signal(signal.SIGINT, self._interrupts_before)
        elif signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, lambda number, frame: self.end_soon())

    async def push_screen_wait(self, screen: Screen[Any] | str, *, mode: str | None = None) -> Any:
        """Show a screen and wait for its answer, in a worker. ``None`` at once where another screen covers the worker's own.
        Where the worker's own went meanwhile, the worker ends. Raises CancelledError.

        Keys that are pressed faster than a dialog opens start a worker each: the first one asks, or else dialogs would pile up
        until drawing one through the other ends the program. A worker that has asked may go on asking.

        Reported as for upstream (Textual 8.2.8): its own first runs what the app has still to do, a screen's removal among it,
        in the worker's task. When that screen is the worker's own, its removal cancels the worker, which cancels the
        removal, and the CancelledError ends the app's message loop without a word.
        """
        worker = get_current_worker()
        if not self._keys.has_asked(worker) and worker.node.screen is not self.screen:
            return None
        answer = self.push_screen(screen, wait_for_dismiss=True, mode=mode)
        self._keys.asks(worker, answer)
        return await while_shown(worker.node, asyncio.shield(answer))

    def _write_to_terminal(self, text: str) -> None:
        if self._driver is not None and not self.is_web:
            self._driver.write(text)

    async def on_event(self, event: events.Event) -> None:
        if not self._keys.keeps(event):
            await self._handle_event(event)

    async def _handle_event(self, event: events.Event) -> None:
        """Do what Textual does with the event, and what the app needs besides."""
        if isinstance(event, events.InputEvent) and not self.screen_stack:
            return  # before the first screen and after the last one, a key would end the program with an exception
        if isinstance(event, events.Key):
            await asyncio.sleep(0)  # keys that wait are handled one by one: what an earlier one drew is seen first
        match event:
            case events.Paste() if isinstance(self.focused, Input):
                self.notices.key_pressed()
                event.text = " ".join(event.text.split())  # its own way is to drop all but the first line
            case events.Key() | events.Paste() | events.MouseDown():
                self.notices.key_pressed()
            case events.AppFocus():
                self.notices.set_focus(True)
            case events.AppBlur():
                self.notices.set_focus(False)
        await super().on_event(event)

    async def _on_key(self, event: events.Key) -> None:
        """Give a character to the field that has the focus: it was typed before the field had it, or the field had taken it.

        Characters that arrive together with the key that opens a field would otherwise act as keys of the screen.
        """
        if event.is_printable and isinstance(self.focused, Input):
            event.prevent_default()
            self.focused.post_message(events.Key(event.key, event.character))

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Act, unless the screen has lost its widgets: a key may come back to the app, as one that no widget handled, after its
        screen was removed because the program ends."""
        target, *_ = self._parse_action(action, default_namespace or self, namespaces)
        if isinstance(target, Widget) and is_going(target):
            return False
        return await super().run_action(action, default_namespace, namespaces)

    def _apply(self, chosen: Preferences) -> None:
        self.notices.preferences = chosen
        self.theme = theme.theme_of(chosen.theme, self._colours, colourless=self.no_color)

    @work(group="settings", exclusive=True)
    async def action_settings(self) -> None:
        """Set theme, bell, notices and title."""
        from tui.screens.settings_form import SettingsForm

        chosen = await self.push_screen_wait(SettingsForm(self.notices.preferences, str(self._preferences_file)))
        if chosen is None:
            return
        self._apply(chosen)
        try:
            write_preferences(self._preferences_file, chosen)
        except OSError as error:
            self.notify(f"{self._preferences_file} cannot be written: {error.strerror}", severity="warning", markup=False)

    def _on_notify(self, event: Notify) -> None:
        """Make room for a toast: the same words replace theirs, and only the latest few stay, for they hide the screen."""
        new = event.notification
        shown = list(iter(self._notifications))  # list() alone asks for the length, which drops what is over in between
        kept = [one for one in shown if (one.message, one.title) != (new.message, new.title)][1 - _MOST_TOASTS :]
        for one in shown:
            if one not in kept:
                self._unnotify(one, refresh=False)

    def action_screenshot(self, filename: str | None = None, path: str | None = None) -> None:
        """Save the screen as an SVG file."""
        self.deliver_screenshot(filename, path or str(screenshot_folder()))

    def action_help_quit(self) -> None:
        """Say how to quit: Ctrl-C copies where a text is selected, and ends nothing."""
        self.notify(f"{actions.shown_key('app.quit', self.user_keys)} quits.", markup=False)

    def action_suspend(self) -> None:
        """Return the terminal to the shell, as Ctrl-Z does in other programs."""
        if self._driver is None or not self._driver.can_suspend or not has_job_control():
            self.notify("Cannot suspend: no shell with job control runs this terminal.", severity="warning")
            return
        self.action_suspend_process()

    def action_motion(self, key: str) -> None:
        """Move in the focused list or page, as this key does; in a table Home and End move along the row."""
        in_table = isinstance(self.focused, DataTable) and key in ("home", "end")
        self.simulate_key(f"ctrl+{key}" if in_table else key)

    def action_theme(self) -> None:
        """Use the next theme: dark, light, high contrast."""
        self.theme = theme.next_theme(self.theme, self._colours)
