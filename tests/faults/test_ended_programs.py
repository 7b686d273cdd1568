"""A program that is ended while it judges leaves no process behind, and the device free."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import command, environment
from trial.ground import TINY, marked

from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.trial.lease import LEASES, queues

SMALL = ("--device", "cpu", "--workload", "small")
KERNEL = Path(__file__).parent.parent / "exploits" / "right.h"
LIMIT_S = 60
PROGRAMS: dict[str, Callable[[Path], list[str]]] = {
    "eval": lambda folder: command("eval", TINY, folder / "kernel.cpp", *SMALL),
    "run": lambda folder: command("run", TINY, *SMALL, "--headless", "--session", folder / "session"),
    "run on a fleet": lambda folder: [*PROGRAMS["run"](folder), "--fleet", "local:1"],
    "kernelbench": lambda folder: [
        sys.executable, "-m", "benchmarks.kernelbench", str(folder / "level1"), "--device", "cpu", "--results",
        str(folder / "results.jsonl"),
    ],
}  # fmt: skip
ENDINGS = [
    ("eval", signal.SIGTERM),
    ("eval", signal.SIGKILL),
    ("run", signal.SIGKILL),
    ("run on a fleet", signal.SIGKILL),
    ("kernelbench", signal.SIGTERM),
    ("kernelbench", signal.SIGKILL),
]
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(512, 4096)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the programs judge, and where they keep things: nothing is prepared."""
    launch = 'extern "C" void launch(const float* x, const float* weight, float* out, void*)'
    (tmp_path / "kernel.cpp").write_text(f"{KERNEL.read_text()}\n{launch}\n{{\nright(x, weight, out);\n}}\n")
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "19_ReLU.py").write_text(MODEL)
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(LEASES, str(tmp_path / "leases"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap_reason() is not None, reason="orphans are only found for sure in a sandbox")
@pytest.mark.parametrize(("program", "number"), ENDINGS)
def test_a_program_that_is_ended_leaves_nothing(folder: Path, program: str, number: signal.Signals) -> None:
    mark = str(folder)
    given = environment(folder)
    given = {**given, "PYTHONPATH": f"{given['PYTHONPATH']}:{mark}"}
    running = subprocess.Popen(
        PROGRAMS[program](folder), env=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: any("engine.trial.judge" in words for words in marked(mark).values()), running)
        assert queues(), "it holds the device"
        running.send_signal(number)
        running.communicate(timeout=LIMIT_S)
        until(lambda: not marked(mark))
        assert not queues()
    finally:
        running.kill()
        for pid in marked(mark):
            subprocess.run(["kill", "-9", str(pid)], check=False)


def until(condition: Callable[[], bool], running: subprocess.Popen[str] | None = None) -> None:
    """Wait for other processes."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if running is not None and running.poll() is not None:
            pytest.fail(f"it ended too early: {running.communicate()[1]}")
        assert time.monotonic() < deadline
        time.sleep(0.02)
