"""What all processes of a command use together is bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from engine.sandbox.process import ProcessResult, run
from engine.sandbox.watchdog import Excess, TreeLimits, descendants
from engine.toolchain.build_budget import machine_memory

HALF = f"{sys.executable} -c 'import time; kept = b\"x\" * (120 << 20); time.sleep(60)'"
MEMORY = f"({HALF}) & ({HALF}) & wait"
"""Two processes, each below the limit."""


def _run(script: str, folder: Path, limits: TreeLimits) -> ProcessResult:
    return asyncio.run(run(["sh", "-c", script], seconds=30, folder=folder, limits=limits))


def _alive(mark: str) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("script", "limits", "excess"),
    [
        (MEMORY, TreeLimits(memory_bytes=200 << 20), Excess.MEMORY),
        ("for n in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait", TreeLimits(processes=8), Excess.PROCESSES),
        ("for n in 1 2 3; do head -c 1000000 /dev/zero > $n; done; sleep 60", TreeLimits(folder_bytes=2 << 20), Excess.FILES),
        ("mkdir a; cd a; seq 1100 | split -l 1 -a 4; sleep 60", TreeLimits(folder_bytes=1 << 40), Excess.FILES),
        ("yes", TreeLimits(printed_bytes=1 << 20), Excess.OUTPUT),
    ],
    ids=["memory", "processes", "size", "files", "output"],
)
def test_a_command_that_exceeds_a_limit_is_killed(tmp_path: Path, script: str, limits: TreeLimits, excess: Excess) -> None:
    mark = uuid.uuid4().hex
    result = _run(f": {mark}; {script}", tmp_path, limits)
    assert result.exceeded is excess
    assert not result.timed_out
    assert _alive(mark) == []


def test_a_command_within_its_limits_ends_by_itself(tmp_path: Path) -> None:
    script = "head -c 500000 /dev/zero > file; sleep 0.3; echo done"
    result = _run(script, tmp_path, TreeLimits(1 << 30, 8, 1 << 20, 1 << 10))
    assert (result.status, result.output, result.exceeded) == (0, "done\n", None)


def test_processes_of_all_generations_are_counted(tmp_path: Path) -> None:
    async def counted() -> int:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "sh -c 'sleep 60 & sleep 60; :' & wait", start_new_session=True
        )
        try:
            while len(found := descendants(process.pid)) < 4:
                await asyncio.sleep(0.01)
            return len(found)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    assert asyncio.run(asyncio.wait_for(counted(), 30)) == 4


def test_a_machine_has_memory() -> None:
    assert machine_memory() > 1 << 28
