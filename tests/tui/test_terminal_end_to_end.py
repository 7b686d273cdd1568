"""``espalier`` in a terminal (tmux): softmax on the CPU, steered by keys only, killed, resumed, replayed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tmux import ROOT, Terminal, wait_for

from engine.domain import events as e
from engine.domain.state import IdeaStatus
from engine.journal import journal, store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None or shutil.which("g++") is None, reason="needs tmux and g++"),
]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    yield found
    found.close()


@pytest.mark.timeout(600)
def test_a_session_from_its_beginning_to_its_replay(terminal: Terminal, tmp_path: Path) -> None:
    terminal.start()
    terminal.sees("example")  # the checkout's recorded sessions are listed; the problems have the focus
    terminal.sees("Enter: new session on this problem")
    terminal.keys("Enter")
    terminal.sees("Mode")
    terminal.keys("Enter")
    terminal.sees("to approve")
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
    terminal.sees("Ctrl-S Submit")
    terminal.keys("C-s")
    state = wait_for(folder, lambda s: len([k for k in s.kernels.values() if k.seed]) == 2, "nothing was written by hand")
    written = list(state.kernels.values())[-1]
    assert state.ideas[written.idea].status is IdeaStatus.SELECTED

    os.kill(terminal.process(), signal.SIGKILL)
    terminal.gone()
    assert store.state_of(folder).closed is None

    terminal.start("open", folder.name)
    terminal.sees("to approve")
    time.sleep(0.7)
    terminal.keys("Escape")
    terminal.sees("Approve ideas")
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
