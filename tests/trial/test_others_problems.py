"""Problems with unusual inputs and outputs: the reference itself, used as a kernel, passes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.domain import work as w
from engine.problem import catalog
from engine.toolchain.kernel_file import classify
from engine.trial.bench import Assignment, KernelSpec, TrialBench

HEAD = """
from dataclasses import dataclass

import torch
from torch import nn


class Model(nn.Module):
"""

PROBLEMS = {
    "indices": """
    def __init__(self, many, width):
        super().__init__()
        self.table = nn.Embedding(many, width)

    def forward(self, rows):
        return torch.relu(self.table(rows)).mean(1)


def get_inputs():
    return [torch.randint(0, 100, (32, 16))]


def get_init_inputs():
    return [100, 64]
""",
    "None and a number among the outputs": """
    def forward(self, x):
        y = torch.sigmoid(x)
        return y, None, y.shape[0]


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
""",
    "8-bit floating-point inputs": """
    def forward(self, x, y, scale):
        return (x.float() * scale) @ y.float()


def get_inputs():
    x, y = torch.randn(32, 64), torch.randn(64, 32)
    return [x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fnuz), torch.rand(64)]


def get_init_inputs():
    return []
""",
    "a stateful model": """
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return torch.tanh(x) * self.calls


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
""",
    "constructed with a dtype and a random tensor": """
    def __init__(self, dtype, by):
        super().__init__()
        self.by = by[0].to(dtype)

    def forward(self, x):
        return torch.tanh(x * self.by)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return [torch.float32, {0: torch.rand(64)}]
""",
    "objects that the forward changes": """
    def forward(self, config, x, cache):
        cache.data[:, cache.seen] = x * config.weight
        cache.seen += 1
        return cache.data[:, : cache.seen].sum(1), cache.data


@dataclass
class Config:
    width: int
    weight: torch.Tensor


class Cache(nn.Module):
    def __init__(self, rows, most):
        super().__init__()
        self.register_buffer("data", torch.randn(rows, most, 32))
        self.seen = most - 1


def get_inputs():
    return [Config(32, torch.rand(32)), torch.randn(16, 32), Cache(16, 4)]


def get_init_inputs():
    return []
""",
}


async def judged(file: Path, kernel: str) -> object:
    problem = catalog.find(str(file))
    bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
    try:
        dialect, contract = classify(kernel, "kernel.py")
        return await asyncio.wait_for(
            bench.verify_kernel(KernelSpec("kernel.py", kernel, dialect, contract, {}), lambda _: None), 120
        )
    finally:
        await bench.close()


USUAL = "nothing and a number among the outputs"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == USUAL else pytest.mark.slow) for n in PROBLEMS])
def test_the_reference_itself_passes(tmp_path: Path, name: str) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(HEAD + PROBLEMS[name])
    kernel = (HEAD + PROBLEMS[name]).replace("class Model(", "class ModelNew(")
    found = asyncio.run(judged(file, kernel))
    assert isinstance(found, w.Verified), found
