"""Verdicts on modules whose outputs or parameters are memory that later calls change."""

from __future__ import annotations

import asyncio
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from engine.domain import work as w
from engine.domain.model import Contract, Dialect
from engine.problem import catalog
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge.runners import runner_memory
from engine.trial.judge.runners.runner_memory import RunnerMemory

HEAD = """
import torch
from torch import nn
class Model(nn.Module):
"""
TAIL = """
def get_inputs():
    return [torch.randn(64, 48)]
def get_init_inputs():
    return []
"""


def verdict(folder: Path, reference: str, kernel: str) -> object:
    """The verdict on one class body for another one."""
    file = folder / "theirs.py"
    file.write_text(f"{HEAD}{reference}{TAIL}")
    problem = catalog.find(str(file))
    code = f"{HEAD}{kernel}".replace("class Model(", "class ModelNew(")

    async def judge() -> object:
        bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
        try:
            return await bench.verify_kernel(KernelSpec("mine.py", code, Dialect.PYTHON, Contract.MODULE, {}), lambda _: None)
        finally:
            await bench.close()

    return asyncio.run(judge())


def forward(body: str) -> str:
    return f"    def forward(self, x):\n        {body}\n"


@pytest.mark.slow
def test_an_output_in_an_inputs_memory_is_named(tmp_path: Path) -> None:
    found = verdict(tmp_path, forward("return x * 2, x.clone()"), forward("return x * 2, x"))
    assert isinstance(found, w.Failed)
    assert found.failure.reason.startswith("output 1 lies in the memory of an input, which later calls overwrite")


UPDATES = """    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "update", ["self.weight.data.sub_(0.1 * x)", "self.weight.data = self.weight.data - 0.1 * x", "self.weight.sub_(0.1 * x)"]
)
def test_a_reference_that_changes_its_parameters_is_verified_against_itself(tmp_path: Path, update: str) -> None:
    body = UPDATES + forward(f"{update}; return self.weight * 1")
    found = verdict(tmp_path, body, body)
    assert isinstance(found, w.Verified), found
    own = body.replace("self.weight = ", "torch.randn(3); self.drawn = nn.Linear(1, 1); self.weight = ")
    assert isinstance(verdict(tmp_path, body, own), w.Verified)


def test_only_lent_memory_that_its_process_cannot_write_is_an_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.memfd_create("operands")
    os.truncate(fd, 1 << 12)
    lent, shared = mmap.mmap(fd, 1 << 12, mmap.MAP_SHARED, mmap.PROT_READ), mmap.mmap(fd, 1 << 12)
    os.close(fd)
    arrays = [np.frombuffer(lent, np.uint8), np.frombuffer(shared, np.uint8), np.zeros(64, np.uint8)]
    memory = RunnerMemory(os.getpid(), (*(array.ctypes.data for array in arrays), 0))
    assert [memory.is_lent_input(index) for index in range(4)] == [True, False, False, False]
    assert [memory.is_lent(index) for index in range(4)] == [True, True, False, False]
    own, others = runner_memory._mappings(os.getpid()), os.getpid() + 1
    monkeypatch.setattr(runner_memory, "_mappings", lambda process: [] if process == os.getpid() else own)
    judged = RunnerMemory(others, memory.addresses)
    assert not any(map(judged.is_lent_input, range(4))), "made by the process itself"
    assert not any(map(judged.is_lent, range(4)))


@pytest.mark.slow
@pytest.mark.parametrize("changes", ["x.tril_()", "x.mul_(2)"])
def test_its_own_buffer_is_no_input_that_the_reference_returns(tmp_path: Path, changes: str) -> None:
    """A buffer in which a part is written once was verified where the reference changes its input and returns it."""
    own = f"kept = vars(self).setdefault('kept', torch.zeros_like(x)); kept.copy_({changes}); return kept"
    found = verdict(tmp_path, forward(f"return {changes}"), forward(own))
    assert isinstance(found, w.Failed)
    assert "memory of an earlier call" in found.failure.reason
    for right in (changes, f"{changes} + 0"):
        assert isinstance(verdict(tmp_path, forward(f"return {changes}"), forward(f"return {right}")), w.Verified)
