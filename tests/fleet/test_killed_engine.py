"""An engine that is killed leaves no worker behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import fake_worker

_ENGINE = """
import asyncio
from support import fake_worker
from engine.fleet.links import ProcessLink
from engine.fleet.places import WorkerPlace

async def main():
    links = [await ProcessLink.start(WorkerPlace(f"cpu:{n}", "cpu"), fake_worker.COMMAND) for n in range(2)]
    for link in links:
        await link.receive()
    print(*(link.pid for link in links), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_engine_leaves_no_worker() -> None:
    root = Path(fake_worker.__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    engine = subprocess.Popen([sys.executable, "-c", _ENGINE], env=environment, stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    workers = [int(word) for word in engine.stdout.readline().split()]
    assert len(workers) == 2
    assert all(map(runs, workers))
    engine.kill()
    engine.communicate()
    until(lambda: not any(map(runs, workers)))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
