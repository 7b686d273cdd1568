"""Tells an engineer who looks elsewhere: the bell, a desktop notice and the terminal's title, as escape sequences.

A desktop notice is OSC 9 (iTerm2, kitty, WezTerm, Ghostty, Windows Terminal) or OSC 777 (foot, rxvt, terminals of VTE); a
terminal that knows neither ignores both. Inside tmux it is wrapped in tmux's passthrough, which ``set -g allow-passthrough on``
permits; tmux handles the bell and the title itself. Nothing is sent while the terminal is known to have the focus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tui.plain_output import plain_text
from tui.preferences import Desktop, Preferences

LOOKING_SECONDS = 15.0
"""After the start and after a key the engineer counts as looking, where the terminal does not report its focus."""
_LONGEST = 200
_OSC_777 = ("foot", "rxvt")
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_SILENT_TERMINALS = ("linux", "dumb")
"""They would print the text of an OSC sequence."""


class Notices:
    """What is sent to one terminal. ``write`` writes to it, ``environment`` describes it."""

    def __init__(
        self,
        write: Callable[[str], None],
        environment: Mapping[str, str],
        clock: Callable[[], float],
        preferences: Preferences,
    ) -> None:
        self.preferences = preferences
        self._write = write
        self._environment = environment
        self._clock = clock
        self._focused: bool | None = None
        """Whether the terminal has the focus; ``None`` until it reports it."""
        self._last_key = clock()
        self._title = ""

    def set_focus(self, focused: bool) -> None:
        """The terminal reports that it got or lost the focus."""
        self._focused = focused

    def key_pressed(self) -> None:
        self._last_key = self._clock()

    @property
    def looked_at(self) -> bool:
        """Whether the engineer looks at the terminal, as far as is known."""
        return self._clock() - self._last_key < LOOKING_SECONDS if self._focused is None else self._focused

    def send(self, name: str, text: str) -> None:
        """Tell about a session, unless the terminal is looked at."""
        if self.looked_at or not text:
            return
        title, body = f"Espalier: {_safe(name)}", _safe(text)
        if self.preferences.bell:
            self._write("\a")
        match self._desktop():
            case Desktop.OSC9:
                self._write(self._passed(f"\x1b]9;{title}: {body}\x1b\\"))
            case Desktop.OSC777:
                self._write(self._passed(f"\x1b]777;notify;{title.replace(';', ',')};{body.replace(';', ',')}\x1b\\"))

    def set_title(self, text: str) -> None:
        """Set the terminal's title; the one before comes back with ``restore_title``."""
        if not self.preferences.title or self._silent:
            self.restore_title()
            return
        text = _safe(text)
        if text != self._title:
            self._write(f"{'' if self._title else _SAVE_TITLE}\x1b]2;{text}\x1b\\")
            self._title = text

    def restore_title(self) -> None:
        """Give the terminal the title that it had."""
        if self._title:
            self._title = ""
            self._write(f"\x1b]2;\x1b\\{_RESTORE_TITLE}")

    @property
    def _silent(self) -> bool:
        return self._environment.get("TERM", "").startswith(_SILENT_TERMINALS)

    def _desktop(self) -> Desktop:
        """The sequence for this terminal."""
        chosen = self.preferences.desktop
        if chosen is not Desktop.AUTO:
            return chosen
        if self._silent:
            return Desktop.OFF
        rxvt = self._environment.get("TERM", "").startswith(_OSC_777) or "VTE_VERSION" in self._environment
        return Desktop.OSC777 if rxvt else Desktop.OSC9

    def _passed(self, sequence: str) -> str:
        """The sequence, through tmux to the terminal around it."""
        if not self._environment.get("TMUX"):
            return sequence
        doubled = sequence.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"


def _safe(text: str) -> str:
    return plain_text(text)[:_LONGEST]
