"""The user's editor on any code, and the profiler in its own process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from support import ui
from support.program import command as program
from support.ui import Watch, engineer_events, recorded, shows_tree, until
from support.window import Window
from textual.pilot import Pilot

from engine.domain import events as e
from engine.domain.errors import EspalierError
from tui import editor, kernel_tools
from tui.app import EspalierApp
from tui.screens import bridge_screen
from tui.screens.code_form import CodeForm
from tui.screens.machine_code import MachineCodeScreen
from tui.viewmodel import machine_code
from tui.widgets.lines import LinesView


def script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "editor.sh"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_the_editor_gets_a_file_of_the_kernels_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an editor that takes an option for a file makes one
    command = script(tmp_path, 'basename "$1" > "$1"')
    assert editor._edited(command, "old", "k5/softmax.cu", False) == "softmax.cu\n"
    assert editor._edited(f"{command} --wait", "old", "softmax.cu", False) == "old"


def test_a_file_to_read_has_no_write_permission(tmp_path: Path) -> None:
    command = script(tmp_path, f'stat -c %a "$1" > {tmp_path}/mode')
    editor._edited(command, "text", "softmax.cu", True)
    assert (tmp_path / "mode").read_text().strip() == "400"


@pytest.mark.slow
def test_ctrl_c_in_the_editor_is_the_editors(tmp_path: Path, windows: list[Window]) -> None:
    done = tmp_path / "done"
    command = script(tmp_path, f"trap 'echo caught' INT\necho edits\nwhile [ ! -e {done} ]; do sleep 0.05; done")
    window = Window(program("replay", "layernorm"), tmp_path, controlling=True, changes={"VISUAL": command})
    windows.append(window)
    window.sees(b"outcome")
    window.type(b"e")
    window.sees(b"edits")
    window.type(b"\x03")
    window.sees(b"caught")
    window.shown = b""
    done.touch()
    window.sees(b"outcome")
    window.type(b"?")
    window.sees(b"Keys and symbols")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["no-such-editor --wait", "'", "/"])
def test_the_screen_returns_from_an_editor_that_does_not_start(tmp_path: Path, windows: list[Window], command: str) -> None:
    window = Window(program("replay", "layernorm"), tmp_path, controlling=True, changes={"VISUAL": command})
    windows.append(window)
    window.sees(b"outcome")
    window.type(b"e")
    window.sees(b"set $VISUAL or $EDITOR")
    window.shown = b""
    window.type(b"?")
    window.sees(b"Keys and symbols")


@pytest.mark.slow
def test_the_form_for_code_writes_keys_as_everywhere_else() -> None:
    async def act() -> None:
        app, form = ui.app(), CodeForm("Write", "k.cpp", "", ("k.cpp", ""))
        async with app.run_test(size=(80, 24)) as pilot:
            app.push_screen(form)
            await until(pilot, lambda: app.screen is form and form.query("KeyFooter"))
            await ui.still(pilot)
            last = app.screen._compositor.render_strips()[-1].text
            assert "Ctrl-S Submit" in last
            assert "Esc Cancel" in last

    asyncio.run(act())


@pytest.mark.slow
def test_undo_restores_the_file_name_that_an_empty_kernel_replaced() -> None:
    async def act() -> None:
        app, form = ui.app(), CodeForm("Write", "mine.cu", "my code", ("kernel.cpp", "an empty kernel"))
        async with app.run_test(size=(80, 24)) as pilot:
            app.push_screen(form)
            await until(pilot, lambda: app.screen is form and form.query("KeyFooter"))
            for key, name, text in (
                ("ctrl+n", "kernel.cpp", "an empty kernel"), ("ctrl+n", "kernel.cpp", "an empty kernel"),
                ("ctrl+z", "mine.cu", "my code"), ("ctrl+y", "kernel.cpp", "an empty kernel"), ("ctrl+z", "mine.cu", "my code"),
            ):  # fmt: skip
                await pilot.press(key)
                await ui.still(pilot)
                assert form._written() == (text, name), key

    asyncio.run(act())


def test_visual_comes_before_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "nano")
    assert editor.editor_command() == "nano"
    monkeypatch.setenv("VISUAL", "code --wait")
    assert editor.editor_command() == "code --wait"


EDITED = 'extern "C" void launch(const float* x, float* out, void* workspace) {}\n'


@pytest.mark.slow
def test_edited_code_becomes_a_kernel_below_the_edited_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "session"
    asked: list[tuple[str, bool]] = []

    def edit(app: object, text: str, name: str, *, read_only: bool = False) -> str:
        asked.append((name, read_only))
        return EDITED

    monkeypatch.setattr(bridge_screen, "edit_text", edit)

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: shows_tree(app))
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, CodeForm))
        await pilot.press("escape")
        assert isinstance(app.screen, CodeForm), "the first Escape warns: the text is kept nowhere else"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: engineer_events(folder))

    ui.run_steered(folder, act)
    drafted = [entry.event for entry in recorded(folder) if isinstance(entry.event, e.KernelDrafted)]
    assert drafted[-1].seed
    assert drafted[-1].parent == "k1"
    assert [read_only for _, read_only in asked] == [False]


def test_a_refusal_of_the_profiler_is_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_tools, "_PROGRAM", (sys.executable, "-c", "import sys; sys.exit('espalier: unknown kernel')"))
    with pytest.raises(EspalierError, match=r"^unknown kernel$"):
        asyncio.run(kernel_tools.profile_kernel(tmp_path, "k9"))


HOT = {"samples": 2000, "lines": [{"line": 7, "text": "s += x[i];", "samples": 800}], "elsewhere": {"libm.so.6": 1200}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"summary": "memory-bound", "reason": "", "hot_code": None}, "memory-bound"),
        ({"summary": "", "reason": "no perf here", "hot_code": None}, "no perf here"),
        ({"summary": "", "reason": "no perf here", "hot_code": HOT}, "line 7 `s += x[i];` has 40% of 2,000 samples."),
    ],
)
def test_the_profilers_summary_or_its_reason_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: dict[str, object], words: str
) -> None:
    monkeypatch.setattr(kernel_tools, "_PROGRAM", (sys.executable, "-c", f"print({json.dumps(answer)!r})"))
    assert asyncio.run(kernel_tools.profile_kernel(tmp_path, "k1")) == words


ROWS = [
    {"sign": "", "function": "launch", "address": 0, "text": "mov %rdi,%rax", "line": 1, "samples": 0, "depth": 0},
    {"sign": "+", "function": "launch", "address": 16, "text": "@!P0 BRA .L", "line": 0, "samples": 0, "depth": 1},
]


@pytest.mark.slow
def test_8_shows_the_machine_code_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "session"
    answer = json.dumps({"kernel": "k1", "tool": "objdump", "samples": None, "instructions": ROWS})
    monkeypatch.setattr(kernel_tools, "_PROGRAM", (sys.executable, "-c", f"print({answer!r})"))
    shown: list[str] = []

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("escape")
        await until(pilot, lambda: shows_tree(app))
        await pilot.press("8")
        await until(pilot, lambda: isinstance(app.screen, MachineCodeScreen))
        page = app.screen.query_one(LinesView)
        await until(pilot, lambda: len(page.lines) > 3)
        shown.extend(line.text for line in page.lines)
        await pilot.press("q")
        await until(pilot, lambda: shows_tree(app))

    ui.run_steered(folder, act)
    assert shown[0].startswith("  2 instructions, objdump")
    assert any("1 │" in line for line in shown), "the instruction stands under its source line"
    assert any("mov %rdi,%rax" in line for line in shown)


def test_a_diff_of_machine_code_shows_what_changed() -> None:
    lines = [line.text for line in machine_code.difference({"instructions": ROWS})]
    assert lines[0].startswith("  +1 −0")
    assert lines[-1].split() == ["+", "10", "@!P0", "BRA", ".L"]
    assert "the same instructions" in machine_code.difference({"instructions": ROWS[:1]})[-1].text
