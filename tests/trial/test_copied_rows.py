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
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import COPIES, EQUAL_ROWS, perturb
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

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

ANGLES = (
    DISTANCES.replace("a, b):", "x):")
    .replace("[torch.randn(64, 32), torch.randn(48, 32)]", "[torch.randn(64, 32)]")
    .replace(
        "(a[:, None] - b).square().sum(-1).sqrt()",
        "torch.acos((lambda y: y[1:] * y[:-1])(x / x.norm(dim=1, keepdim=True)).sum(1).clamp(-1, 1))",
    )
)


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


@given(rows=st.integers(2, 9), width=st.integers(2, 9), seed=st.integers(0, 2**62))
def test_rows_of_one_input_are_equal(rows: int, width: int, seed: int) -> None:
    x, alone = torch.rand(2, rows, width), torch.rand(1, width)
    bent, kept = perturb((x, alone), EQUAL_ROWS, seed)
    assert isinstance(bent, torch.Tensor)
    assert isinstance(kept, torch.Tensor)
    assert torch.equal(kept, alone)
    mine, theirs = bent.view(-1, width), x.view(-1, width)
    changed = [index for index in range(2 * rows) if not torch.equal(mine[index], theirs[index])]
    assert (2 * rows - 1) // 3 <= len(changed) <= (2 * rows + 1) // 3
    sources = [next(i for i in range(2 * rows) if torch.equal(theirs[i], mine[index])) for index in changed]
    assert sources == [index - 1 for index in changed] or len(set(sources)) == 1


def test_neighbouring_rows_are_equal_and_others_too() -> None:
    bents = [perturb((torch.rand(64, 3),), EQUAL_ROWS)[0] for _ in range(40)]
    numbers = [len(bent.unique(dim=0)) for bent in bents if isinstance(bent, torch.Tensor)]
    assert set(numbers) <= {43, 44}
    neighbours = [bool((bent[1:] == bent[:-1]).all(1).sum() >= 20) for bent in bents if isinstance(bent, torch.Tensor)]
    assert {True, False} == set(neighbours)


def test_an_angle_of_neighbours_without_its_bound_fails(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(ANGLES)
    problem = catalog.find(str(tmp_path))
    reference = Reference(problem, problem.workloads[0])
    found = calibrate(reference, "class")
    ruled = {True: [], False: []}  # type: dict[bool, list[bool]]
    for _ in range(8):
        case = make_case(reference, EQUAL_ROWS)
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        unit = x / x.norm(dim=1, keepdim=True)
        cosine = (unit[1:] * unit[:-1]).sum(1)
        for bounded in ruled:
            output = torch.acos(cosine.clamp(-1, 1) if bounded else cosine)
            asked = ReferenceOnCase(reference, case)
            ruled[bounded].append(found.policy.rule([output], case.expected, ["out"], EQUAL_ROWS, asked).passed)
    assert all(ruled[True])
    assert not all(ruled[False])


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
