"""The terminal that the face is drawn on, and what happens when it vanishes or is given back to the shell for a while.

A window that is closed, a connection that drops or a multiplexer that is killed leaves a terminal that reads as empty for
ever and refuses every write. Textual's own driver then spins on the one and dies, or waits for ever, on the other, so that
nobody lets the session go. This driver notices, puts something harmless in the terminal's place, and tells the app once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
import time
from pathlib import Path
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
        self._seen_enough: threading.Event | None = None
        """Ends the thread that watches the terminal; ``None`` while there is none."""
        self._away_since: float | None = None

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._away_since is not None:
            leave_out(time.monotonic() - self._away_since)
            self._away_since = None
        if self._seen_enough is None and self.input_tty:
            self._seen_enough = threading.Event()
            threading.Thread(target=self._look, args=(self._seen_enough,), name="espalier-terminal", daemon=True).start()

    def suspend_application_mode(self) -> None:
        """The terminal is somebody else's until ``start_application_mode``: a shell's, or an editor's."""
        self._away_since = time.monotonic()
        super().suspend_application_mode()

    def _sigtstp_application(self, *_: object) -> None:
        """Stop the whole job once the terminal is as the shell left it: a shell waits for a wrapper around this process too."""
        if self._auto_restart:
            self.suspend_application_mode()
            self._must_signal_resume = True
        os.killpg(os.getpgrp(), signal.SIGSTOP)

    def close(self) -> None:
        if self._seen_enough is not None:
            self._seen_enough.set()
            self._seen_enough = None
        super().close()

    def _look(self, enough: threading.Event) -> None:
        """Wait for the terminal's end; asked for nothing else, ``poll`` reports that alone."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        while not enough.is_set():
            if poll.poll(_LOOK_EVERY_MS):
                replace_terminal()
                end_within(LAST_SECONDS)
                self._app.post_message(Vanished())
                return


def leave_out(seconds: float) -> None:
    """Turn the event loop's clock back by the time that it stood still.

    Else whatever waits with a limit, a build or a trial in a process of its own, would be found too late at once, although
    its answer has long come.
    """
    loop = asyncio.get_running_loop()
    as_before = loop.time
    loop.time = lambda: as_before() - seconds  # type: ignore[method-assign]  # what every limit of the loop is reckoned by


def resumable() -> bool:
    """Whether a shell with job control stands behind this process; one that no ``fg`` reaches would stay stopped for ever."""
    group = os.getpgrp()
    try:
        shell = _parent(group)
        return os.getpgid(shell) != group and os.getsid(shell) == os.getsid(0)
    except OSError:
        return False


def _parent(process: int) -> int:
    if process == os.getpid():
        return os.getppid()
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


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
