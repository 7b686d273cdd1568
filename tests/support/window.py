"""A program in its own pseudo-terminal, seen and operated as in a terminal window."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from support.program import ROOT, environment

SEARCH = """
import sys, pathlib
from support import ui
opener = ui.FakeOpener(pause=float(sys.argv[2]))
ui.app(opener, "new", ui.new(pathlib.Path(sys.argv[1]), "autopilot")).run_as_program()
"""


def searching(folder: Path, pause: float) -> list[str]:
    """The command of a search into ``folder`` whose work items take ``pause`` seconds each, so that one is always running."""
    return [sys.executable, "-c", SEARCH, str(folder), str(pause)]


GONE_WITHIN = 5.0
PATIENCE = 60.0


class Window:
    """A program in a pseudo-terminal of 100×30 whose other end the test holds."""

    def __init__(
        self, arguments: list[str], home: Path, *, controlling: bool, changes: Mapping[str, str] | None = None
    ) -> None:
        """``controlling``: whether closing the window sends SIGHUP too, as where the program was started from its shell.

        ``changes``: of the program's environment.
        """
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

        def adopt() -> None:
            os.setsid()
            if controlling:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        env = {**environment(home, TERM="xterm-256color", PYTHONPATH=paths), "TEXTUAL_ANIMATIONS": "none", **(changes or {})}
        self.process = subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=slave, env=env, preexec_fn=adopt)  # noqa: PLW1509  # this process runs no thread that takes a lock
        os.close(slave)
        self.shown = b""
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Never waits in a read: that would hold this end open after it is closed."""
        with contextlib.suppress(OSError):
            while not self._closed.is_set():
                if select.select([self.master], [], [], 0.02)[0]:
                    self.shown += os.read(self.master, 65536)

    def sees(self, text: bytes) -> None:
        """Wait until this has been written, once or more since the beginning or since ``shown`` was emptied."""
        end = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert self.process.poll() is None, self.shown[-2000:]
            assert time.monotonic() < end, self.shown[-2000:]
            time.sleep(0.02)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def hang_up(self) -> None:
        """Close the window."""
        self._closed.set()
        self._reader.join()
        os.close(self.master)
        self.master = -1

    def gone(self) -> None:
        """Wait until the program has ended by itself."""
        assert self.process.wait(GONE_WITHIN) == 0

    def close(self) -> None:
        """Kill the program."""
        self.process.kill()
        self.process.wait()
        if self.master >= 0:
            self.hang_up()
