"""The terminal UI as commands see it. ``espalier.py`` passes one to ``main``; the engine imports none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.streams import is_terminal, is_utf8, was_closed
from engine.journal.log_file import log_to_file

_CANNOT_MOVE = ("", "dumb", "unknown")
"""TERM of terminals that only print lines."""
_PLAIN = "plain"
"""Set in the context's ``meta`` by --plain."""
_INSTEAD = (
    "use --plain, `espalier session list`, `espalier run PROBLEM --headless`, `espalier open SESSION --headless` or "
    "`espalier replay SESSION --headless`"
)


@dataclass(frozen=True, slots=True)
class TerminalUI:
    """How to start a terminal UI. Both calls return when it ends and raise what made it fail."""

    open: Callable[[str, object], None]
    """``home`` and nothing, ``new`` and a ``NewSession``, ``open`` and a ``SavedSession``, or ``replay`` or ``follow`` and a
    session's folder."""
    plain: Callable[[str, object], None]
    """The same by lines and numbered choices, without a screen."""
    serve: Callable[[Path], None]
    """Serve a session's folder to browsers on this machine."""


def set_plain(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    """The callback of --plain."""
    if given:
        ctx.meta[_PLAIN] = True


def registered_ui() -> TerminalUI | None:
    """The terminal UI that ``main`` was given."""
    found: TerminalUI | None = click.get_current_context().find_root().obj
    return found


def open_ui(action: str = "home", subject: object = None) -> bool:
    """Open the terminal UI if there is one and a terminal for it; ``False`` when it was not opened.

    With --plain, or on a terminal that cannot move its cursor, it opens the plain mode. Raises CommandExit for another terminal
    that cannot draw a screen.
    """
    ui = registered_ui()
    if ui is None:
        return False
    if click.get_current_context().find_root().meta.get(_PLAIN):
        for stream, name in ((sys.stdin, "input"), (sys.stdout, "output")):
            if was_closed(stream):
                raise CommandExit(BAD_INPUT, f"--plain needs standard {name}, which is closed: redirect it, or use --headless")
        log_to_file()
        ui.plain(action, subject)
        return True
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return False
    if os.environ.get("TERM", "") in _CANNOT_MOVE:
        log_to_file()
        ui.plain(action, subject)
        return True
    if trouble := _undrawable_reason():
        raise CommandExit(BAD_INPUT, f"the terminal UI cannot start: {trouble}; {_INSTEAD}")
    log_to_file()
    ui.open(action, subject)
    return True


def _undrawable_reason() -> str:
    """Why this terminal cannot draw a screen, else empty. The terminal UI draws on standard error."""
    if not is_terminal(sys.__stderr__):
        return "standard error is redirected"
    if not is_utf8(sys.__stderr__):
        return "the locale is not UTF-8 (set LC_ALL=C.UTF-8)"
    return ""
