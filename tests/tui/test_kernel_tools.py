"""Kernel tools run in a process of their own, which may be cancelled at any time."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import pytest

from engine.domain.errors import EspalierError
from tui import kernel_tools

SLEEPING = """
import os, pathlib, sys, time
half = pathlib.Path(sys.argv[3], "half")
half.write_text(str(os.getpid()))
half.rename(half.with_name("begun"))
time.sleep(600)
"""
"""Writes its process number into the folder of the session."""


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> asyncio.Task[object]:
    monkeypatch.setattr(kernel_tools, "_PROGRAM", (sys.executable, "-c", script))
    return asyncio.create_task(kernel_tools.machine_code(folder, "k1"))


@pytest.mark.slow
@pytest.mark.parametrize("passes", range(8))
def test_a_tool_is_cancelled_quietly_while_its_process_starts(
    passes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: unraisable.append(found.exc_value))

    async def act() -> None:
        tool = answer(tmp_path, monkeypatch, "import time; time.sleep(600)")
        for _ in range(passes):
            await asyncio.sleep(0)
        tool.cancel()  # as a screen does that is left; the program may end before the tool has

    asyncio.run(act())
    gc.collect()
    assert unraisable == []


def test_a_cancelled_tool_ends_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def act() -> None:
        tool = answer(tmp_path, monkeypatch, SLEEPING)
        while not begun.exists():
            await asyncio.sleep(0.01)
        tool.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tool

    asyncio.run(act())
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('espalier: no kernel k1')", "no kernel k1"),
        ("pass", "machine-code ended without a result"),
    ],
)
def test_a_tool_without_a_result_tells_why(script: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def act() -> None:
        with pytest.raises(EspalierError, match=words):
            await answer(tmp_path, monkeypatch, script)

    asyncio.run(act())


def test_a_tool_answers_with_what_it_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def act() -> object:
        return await answer(tmp_path, monkeypatch, "print('{\"lines\": [1]}')")

    assert asyncio.run(act()) == {"lines": [1]}
