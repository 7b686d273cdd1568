"""Unusual terminals: those that cannot show the UI, Ctrl-Z, and changing sizes."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import ROOT, command
from support.window import Window, searching

from engine.domain import events as e
from engine.domain import queries
from engine.journal import journal, store
from tui.terminal import set_loop_clock_back

SESSION = "layernorm"
"""A recorded session of the repository."""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("open", "COPY"), ("replay", SESSION), ("follow", SESSION)])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, b"the locale is not UTF-8"),
    ],
)
def test_a_terminal_that_cannot_show_the_ui_gets_one_line(
    tmp_path: Path, windows: list[Window], changes: dict[str, str], words: bytes, arguments: tuple[str, ...]
) -> None:
    shutil.copytree(ROOT / "sessions" / SESSION, tmp_path / "copy", ignore=shutil.ignore_patterns("blobs"))
    arguments = tuple(argument.replace("COPY", str(tmp_path / "copy")) for argument in arguments)
    window = Window(command(*arguments), tmp_path, controlling=True, changes=changes)
    windows.append(window)
    window.sees(b"--headless`\r\n")
    assert window.process.wait(30) == 2
    assert words in window.shown
    assert window.shown.count(b"\n") == 1
    assert b"\x1b" not in window.shown


@pytest.mark.slow
def test_a_terminal_without_colours_is_sent_none(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(command("replay", SESSION), tmp_path, controlling=True, changes={"TERM": "vt100", "COLORTERM": ""})
    windows.append(window)
    window.sees(b"outcome")
    window.type(b"\x11")
    assert window.process.wait(30) == 0
    styles = {part for found in re.findall(rb"\x1b\[([\d;]+)m", window.shown) for part in found.split(b";")}
    assert styles <= {b"0", b"1", b"3", b"4", b"7", b"22", b"23", b"24", b"27", b"39", b"49"}
    assert b"7" in styles, "the cursor is inverse"


@pytest.mark.slow
def test_redirected_errors_do_not_receive_the_screen(tmp_path: Path, windows: list[Window]) -> None:
    elsewhere = tmp_path / "errors"
    line = ["sh", "-c", f'"$@" 2> {elsewhere}', "sh", *command("replay", SESSION)]
    window = Window(line, tmp_path, controlling=True)
    windows.append(window)
    assert window.process.wait(30) == 2
    assert "standard error is redirected" in elsewhere.read_text()
    assert "\x1b" not in elsewhere.read_text()


@pytest.mark.slow
def test_without_an_input_terminal_the_ui_does_not_start(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(["sh", "-c", '"$@" <&-', "sh", *command()], tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"Usage: espalier")
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


def suspend(shell: Window) -> None:
    shell.shown = b""
    shell.type(b"\x1a")
    shell.sees(b"Stopped")
    shell.sees(b"ready> ")
    assert b"\x1b[?1049l" in shell.shown, "the shell has its own screen again"


def resume_in_shell(shell: Window) -> None:
    shell.shown = b""
    shell.type(b"fg\n")
    shell.sees(b"\x1b[?1049h")


@pytest.mark.parametrize(
    "wrapper", [(), pytest.param(("env",), marks=pytest.mark.slow), ("bash", "-c", '"$@"; exit $?', "bash")]
)
def test_ctrl_z_returns_to_the_shell_and_fg_resumes(tmp_path: Path, windows: list[Window], wrapper: tuple[str, ...]) -> None:
    shell = at_a_shell(windows, tmp_path)
    shell.type(line(*wrapper, *command("replay", SESSION)))
    shell.sees(b"outcome")
    for _ in range(2):
        suspend(shell)
        shell.type(b"echo $((6 * 7))\n")
        shell.sees(b"42")
        resume_in_shell(shell)
        shell.sees(b"outcome")
    shell.type(b"\x11")
    shell.sees(b"ready> ")


@pytest.mark.slow
def test_a_search_survives_ctrl_z(tmp_path: Path, windows: list[Window]) -> None:
    """Its time limits do not run while it is suspended."""
    folder = tmp_path / "session"
    shell = at_a_shell(windows, tmp_path)
    shell.type(line(*searching(folder, 0.1)))
    shell.sees(b"k3")
    suspend(shell)
    time.sleep(1.0)
    resume_in_shell(shell)
    until(lambda: store.state_of(folder).closed is not None)
    kinds = {type(entry.event) for entry in journal.read(folder).entries}
    assert not kinds & {e.WorkFailed, e.KernelCancelled}
    assert queries.incumbent(store.state_of(folder)) is not None
    shell.type(b"\x11")
    shell.sees(b"ready> ")


@pytest.mark.slow
def test_ctrl_z_without_a_shell_does_not_suspend(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(command("replay", SESSION), tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"outcome")
    window.type(b"\x1a")
    window.sees(b"shell")
    window.type(b"\x11")
    assert window.process.wait(30) == 0


def test_suspended_time_does_not_count() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30) as limit:
            for seconds, left in ((100.0, 130.0), (20.0, 150.0)):
                set_loop_clock_back(seconds)
                assert (limit.when() or 0.0) - loop.time() == pytest.approx(left, abs=2.0)

    asyncio.run(wait())


@pytest.mark.slow
def test_closing_the_window_after_ctrl_z_ends_the_ui(tmp_path: Path, windows: list[Window]) -> None:
    """The terminal is watched again after the UI resumed."""
    shell = at_a_shell(windows, tmp_path)
    shell.type(line(*command("replay", SESSION)))
    shell.sees(b"outcome")
    suspend(shell)
    resume_in_shell(shell)
    shell.sees(b"outcome")
    started = children(shell.process.pid)
    shell.hang_up()
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in started))
