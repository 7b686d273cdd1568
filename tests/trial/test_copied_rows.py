"""Inputs that hold rows of another one: which rows, and which kernels they find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.calibration import calibrate
from engine.trial.judge.cases import make_case, output_names
from engine.trial.judge.perturbations import COPIES, perturb

LENGTHS = st.integers(1, 9)
DISTANCES = """import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return (a[:, None] - b).square().sum(-1).sqrt()


def get_inputs():
    return [torch.randn(64, 32), torch.randn(48, 32)]


def get_init_inputs():
    return []
"""


@given(rows=LENGTHS, others=LENGTHS, width=st.integers(2, 9), seed=st.integers(0, 2**62))
def test_a_third_of_the_rows_are_those_of_the_first_input(rows: int, others: int, width: int, seed: int) -> None:
    one, other, half = torch.rand(rows, width), torch.rand(1, others, width), torch.rand(rows, width).half()
    bytes_of_one = torch.rand(rows, width).to(torch.float8_e4m3fn)
    kept, copies, alone, *_, last = perturb((one, other, half, bytes_of_one, 0.5, bytes_of_one), COPIES, seed)
    assert isinstance(copies, torch.Tensor)
    assert kept is one
    assert alone is half
    assert last is bytes_of_one
    count = min(rows, others)
    equal = (copies[0, :count] == one[:count]).all(1)
    assert count // 3 <= int(equal.sum()) <= (count + 2) // 3
    assert bool(equal.any())
    assert torch.equal(torch.where(equal[:, None], other[0, :count], copies[0, :count]), other[0, :count])
    assert torch.equal(copies[0, count:], other[0, count:])


def expanded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distances of centred rows, by their products."""
    a, b = a - b.mean(0), b - b.mean(0)
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T


@pytest.mark.parametrize(
    ("kernel", "right"),
    [(lambda a, b: expanded(a, b).sqrt(), False), (lambda a, b: expanded(a, b).clamp_min(0).sqrt(), True), (torch.cdist, True)],
)
def test_a_root_without_its_bound_fails(
    kernel: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], right: bool, tmp_path: Path
) -> None:
    (tmp_path / "reference.py").write_text(DISTANCES)
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    found = calibrate(reference, "class")
    case = make_case(reference, COPIES)
    a, b = case.inputs
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    assert found.policy.rule([kernel(a, b)], case.expected, output_names(reference), COPIES).passed == right


def test_inputs_without_rows_in_common_have_no_copies(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        DISTANCES.replace("(a[:, None] - b).square().sum(-1).sqrt()", "a @ b").replace("48, 32", "32, 48")
    )
    problem = catalog.find(str(tmp_path))
    assert COPIES not in calibrate(Reference(problem, problem.workloads[0]), "class").distributions
