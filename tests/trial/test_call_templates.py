"""Arguments that a kernel's process cannot be given are refused in one line, with what may be given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.domain.errors import ProblemError
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.input_dump import call_template, construction_arguments

TEXT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, *given):
        super().__init__()
    def forward(self, *given):
        return given[0] * 2

def get_inputs():
    return [torch.randn(4)]

def get_init_inputs():
    return [nn.ReLU()]
"""


@dataclass
class Pair:
    one: torch.Tensor


@pytest.fixture
def reference(tmp_path: Path) -> Reference:
    (tmp_path / "pairs.py").write_text(TEXT)
    problem = catalog.find(str(tmp_path / "pairs.py"))
    return Reference(problem, problem.workloads[0])


@pytest.mark.parametrize(("given", "what"), [(Pair(torch.ones(2)), "a Pair"), (torch.tanh, "a builtin"), (1j, "a complex")])
def test_an_argument_of_forward(reference: Reference, given: object, what: str) -> None:
    with pytest.raises(ProblemError, match=rf"pairs: get_inputs\(\) returns {what}.*: return tensors, numbers, strings"):
        call_template(reference, ([given],))


def test_an_argument_of_the_model(reference: Reference) -> None:
    with pytest.raises(ProblemError, match=r"pairs: get_init_inputs\(\) returns a ReLU, which cannot be passed"):
        construction_arguments(reference, 0)
