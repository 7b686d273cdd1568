"""Recurrent references: their signature costs one time step, and their graph is refused quickly where it would be unrolled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.codegen.naive import naive
from engine.domain.model import Contract, Dialect, Role
from engine.problem import catalog
from engine.problem.counting import recurrences
from engine.problem.counting.bytes_read import ReadCounter
from engine.problem.counting.operation_count import OperationCounter
from engine.problem.counting.recurrences import OneTimeStep
from engine.problem.graph import trace_reference
from engine.problem.graph_ir import Graph, Unsupported
from engine.problem.reference import Reference

CELLS = ["LSTM", "GRU", "RNN"]
CODE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.{cell}(6, 5, 2, batch_first={batch_first}, bidirectional=True)

    def forward(self, x):
        out, state = self.cell(x)
        return out, state[0] if isinstance(state, tuple) else state

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return []
"""


def reference(folder: Path, cell: str, steps: int, *, batch_first: bool = True) -> Reference:
    shape = f"3, {steps}, 6" if batch_first else f"{steps}, 3, 6"
    file = folder / f"{cell}_{steps}_{batch_first}.py"
    file.write_text(CODE.format(cell=cell, batch_first=batch_first, shape=shape))
    problem = catalog.find(str(file))
    return Reference(problem, problem.workloads[0])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_the_signature_is_that_of_all_steps(tmp_path: Path, cell: str, batch_first: bool) -> None:
    found = reference(tmp_path, cell, 7, batch_first=batch_first)
    outputs = found.call(found.model(0), found.inputs(0))
    assert [o.shape for o in found.signature().with_roles(Role.OUTPUT)] == [tuple(o.shape) for o in outputs]


@pytest.mark.parametrize("cell", CELLS)
def test_one_step_counts_as_often_as_there_are_steps(cell: str) -> None:
    model, given = getattr(nn, cell)(6, 5, 2), torch.rand(9, 3, 6)
    whole, one = OperationCounter(torch.device("cpu")), OperationCounter(torch.device("cpu"))
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        with whole:
            model(given)
        with OneTimeStep(one, ReadCounter()), one:
            model(given)
    assert one.total == pytest.approx(whole.total, rel=0.02)
    assert one.total > 0


def test_packed_sequences_are_run_as_they_are() -> None:
    model, counter = nn.GRU(6, 5), OperationCounter(torch.device("cpu"))
    packed = nn.utils.rnn.pack_padded_sequence(torch.rand(4, 2, 6), torch.tensor([4, 2]))
    with torch.no_grad(), OneTimeStep(counter, ReadCounter()), counter:
        assert model(packed)[0].data.shape == (6, 5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_a_long_recurrence_is_refused_at_once(tmp_path: Path, cell: str) -> None:
    began = time.process_time()
    found = trace_reference(reference(tmp_path, cell, 200))
    assert isinstance(found, Unsupported)
    assert "over 200 time steps" in found.what
    assert time.process_time() - began < 10


@pytest.mark.slow
def test_a_short_recurrence_has_a_naive_port(tmp_path: Path) -> None:
    short = reference(tmp_path, "GRU", 3)
    graph = trace_reference(short)
    assert isinstance(graph, Graph)
    assert isinstance(naive(graph, short.signature(), Dialect.CPP, Contract.HOST), str)


@pytest.mark.slow
def test_a_loop_in_python_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "loop.py"
    loop = "def forward(self, x):\n        for _ in range(5_000):\n            x = x * 0.5 + 1\n        return x\n"
    file.write_text(
        f"import torch\nfrom torch import nn\n\nclass Model(nn.Module):\n    {loop}\n"
        "def get_inputs():\n    return [torch.rand(4)]\n\ndef get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(file))
    found = Reference(problem, problem.workloads[0])
    monkeypatch.setattr("engine.problem.reference.trace_on_fake_tensors", lambda *_: None)
    monkeypatch.setattr(recurrences, "MAX_CPU_S", 0.1)
    refused = trace_reference(found)
    assert isinstance(refused, Unsupported)
    assert "takes more than 0.1 s to trace" in refused.what
