"""``espalier`` in a terminal (tmux): softmax on the CPU, steered by keys only, killed, resumed, replayed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.domain import events as e
from engine.domain.state import IdeaStatus, SessionState
from engine.journal import journal, store

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None or shutil.which("g++") is None, reason="needs tmux and g++"),
]
SHOWN_WITHIN = 180.0


class Terminal:
    """One tmux server with one window of 120×40."""

    def __init__(self, home: Path) -> None:
        self._socket = str(home / "tmux")
        self._home = home

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "espalier", *arguments]
        environment = {"ESPALIER_HOME": str(self._home), "TEXTUAL_ANIMATIONS": "none", "PYTHONPATH": str(ROOT)}
        settings = [f"-e{name}={value}" for name, value in environment.items()]
        self._tmux("new-session", "-d", "-s", "e", "-x", "120", "-y", "40", *settings, "-c", str(ROOT), *command)

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


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    yield found
    found.close()


def wait_for(folder: Path, holds: object, what: str) -> SessionState:
    end = time.monotonic() + SHOWN_WITHIN
    while True:
        state = store.state_of(folder)
        if holds(state):  # type: ignore[operator]
            return state
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_a_session_from_its_beginning_to_its_replay(terminal: Terminal, tmp_path: Path) -> None:
    terminal.start()
    terminal.sees("example")  # the checkout's recorded sessions are listed; the problems have the focus
    terminal.sees("Enter: new session on the highlighted problem")
    terminal.keys("Enter")
    terminal.sees("Mode")
    terminal.keys("Enter")
    terminal.sees("awaiting approval")
    (folder,) = (tmp_path / "sessions").iterdir()
    time.sleep(0.7)  # the grace time in which no key approves

    terminal.keys("r")
    terminal.sees("Reason (optional)")
    terminal.type("not [this] one")
    terminal.keys("Enter")
    state = wait_for(folder, lambda s: any(i.status is IdeaStatus.REJECTED for i in s.ideas.values()), "nothing was rejected")

    terminal.keys("e")
    terminal.sees("Edit i")
    terminal.type("Edited by hand: ")
    terminal.keys("C-s")
    wait_for(folder, lambda s: any(i.edited for i in s.ideas.values()), "nothing was edited")

    naive = (ROOT / "problems" / "softmax" / "playbook" / "naive.cpp").read_text()
    mine = tmp_path / "mine.cpp"
    mine.write_text(f"// seeded by hand\n{naive}")
    terminal.keys("s")
    terminal.sees("Seed a kernel")
    terminal.type(str(mine))
    terminal.keys("C-s")
    wait_for(folder, lambda s: any(k.name == "mine.cpp" for k in s.kernels.values()), "nothing was seeded")

    terminal.keys("w")
    terminal.sees("Submit (Ctrl-S)")
    terminal.keys("C-s")
    state = wait_for(folder, lambda s: len([k for k in s.kernels.values() if k.seed]) == 2, "nothing was written by hand")
    written = list(state.kernels.values())[-1]
    assert state.ideas[written.idea].status is IdeaStatus.SELECTED

    os.kill(terminal.process(), signal.SIGKILL)
    terminal.gone()
    assert store.state_of(folder).closed is None

    terminal.start("open", folder.name)
    terminal.sees("awaiting approval")
    time.sleep(0.7)
    terminal.keys("Escape")
    terminal.sees("g: approve or reject")
    wait_for(folder, lambda s: all(k.stage.settled for k in s.kernels.values()), "the seeds did not settle")
    terminal.keys("C-e")
    terminal.sees("End this session?")
    terminal.keys("y")
    wait_for(folder, lambda s: s.closed is not None, "it did not end")
    terminal.keys("C-q")
    terminal.gone()

    events = [entry.event for entry in journal.read(folder).entries]
    assert any(isinstance(event, e.IdeaRejected) and event.reason == "not [this] one" for event in events)
    assert any(isinstance(event, e.SessionResumed) for event in events)
    seeds = [k for k in store.state_of(folder).kernels.values() if k.seed]
    assert [k.verification is not None for k in seeds] == [True, True]

    terminal.start("replay", folder.name)
    terminal.sees("replay")
    terminal.sees("mine.cpp")
    terminal.keys("C-q")
    terminal.gone()
