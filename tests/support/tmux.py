"""A program in a window of a tmux server, operated by keys, seen as text."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from engine.domain.state import SessionState
from engine.journal import store

ROOT = Path(__file__).resolve().parents[2]
SHOWN_WITHIN = 180.0


class Terminal:
    """One tmux server with one window."""

    def __init__(self, home: Path, size: tuple[int, int] = (120, 40), folder: Path = ROOT) -> None:
        """``folder``: where the program is started."""
        self._socket = str(home / "tmux")
        self._home = home
        self._size = size
        self._folder = folder

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "espalier", *arguments]
        environment = {"ESPALIER_HOME": str(self._home), "TEXTUAL_ANIMATIONS": "none", "PYTHONPATH": str(ROOT)}
        size = ("-x", str(self._size[0]), "-y", str(self._size[1]))
        settings = [f"-e{name}={value}" for name, value in environment.items()]
        self._tmux("new-session", "-d", "-s", "e", *size, *settings, "-c", str(self._folder), *command)

    def keys(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", "-t", "e", key)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "e", "-l", text)

    def paste(self, text: str) -> None:
        """A bracketed paste, as terminals send it."""
        subprocess.run(["tmux", "-S", self._socket, "load-buffer", "-"], input=text.encode(), check=True)
        self._tmux("paste-buffer", "-p", "-t", "e")

    def screen(self) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, "capture-pane", "-p", "-t", "e"], capture_output=True, text=True, check=False
        ).stdout

    def sees(self, text: str, *, within: float = SHOWN_WITHIN) -> None:
        end = time.monotonic() + within
        while text not in self.screen():
            assert time.monotonic() < end, f"{text!r} was never on the screen:\n{self.screen()}"
            time.sleep(0.1)

    def process(self) -> int:
        found = self._tmux("list-panes", "-t", "e", "-F", "#{pane_pid}")
        return int(found.split()[0])

    def gone(self) -> None:
        end = time.monotonic() + SHOWN_WITHIN
        while self._tmux("has-session", "-t", "e", check=False) is not None:
            assert time.monotonic() < end, self.screen()
            time.sleep(0.1)

    def close(self) -> None:
        self._tmux("kill-server", check=False)

    def _tmux(self, *arguments: str, check: bool = True) -> str | None:
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "TMUX")}
        done = subprocess.run(
            ["tmux", "-u", "-f", "/dev/null", "-S", self._socket, *arguments],
            capture_output=True, text=True, check=False, env={**inherited, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if done.returncode == 0 else None


def wait_for(folder: Path, holds: object, what: str) -> SessionState:
    """Until the session is in a state; a folder that the program has just made may hold no event yet."""
    end = time.monotonic() + SHOWN_WITHIN
    while True:
        state = store.state_of(folder) if _has_begun(folder) else SessionState()
        if holds(state):  # type: ignore[operator]
            return state
        assert time.monotonic() < end, what
        time.sleep(0.1)


def _has_begun(folder: Path) -> bool:
    journal = folder / "journal.jsonl"
    return journal.is_file() and b"\n" in journal.read_bytes()
