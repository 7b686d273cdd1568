"""Inputs graded along shared dimensions: what they leave as it is, and which kernels they find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import make_case
from engine.trial.judge.inputs.perturbations import GRADED, OWN, perturb
from engine.trial.judge.tolerance.calibration import Calibration, calibrate

LENGTHS = st.integers(2, 9)
PRODUCT = """import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return PRODUCT


def get_inputs():
    return [torch.randn(96, 512), torch.randn(SHAPE)]


def get_init_inputs():
    return []
"""
OF_ROWS, OF_COLUMNS = ("a @ b", "512, 80"), ("a @ b.T", "80, 512")


def calibrated(folder: Path, product: str, shape: str) -> tuple[Reference, Calibration]:
    (folder / "reference.py").write_text(PRODUCT.replace("PRODUCT", product).replace("SHAPE", shape))
    problem = catalog.find(str(folder))
    reference = Reference(problem, problem.workloads[0])
    return reference, calibrate(reference, "class")


@given(rows=LENGTHS, depth=LENGTHS, columns=LENGTHS, seed=st.integers(0, 2**62))
def test_factors_cancel_in_a_product_over_a_shared_dimension(rows: int, depth: int, columns: int, seed: int) -> None:
    one, other = torch.rand(rows, depth).double() + 1, torch.rand(depth, columns).double() + 1
    graded, against = perturb((one, other), GRADED, seed)
    assert isinstance(graded, torch.Tensor)
    assert isinstance(against, torch.Tensor)
    terms, before = graded[:, :, None] * against, one[:, :, None] * other
    factors = terms / before
    assert torch.equal(factors, factors[:, :1].expand_as(factors))  # what remains are factors of rows and of columns
    assert torch.equal(factors.log2(), factors.log2().round())


@given(seed=st.integers(0, 2**62))
def test_the_same_seed_gives_the_same_inputs_and_others_stay(seed: int) -> None:
    given = (torch.rand(4, 6), torch.arange(6), 0.5, torch.rand(3), torch.rand(6, 6).half())
    bent = perturb(given, GRADED, seed)
    again = perturb(given, GRADED, seed)
    for one, other, own in zip(bent, again, given, strict=True):
        assert one is own if own is given[1] or own is given[2] else torch.equal(one, other)  # type: ignore[arg-type]
    assert torch.equal(given[3], bent[3])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_graded_numbers_are_finite(dimensions: int, dtype: torch.dtype) -> None:
    given = torch.linspace(-8, 8, 4**dimensions).reshape([4] * dimensions).to(dtype)
    for seed in range(200):
        for one in perturb((given, given), GRADED, seed):
            assert isinstance(one, torch.Tensor)
            assert torch.isfinite(one).all()


@pytest.mark.parametrize("of", [OF_ROWS, OF_COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize(
    ("kept", "right"),
    [
        (lambda x: x, True),
        (lambda x: x * 9 - (x * 9 - x), True),
        (lambda x: (x / x.abs().amax() * 2**22).round() * x.abs().amax() / 2**22, False),
        (lambda x: (x / x.abs().amax(1, True) * 2**22).round() * x.abs().amax(1, True) / 2**22, False),
    ],
    ids=["fp32", "21 bits of each", "one scale", "a scale a row"],
)
def test_numbers_that_share_a_scale_fail_in_products_of_graded_matrices_only(
    tmp_path: Path, of: tuple[str, str], kept: Callable[[torch.Tensor], torch.Tensor], right: bool
) -> None:
    reference, calibration = calibrated(tmp_path, *of)
    assert GRADED in calibration.distributions
    for distribution in (OWN, GRADED):
        case = make_case(reference, distribution)
        a, b = case.inputs
        assert isinstance(a, torch.Tensor)
        assert isinstance(b, torch.Tensor)
        exact = reference.call(case.model, (kept(a).double(), kept(b).double()))
        ruling = calibration.policy.rule([exact[0].float()], case.expected, ["out"], distribution)
        assert ruling.passed == (right or distribution == OWN)


def test_inputs_that_share_no_dimension_are_not_graded(tmp_path: Path) -> None:
    _, calibration = calibrated(tmp_path, "torch.softmax(a, 1) * b", "1")
    assert GRADED not in calibration.distributions
