"""Hostile references and invalid files: one line each, and the next problem is still judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trial.ground import tiny

from engine.domain.errors import EspalierError, ProblemError
from engine.domain.model import Problem
from engine.domain.preparation import Peaks
from engine.problem import catalog
from engine.trial import protocol as p
from engine.trial.client import JudgeClient

PEAKS = Peaks(1e10, {"fp32": 1e11})
FORM = """
import os, signal, sys, threading, time, torch
from torch import nn
{top}
class Model(nn.Module):
    def __init__(self, *args):
        super().__init__()
        {init}
    def forward(self, x):
        {forward}
def get_inputs():
    {inputs}
def get_init_inputs():
    {inits}
"""
USUAL = {"top": "", "init": "pass", "forward": "return x * 2", "inputs": "return [torch.randn(64)]", "inits": "return []"}
WRITES = """
for n in range(3, 4096):
    try:
        os.write(n, b"{}" * 9)
    except OSError:
        pass
"""
HARMLESS = (
    "gives names of its own",
    "replaces torch",
    "gives an empty tensor",
    "answers with not a number",
    "returns random values",
)
"""Problems that may open. A correctness check that a trivial model passes reports it."""
HOSTILE: dict[str, dict[str, str]] = {
    "leaves while it is read": {"top": "sys.exit(0)"},
    "kills its process": {"forward": "os.kill(os.getpid(), signal.SIGKILL)"},
    "interrupts": {"top": "raise KeyboardInterrupt"},
    "never ends its own recursion": {"forward": "return self.forward(x)"},
    "says many lines": {"top": "raise ValueError('a\\nb\\n' * 1000)"},
    "an error whose words fail": {"top": "class E(Exception):\n    def __str__(self): raise E\nraise E"},
    "replaces torch": {"top": "torch.randn = None"},
    "replaces the interpreter's own": {"top": "import builtins; builtins.len = None"},
    "writes to everything that is open": {"top": WRITES},
    "closes everything that is open": {"top": "os.closerange(3, 4096)"},
    "gives inputs without end": {"inputs": "return iter(int, 1)"},
    "gives a number": {"inputs": "return 3"},
    "gives an empty tensor": {"inputs": "return [torch.empty(0)]"},
    "gives petabytes": {"inputs": "return [torch.empty(1 << 50)]"},
    "gives names of its own": {"inits": "return {'\\n': 1}"},
    "answers with nothing": {"forward": "return None"},
    "answers with not a number": {"forward": "return x * float('nan')"},
    "returns random values": {"forward": "return torch.randn(64)"},
    "answers with a word": {"forward": "return 'x'"},
    "answers with itself": {"forward": "y = []; y.append(y); return y"},
}  # fmt: skip


class Stand:
    """A judge that opens one problem after the other, restarted after a crash."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._judge = JudgeClient()
        self.started = 0

    def tried(self, problem: Problem) -> str:
        """The error of opening and calibrating a problem; empty if it can be judged."""
        return str(self._runner.run(asyncio.wait_for(self._tried(problem), 60)))

    async def _tried(self, problem: Problem) -> str:
        workload = catalog.workload_for(problem, "small")
        try:
            if not self._judge.running:
                self.started += 1
                await self._judge.start("cpu")
            await self._judge.ask(p.OpenRequest(problem, workload, (), "cpu", "class", "eager", (), True, True), say)
            await self._judge.ask(p.PrepareRequest(PEAKS, measure=False), say)
        except EspalierError as error:
            return str(error)
        return ""

    def restart(self) -> None:
        self._runner.run(self._judge.close())

    def close(self) -> None:
        self.restart()
        self._runner.close()


def say(text: str) -> None:
    assert text


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.close()


POISONS = ("replaces torch", "replaces the interpreter's own")
TELLING = (
    "leaves while it is read",
    "kills its process",
    "interrupts",
    "never ends its own recursion",
    "says many lines",
    "replaces the interpreter's own",
    "answers with itself",
)
"""One for each way to end, hang or alter the judge's process; CI runs them all."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in TELLING else pytest.mark.slow) for n in HOSTILE])
def test_a_hostile_reference_is_one_line(stand: Stand, tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.py"
    path.write_text(FORM.format(**USUAL | HOSTILE[name]))
    began = time.monotonic()
    words = stand.tried(catalog.find(str(path)))
    if name in POISONS:
        stand.restart()
    assert "\n" not in words
    assert "Traceback" not in words
    assert words or name in HARMLESS
    assert len(words) < 2000
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_the_next_problem_is_still_judged(stand: Stand) -> None:
    assert stand.tried(tiny()) == ""
    assert stand.started < 12


@pytest.mark.parametrize("data", [b"\0\1\2", b"\xff\xfe", b"def Model(:", b"", b"Model = get_inputs = get_init_inputs = 3\n"])
def test_an_invalid_reference_is_rejected_without_running_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "reference_of_mine.py"
    path.write_bytes(data)
    if data.startswith(b"Model ="):
        assert catalog.find(str(path)).workloads
        return
    with pytest.raises(ProblemError) as caught:
        catalog.find(str(path))
    assert "\n" not in str(caught.value)
