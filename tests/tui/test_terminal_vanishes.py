"""A lost terminal ends the terminal UI within seconds, and the session can be resumed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import command
from support.window import Window, searching

from engine.domain import events as e
from engine.journal import journal
from engine.journal.lock import WriterLock


def send(number: signal.Signals, times: int = 1) -> Callable[[Window], None]:
    def act(window: Window) -> None:
        for _ in range(times):
            window.process.send_signal(number)
            time.sleep(0.01)

    return act


def send_until_gone(window: Window) -> None:
    """SIGINT every few milliseconds, also while the interpreter ends."""
    end = time.monotonic() + 10
    while window.process.poll() is None and time.monotonic() < end:
        window.process.send_signal(signal.SIGINT)
        time.sleep(0.003)


def quit_and_interrupt(window: Window) -> None:
    window.type(b"q")
    time.sleep(0.05)
    send_until_gone(window)


WAYS: list[tuple[str, bool, Callable[[Window], None]]] = [
    ("closed", True, Window.hang_up),
    ("silent", False, Window.hang_up),
    ("SIGHUP", True, send(signal.SIGHUP)),
    ("SIGTERM", True, send(signal.SIGTERM)),
    ("SIGINT, again and again", True, send(signal.SIGINT, 5)),
    ("SIGINT until it has ended", True, send_until_gone),
]


in_every_way = pytest.mark.parametrize(
    ("way", "controlling", "vanish"),
    [pytest.param(*way, id=way[0], marks=[] if way[0] in ("closed", "SIGHUP") else pytest.mark.slow) for way in WAYS],
)


@pytest.mark.slow
@in_every_way
def test_the_ui_ends_with_its_terminal(
    tmp_path: Path, windows: list[Window], way: str, controlling: bool, vanish: Callable[[Window], None]
) -> None:
    window = Window(command(), tmp_path, controlling=controlling)
    windows.append(window)
    window.sees(b"softmax")
    vanish(window)
    window.gone()


@pytest.mark.slow
def test_an_interrupt_of_a_program_that_ends_changes_nothing(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(command(), tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"softmax")
    quit_and_interrupt(window)
    window.gone()


@pytest.mark.slow
def test_a_program_that_was_continued_ends_with_its_terminal(tmp_path: Path, windows: list[Window]) -> None:
    """Each SIGCONT, which a terminal sends as it hangs up, started another thread that read it: one of them never ended."""
    window = Window(command(), tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"softmax")
    for _ in range(5):
        send(signal.SIGCONT)(window)
        time.sleep(0.2)
    window.hang_up()
    window.gone()


@pytest.mark.slow
@in_every_way
def test_a_search_that_lost_its_terminal_can_be_resumed(
    tmp_path: Path, windows: list[Window], way: str, controlling: bool, vanish: Callable[[Window], None]
) -> None:
    folder = tmp_path / "session"
    window = Window(searching(folder, 60.0), tmp_path, controlling=controlling)
    windows.append(window)
    window.sees(b"preparing")
    vanish(window)
    window.gone()
    entries = journal.read(folder).entries
    assert entries[-1].event == e.WorkFailed("prepare", "interrupted"), "the session must be closed, not killed"
    WriterLock(folder).release()
