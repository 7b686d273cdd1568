"""A new user in an empty folder: two Enters, every way to steer, quit in mid-round, resume, fork. Four sizes, three themes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.tmux import ROOT, SHOWN_WITHIN, Terminal, wait_for

from engine.domain import events as e
from engine.domain.state import Idea, IdeaStatus, SessionState, Stage
from engine.journal import journal, store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None or shutil.which("g++") is None, reason="needs tmux and g++"),
]
SIZES = ((40, 12), (80, 24), (120, 40), (200, 60))
THEMES = ("dark", "light", "high contrast")
"""In the order in which F2 chooses them."""
GRACE = 0.7
"""Seconds in which no key approves."""


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "empty"
    folder.mkdir()
    found = Terminal(tmp_path, request.param, folder)
    yield found
    found.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("theme", THEMES)
def test_a_new_user_steers_a_session_quits_resumes_and_forks(terminal: Terminal, tmp_path: Path, theme: str) -> None:
    _start(terminal, THEMES.index(theme))
    folder = _first_session(terminal, tmp_path / "sessions")
    _decide(terminal, folder, tmp_path / "mine.cpp")
    _quit_in_mid_round(terminal, folder)
    terminal.start("open", folder.name)
    _steer_the_tree(terminal, folder)
    _fork(terminal, folder)

    events = [entry.event for entry in journal.read(folder).entries]
    assert any(isinstance(event, e.IdeaRejected) and event.reason == "not this one" for event in events)
    assert any(isinstance(event, e.SessionResumed) for event in events)


def _start(terminal: Terminal, themes: int) -> None:
    terminal.start()
    terminal.sees("Espalier")
    terminal.sees("softmax")
    terminal.keys(*["F2"] * themes)


def _first_session(terminal: Terminal, sessions: Path) -> Path:
    terminal.keys("Enter")
    terminal.sees("Proposer")
    terminal.keys("Enter")
    end = time.monotonic() + SHOWN_WITHIN
    while not (sessions.is_dir() and list(sessions.iterdir())):
        assert time.monotonic() < end, terminal.screen()
        time.sleep(0.1)
    (folder,) = sessions.iterdir()
    wait_for(folder, _open_ideas, "no idea was proposed")
    terminal.sees("Approve")
    time.sleep(GRACE)
    return folder


def _decide(terminal: Terminal, folder: Path, mine: Path) -> None:
    """Reject one idea, seed a kernel, edit an idea and approve it, write the code of the last."""
    terminal.keys("r")
    terminal.sees("Reason")
    terminal.type("not this one")
    terminal.keys("Enter")
    wait_for(folder, _has(lambda idea: idea.status is IdeaStatus.REJECTED), "nothing was rejected")

    mine.write_text(f"// seeded by hand\n{(ROOT / 'problems' / 'softmax' / 'playbook' / 'naive.cpp').read_text()}")
    terminal.keys("s")
    terminal.sees("Seed a kernel")
    terminal.type(str(mine))
    terminal.keys("C-s")
    wait_for(folder, lambda s: any(k.name == "mine.cpp" for k in s.kernels.values()), "nothing was seeded")

    terminal.keys("e")
    terminal.sees("Edit i")
    terminal.type("Edited: ")
    terminal.keys("C-s")
    wait_for(folder, _has(lambda idea: idea.edited), "nothing was edited")
    terminal.keys("a")
    wait_for(folder, _has(lambda idea: idea.edited and idea.status is IdeaStatus.SELECTED), "nothing was approved")

    terminal.keys("w")
    terminal.sees("Ctrl-S Submit")
    terminal.keys("C-s")
    wait_for(folder, lambda s: len([k for k in s.kernels.values() if k.seed]) == 2, "nothing was written by hand")


def _quit_in_mid_round(terminal: Terminal, folder: Path) -> None:
    assert not all(k.stage.settled for k in store.state_of(folder).kernels.values()), "the round was over already"
    terminal.keys("C-q")
    terminal.sees("Stay")
    terminal.keys("y")
    terminal.gone()


def _steer_the_tree(terminal: Terminal, folder: Path) -> None:
    """Let the round end, then pin a kernel and compare it with another."""
    wait_for(folder, _measured_two, "no two kernels were measured")
    terminal.sees("k1")
    time.sleep(GRACE)
    if "Reject" in terminal.screen():
        terminal.keys("q")
    terminal.keys("Home", "p")
    wait_for(folder, lambda s: s.pinned, "nothing was pinned")
    terminal.keys("m", "Down", "v")
    terminal.sees("\u2192")
    terminal.keys("q")


def _fork(terminal: Terminal, folder: Path) -> None:
    terminal.keys("F")
    terminal.sees("Fork from")
    terminal.keys("Enter")
    terminal.sees("Fork from here")
    terminal.keys("y")
    terminal.sees("Close (y)")
    terminal.keys("y")
    wanted = "the fork was not opened"
    end = time.monotonic() + SHOWN_WITHIN
    while not [other for other in folder.parent.iterdir() if other != folder and store.is_session(other)]:
        assert time.monotonic() < end, f"{wanted}:\n{terminal.screen()}"
        time.sleep(0.1)
    (other,) = (other for other in folder.parent.iterdir() if other != folder)
    state = wait_for(other, lambda s: s.kernels, wanted)
    assert set(store.state_of(folder).kernels) >= set(state.kernels)
    terminal.sees(other.name[-4:])  # its journal is there before its screen, and the dialog that opens it hides the app's keys
    terminal.keys("C-q")
    terminal.sees("Stay")
    terminal.keys("y")
    terminal.gone()


def _has(holds: Callable[[Idea], bool]) -> Callable[[SessionState], bool]:
    return lambda state: any(holds(idea) for idea in state.ideas.values())


def _open_ideas(state: SessionState) -> bool:
    return len([idea for idea in state.ideas.values() if idea.status is IdeaStatus.PROPOSED and idea.round == 1]) > 2


def _measured_two(state: SessionState) -> bool:
    return len([k for k in state.kernels.values() if k.stage is Stage.MEASURED]) > 1
