"""Helpers of the trial's tests: a tiny problem, a runner without a judge, and a check for processes left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import torch

from engine.domain.model import Operand, Problem, Role
from engine.problem import catalog
from engine.trial.judge.runners.host_client import Host
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.messages import LoadKernel, RunKernel
from engine.trial.shared import arena
from engine.trial.shared.layout import plan_layout

TINY = Path(__file__).parent / "problems" / "scaled_softmax"

WIDTH = 8
OPERANDS = (Operand("x", Role.INPUT, (WIDTH,), "float32"), Operand("out", Role.OUTPUT, (WIDTH,), "float32"))


def tiny() -> Problem:
    """Softmax of a scaled 64 × 512 matrix, with two hold-out shapes."""
    return catalog.find(str(TINY))


@contextmanager
def nothing_left_behind(folder: Path) -> Iterator[None]:
    """Assert that every process started inside ends shortly after; they carry a mark in ``PYTHONPATH``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)]))
        yield
    deadline = time.monotonic() + 10
    while (left := marked(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {left}"


def marked(mark: str) -> dict[int, str]:
    """Other live processes with ``mark`` in their environment: process id → command. Not Python's tracker of shared memory,
    which lives as long as this process."""
    found = {}
    own = {os.getpid(), resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
            if not dead and mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


class BareRunner:
    """One runner with two lent tensors, ``x`` and ``out``, and no judge."""

    def __init__(self, host: Host, seconds: float = 20.0) -> None:
        self.layout = plan_layout(OPERANDS, 1)
        self.inputs = arena.SharedArena(self.layout.input_bytes, writable=False)
        self.outputs = arena.SharedArena(self.layout.output_bytes, writable=True)
        self.runner = RunnerClient(host, seconds=seconds)

    @property
    def x(self) -> torch.Tensor:
        return self.inputs.tensor(self.layout.slots[0][0])

    @property
    def out(self) -> torch.Tensor:
        return self.outputs.tensor(self.layout.slots[0][1])

    def load(self, source: str) -> BareRunner:
        """Load a module's code and wait until it is ready."""
        (inputs, input_fds), (outputs, output_fds) = self.inputs.handle(), self.outputs.handle()
        load = LoadKernel(
            contract="module", device="cpu", slots=self.layout.slots, inputs=inputs, outputs=outputs, threads=1,
            scalars=(["list", []], ["dict", []], [["tensor"]]), source=source, copies_outputs=True,
        )  # fmt: skip
        self.runner.load(load, [*input_fds, *output_fds])
        self.runner.wait_ready(60)
        return self

    def call(self) -> list[float]:
        """One call; returns the contents of ``out``."""
        self.runner.call(RunKernel(0))
        return self.values()

    def values(self) -> list[float]:
        found: list[float] = self.out.tolist()
        return found

    def close(self) -> None:
        self.runner.close()
        self.inputs.close()
        self.outputs.close()


def module(*lines: str, before: Sequence[str] = ()) -> str:
    """A ``ModelNew`` with these lines as its forward, which gets ``x`` and must return eight elements."""
    body = "\n".join(f"        {line}" for line in lines)
    imports = ["import glob, json, os, signal, socket, sys, threading, time", "import torch", *before]
    return "\n".join([*imports, "class ModelNew(torch.nn.Module):", "    def forward(self, x):", body, ""])
