"""Terminals that are not as most are: none that a screen can be drawn on, and sizes that come and go."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import command
from support.window import Window, searching

from engine.domain import events as e
from engine.domain import queries
from engine.journal import journal, store
from tui.terminal import set_loop_clock_back

SESSION = "layernorm"
"""One that ships."""


@pytest.mark.parametrize("arguments", [(), ("open", SESSION), ("replay", SESSION), ("follow", SESSION)])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TERM": "dumb"}, b"TERM is dumb"),
        ({"TERM": ""}, b"TERM is not set"),
        ({"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, b"the locale is not UTF-8"),
    ],
)
def test_where_no_screen_can_be_drawn_one_line_says_so(
    tmp_path: Path, windows: list[Window], changes: dict[str, str], words: bytes, arguments: tuple[str, ...]
) -> None:
    window = Window(command(*arguments), tmp_path, controlling=True, changes=changes)
    windows.append(window)
    window.sees(b"--headless`\r\n")
    assert window.process.wait(30) == 2
    assert words in window.shown
    assert window.shown.count(b"\n") == 1
    assert b"\x1b" not in window.shown


def test_a_screen_whose_errors_go_elsewhere_is_not_drawn_there(tmp_path: Path, windows: list[Window]) -> None:
    elsewhere = tmp_path / "errors"
    line = ["sh", "-c", f'"$@" 2> {elsewhere}', "sh", *command("replay", SESSION)]
    window = Window(line, tmp_path, controlling=True)
    windows.append(window)
    assert window.process.wait(30) == 2
    assert "standard error goes elsewhere" in elsewhere.read_text()
    assert "\x1b" not in elsewhere.read_text()


def test_without_an_input_there_is_no_screen(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(["sh", "-c", '"$@" <&-', "sh", *command()], tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"Look around")
    assert window.process.wait(30) == 0


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def at_a_shell(windows: list[Window], home: Path) -> Window:
    """A window with a shell that has job control."""
    shell = Window(["bash", "--norc", "--noprofile", "-i"], home, controlling=True, changes={"PS1": "ready> "})
    windows.append(shell)
    shell.sees(b"ready> ")
    return shell


def line(*arguments: object) -> bytes:
    return f"{shlex.join(str(one) for one in arguments)}\n".encode()


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def lay_aside(shell: Window) -> None:
    shell.shown = b""
    shell.type(b"\x1a")
    shell.sees(b"Stopped")
    shell.sees(b"ready> ")
    assert b"\x1b[?1049l" in shell.shown, "the shell has its own screen again"


def take_up(shell: Window) -> None:
    shell.shown = b""
    shell.type(b"fg\n")
    shell.sees(b"\x1b[?1049h")


@pytest.mark.parametrize(
    "wrapper", [(), pytest.param(("env",), marks=pytest.mark.slow), ("bash", "-c", '"$@"; exit $?', "bash")]
)
def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(
    tmp_path: Path, windows: list[Window], wrapper: tuple[str, ...]
) -> None:
    shell = at_a_shell(windows, tmp_path)
    shell.type(line(*wrapper, *command("replay", SESSION)))
    shell.sees(b"outcome")
    for _ in range(2):
        lay_aside(shell)
        shell.type(b"echo $((6 * 7))\n")
        shell.sees(b"42")
        take_up(shell)
        shell.sees(b"outcome")
    shell.type(b"\x11")
    shell.sees(b"ready> ")


def test_a_search_survives_ctrl_z(tmp_path: Path, windows: list[Window]) -> None:
    """Its limits of time stand still while it does."""
    folder = tmp_path / "session"
    shell = at_a_shell(windows, tmp_path)
    shell.type(line(*searching(folder, 0.1)))
    shell.sees(b"k3")
    lay_aside(shell)
    time.sleep(1.0)
    take_up(shell)
    until(lambda: store.state_of(folder).closed is not None)
    kinds = {type(entry.event) for entry in journal.read(folder).entries}
    assert not kinds & {e.WorkFailed, e.KernelCancelled}
    assert queries.incumbent(store.state_of(folder)) is not None
    shell.type(b"\x11")
    shell.sees(b"ready> ")


def test_without_a_shell_behind_it_ctrl_z_stops_nothing(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(command("replay", SESSION), tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"outcome")
    window.type(b"\x1a")
    window.sees(b"shell")
    window.type(b"\x11")
    assert window.process.wait(30) == 0


def test_the_time_away_does_not_count() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30) as limit:
            for seconds, left in ((100.0, 130.0), (20.0, 150.0)):
                set_loop_clock_back(seconds)
                assert (limit.when() or 0.0) - loop.time() == pytest.approx(left, abs=2.0)

    asyncio.run(wait())


@pytest.mark.slow
def test_a_window_that_closes_after_ctrl_z_takes_the_face_with_it(tmp_path: Path, windows: list[Window]) -> None:
    """The terminal is watched again after it was given back."""
    shell = at_a_shell(windows, tmp_path)
    shell.type(line(*command("replay", SESSION)))
    shell.sees(b"outcome")
    lay_aside(shell)
    take_up(shell)
    shell.sees(b"outcome")
    started = children(shell.process.pid)
    shell.hang_up()
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in started))
