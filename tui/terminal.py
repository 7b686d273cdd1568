"""The terminal that the face is drawn on, and what happens when it vanishes.

A window that is closed, a connection that drops or a multiplexer that is killed leaves a terminal that reads as empty for
ever and refuses every write. Textual's own driver then spins on the one and dies, or waits for ever, on the other, so that
nobody lets the session go. This driver notices, puts something harmless in the terminal's place, and tells the app once.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, TextIO

from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

if TYPE_CHECKING:
    from textual.app import App

LAST_SECONDS = 4.0
"""How long a face without a terminal may take to end in good order."""
_LOOK_EVERY_MS = 500
_GONE = 129
"""What a shell reports for a program that SIGHUP ended."""


class Vanished(Message):
    """There is no terminal any more; whoever hears it ends in good order, and soon."""


class _Deaf:
    """A file whose writes cannot fail: what is drawn for nobody is dropped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


class TerminalDriver(LinuxDriver):
    """Textual's driver over a terminal that may go away at any moment. Then the app is posted ``Vanished``, once."""

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        if self._file is not None:
            self._file = _Deaf(self._file)  # type: ignore[assignment]  # all that its writer needs of a file
        self._watch: threading.Thread | None = None
        self._watching = threading.Event()

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._watch is None and self.input_tty:
            self._watch = threading.Thread(target=self._look, name="espalier-terminal", daemon=True)
            self._watch.start()

    def close(self) -> None:
        self._watching.set()
        super().close()

    def _look(self) -> None:
        """Wait for the terminal's end; asked for nothing else, ``poll`` reports that alone."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        while not self._watching.is_set():
            if poll.poll(_LOOK_EVERY_MS):
                replace_terminal()
                end_within(LAST_SECONDS)
                self._app.post_message(Vanished())
                return


def replace_terminal() -> None:
    """Put an input that is at its end and an output that takes everything in the place of a terminal that is gone.

    The input must never block: the driver's thread may be about to read what the terminal's end looked like.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def end_within(seconds: float) -> None:
    """End the process after so long, whatever it waits for then. The journal is whole after every entry."""
    timer = threading.Timer(seconds, lambda: os._exit(_GONE))
    timer.daemon = True
    timer.start()
