"""Kernel tools run in a process of their own, which may end at any time."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tui import kernel_tools


def test_a_tool_is_cancelled_quietly_when_its_process_has_just_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start = asyncio.create_subprocess_exec
    monkeypatch.setattr(kernel_tools, "_PROGRAM", (sys.executable, "-c", ""))

    async def act() -> None:
        ended = asyncio.Event()

        async def started(*command: str, **options: Any) -> asyncio.subprocess.Process:
            process = await start(*command, **options)
            read = process.communicate

            async def communicate() -> None:
                await read()
                ended.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(process, "communicate", communicate)
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
        tool = asyncio.create_task(kernel_tools.machine_code(tmp_path, "k1"))
        await ended.wait()
        tool.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tool

    asyncio.run(act())
