"""A terminal that goes away, whatever way, takes the face with it within seconds, and the session can be gone on with."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.program import command
from support.window import Window

from engine.domain import events as e
from engine.journal import journal
from engine.journal.lock import WriterLock

SEARCH = """
import sys, pathlib
from support import faces
doors = faces.FakeDoors(pause=60.0)
faces.face(doors, "new", faces.new(pathlib.Path(sys.argv[1]), "autopilot")).run()
"""
"""A search whose every work takes a minute: something is always under way."""


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
