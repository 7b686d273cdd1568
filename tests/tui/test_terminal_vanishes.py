"""A terminal that goes away, whatever way, takes the face with it within seconds, and the session can be gone on with."""

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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.program import ROOT, command, environment

from engine.domain import events as e
from engine.journal import journal
from engine.journal.lock import WriterLock

GONE_WITHIN = 5.0
SEARCH = """
import sys, pathlib
from support import faces
doors = faces.FakeDoors(pause=60.0)
faces.face(doors, "new", faces.new(pathlib.Path(sys.argv[1]), "autopilot")).run()
"""
"""A search whose every work takes a minute: something is always under way."""


class Window:
    """A program in a pseudo-terminal of 100×30 whose other end this test holds."""

    def __init__(self, arguments: list[str], home: Path, *, controlling: bool) -> None:
        """``controlling``: whether closing the window sends SIGHUP too, as where the program was started from its shell."""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

        def adopt() -> None:
            os.setsid()
            if controlling:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        env = {**environment(home, TERM="xterm-256color", PYTHONPATH=paths), "TEXTUAL_ANIMATIONS": "none"}
        self.process = subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=slave, env=env, preexec_fn=adopt)  # noqa: PLW1509  # this process runs no thread that takes a lock
        os.close(slave)
        self._shown = b""
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Never waits in a read: that would hold this end open after it is closed."""
        with contextlib.suppress(OSError):
            while not self._closed.is_set():
                if select.select([self.master], [], [], 0.02)[0]:
                    self._shown += os.read(self.master, 65536)

    def sees(self, text: bytes) -> None:
        end = time.monotonic() + 60
        while text not in self._shown:
            assert self.process.poll() is None, self._shown[-2000:]
            assert time.monotonic() < end, self._shown[-2000:]
            time.sleep(0.02)

    def hang_up(self) -> None:
        """What closing a window does."""
        self._closed.set()
        self._reader.join()
        os.close(self.master)
        self.master = -1

    def gone(self) -> None:
        """Wait until it has ended, by itself: not by its last resort."""
        assert self.process.wait(GONE_WITHIN) == 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.master >= 0:
            self.hang_up()


@pytest.fixture
def windows() -> Iterator[list[Window]]:
    made: list[Window] = []
    yield made
    for one in made:
        one.close()


def told(number: signal.Signals) -> Callable[[Window], None]:
    return lambda window: window.process.send_signal(number)


WAYS: list[tuple[str, bool, Callable[[Window], None]]] = [
    ("closed", True, Window.hang_up),
    ("silent", False, Window.hang_up),
    ("SIGHUP", True, told(signal.SIGHUP)),
    ("SIGTERM", True, told(signal.SIGTERM)),
]


@pytest.mark.parametrize(("way", "controlling", "vanish"), WAYS, ids=[way for way, _, _ in WAYS])
def test_the_face_goes_with_its_terminal(
    tmp_path: Path, windows: list[Window], way: str, controlling: bool, vanish: Callable[[Window], None]
) -> None:
    window = Window(command(), tmp_path, controlling=controlling)
    windows.append(window)
    window.sees(b"softmax")
    vanish(window)
    window.gone()


@pytest.mark.parametrize(("way", "controlling", "vanish"), WAYS, ids=[way for way, _, _ in WAYS])
def test_a_search_that_is_left_so_can_be_gone_on_with(
    tmp_path: Path, windows: list[Window], way: str, controlling: bool, vanish: Callable[[Window], None]
) -> None:
    folder = tmp_path / "session"
    window = Window([sys.executable, "-c", SEARCH, str(folder)], tmp_path, controlling=controlling)
    windows.append(window)
    window.sees(b"preparing")
    vanish(window)
    window.gone()
    entries = journal.read(folder).entries
    assert entries[-1].event == e.WorkFailed("prepare", "interrupted"), "it ended in good order, it was not killed"
    WriterLock(folder).release()
