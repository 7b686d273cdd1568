"""The terminal driver: handles a lost terminal, and one that is returned to the shell by Ctrl-Z.

A closed window, a dropped connection or a killed multiplexer leaves a terminal that reads as empty and refuses every write.
Textual's driver then spins on reads and dies or hangs on writes, and the session is never closed. This driver detects the
loss, replaces the terminal by /dev/null and posts one message to the app.
"""

from __future__ import annotations

import asyncio
import contextlib
import curses
import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from tui.terminal_input import TerminalInput

if TYPE_CHECKING:
    from textual.app import App

SHUTDOWN_SECONDS = 4.0
"""How long the app may take to exit without a terminal."""
_POLL_MS = 500
_INPUT_SECONDS = 0.1
_READ_BYTES = 4096
_NO_COLOURS = -1
"""What terminfo answers for a number that a terminal does not have."""
_EXIT_SIGHUP = 129
"""The exit status that a shell reports for a program killed by SIGHUP."""


class TerminalLost(Message):
    """The terminal is lost: the app closes its session and exits."""


class _BestEffortFile:
    """A file whose failed writes are dropped."""

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
    """Textual's driver over a terminal that may disappear. It posts ``TerminalLost`` once."""

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        if self._file is not None:
            self._file = _BestEffortFile(self._file)  # type: ignore[assignment]  # has the methods that its writer calls
        self._stop_watching: threading.Event | None = None
        """Stops the thread that watches the terminal; ``None`` without a thread."""
        self._suspended_at: float | None = None
        self._lost = False

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._suspended_at is not None:
            set_loop_clock_back(time.monotonic() - self._suspended_at)
            self._suspended_at = None
        if self._stop_watching is None and self.input_tty:
            self._stop_watching = threading.Event()
            threading.Thread(
                target=self._watch_terminal, args=(self._stop_watching,), name="espalier-terminal", daemon=True
            ).start()

    def run_input_thread(self) -> None:
        """Post what the terminal sends until input is disabled or the terminal is lost."""
        sent = TerminalInput()
        while not self.exit_event.is_set():
            try:
                data = os.read(self.fileno, _READ_BYTES) if select.select([self.fileno], [], [], _INPUT_SECONDS)[0] else b""
            except OSError:
                return  # the thread that watches the terminal tells
            for event in (*sent.events_of(data), *sent.overdue_events()):
                self.process_message(event)

    def suspend_application_mode(self) -> None:
        """Leave the terminal to a shell or an editor until ``start_application_mode``."""
        self._suspended_at = time.monotonic()
        super().suspend_application_mode()

    def _sigtstp_application(self, *_: object) -> None:
        """Restore the terminal, then stop the whole process group: the shell also waits for a wrapper around this process."""
        if self._auto_restart:
            self.suspend_application_mode()
            self._must_signal_resume = True
        os.killpg(os.getpgrp(), signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Enter the terminal again after a stop. After SIGSTOP, which no handler sees, it is left first.

        A terminal that hangs up continues its processes too. Entered twice, it would be read by two threads, and the program
        would wait for the first one forever.
        """
        if self._has_hung_up():
            return
        if self._auto_restart and self._suspended_at is None:
            self.suspend_application_mode()
        super()._sigcont_application()

    def _has_hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self.fileno, 0)
        return self._lost or bool(poll.poll(0))

    def close(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching.set()
            self._stop_watching = None
        super().close()

    def _watch_terminal(self, stop: threading.Event) -> None:
        """Wait until the terminal hangs up: the only event that ``poll`` reports when none is requested."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        while not stop.is_set():
            if poll.poll(_POLL_MS):
                self._lost = True
                replace_terminal()
                exit_within(SHUTDOWN_SECONDS)
                self._app.post_message(TerminalLost())
                return


def set_loop_clock_back(seconds: float) -> None:
    """Set the event loop's clock back by the time that the process was stopped.

    Otherwise every wait with a time limit, on a build or a trial, would expire although its answer has arrived.
    """
    loop = asyncio.get_running_loop()
    original = loop.time
    loop.time = lambda: original() - seconds  # type: ignore[method-assign]  # all time limits of the loop use it


def has_colours(environment: Mapping[str, str]) -> bool:
    """Whether the terminal shows colours, as far as its description tells: vt100 and xterm-mono show none."""
    if environment.get("COLORTERM"):
        return True
    try:
        curses.setupterm(environment.get("TERM"), 1)
        return curses.tigetnum("colors") != _NO_COLOURS
    except curses.error:
        return True


def has_job_control() -> bool:
    """Whether a shell with job control runs this process; without one a stopped process could not be resumed."""
    group = os.getpgrp()
    try:
        shell = _parent_of(group)
        return os.getpgid(shell) != group and os.getsid(shell) == os.getsid(0)
    except OSError:
        return False


def _parent_of(process: int) -> int:
    if process == os.getpid():
        return os.getppid()
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


def replace_terminal() -> None:
    """Replace a lost terminal by /dev/null, where a read of the driver's thread never blocks."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def exit_within(seconds: float) -> None:
    """Exit after this time, whatever the process waits for. The journal is complete after every entry."""
    timer = threading.Timer(seconds, lambda: os._exit(_EXIT_SIGHUP))
    timer.daemon = True
    timer.start()
