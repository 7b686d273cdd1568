"""Integers and booleans that rounding alone decides may be either, on perturbed inputs whatever their share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.calibration import Calibration, calibrate
from engine.trial.judge.cases import ReferenceOnCase, make_case, output_names
from engine.trial.judge.perturbations import OWN, SPECIAL

REFERENCE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return x.sum(-1) > 0, (x > x.mean(-1, keepdim=True)).sum(-1)
def get_inputs():
    return [torch.randn(256, 384)]
def get_init_inputs():
    return []
"""
SIGNS_OF_COLUMNS = (
    REFERENCE.replace("x.sum(-1) > 0, (x > x.mean(-1, keepdim=True)).sum(-1)", "x @ x.t(), x.sum(0) > 0")
    .replace("randn(256, 384)", "randn(128, 256)")
)  # fmt: skip
SHARES = (0.01, 1.0)
Kernel = Callable[[Tensor], tuple[Tensor, Tensor]]


def counted(x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    return sums > 0, (x > (sums / x.shape[1])[:, None]).sum(-1)


def in_a_loop(x: Tensor) -> tuple[Tensor, Tensor]:
    return counted(x, torch.from_numpy(np.cumsum(x.numpy(), axis=1, dtype=np.float32)[:, -1].copy()))


def in_float64(x: Tensor) -> tuple[Tensor, Tensor]:
    sums = x.sum(-1, dtype=torch.float64)
    return sums > 0, (x > (sums / x.shape[1]).float()[:, None]).sum(-1)


def calibrated(tmp_path: Path, text: str) -> tuple[Reference, Calibration]:
    file = tmp_path / "theirs.py"
    file.write_text(text)
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    return reference, calibrate(reference, "class")


def refused(reference: Reference, calibration: Calibration, distribution: str, kernel: Kernel, cases: int = 6) -> int:
    """On how many cases the kernel is wrong."""
    count = 0
    for _ in range(cases):
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        asked = ReferenceOnCase(reference, case)
        ruling = calibration.policy.rule(kernel(x), case.expected, output_names(reference), distribution, asked)
        count += not ruling.passed
    return count


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [in_a_loop, in_float64])
def test_an_honest_sum_is_right_on_all_inputs(tmp_path: Path, kernel: Kernel) -> None:
    reference, calibration = calibrated(tmp_path, REFERENCE)
    found = {d: refused(reference, calibration, d, kernel) for d in calibration.distributions if d not in SPECIAL}
    assert not any(found.values()), found


@pytest.mark.slow
def test_sums_of_ties_may_have_either_sign(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, SIGNS_OF_COLUMNS)
    assert not refused(reference, calibration, "ties", lambda x: (x @ x.t(), torch.einsum("ij->j", x) > 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        lambda x: (x.sum(-1) < 0, counted(x, x.sum(-1))[1]),
        lambda x: (x.sum(-1) > 0, counted(x, x.sum(-1))[1] + 1),
        lambda x: (x.sum(-1) > 0, torch.zeros(len(x), dtype=torch.int64)),
        lambda x: (x.sum(-1) > 0, counted(x, x[:, :-1].sum(-1))[1]),
    ],
    ids=["negated", "one more", "zeros", "without the last"],
)
def test_wrong_integers_are_refused(tmp_path: Path, kernel: Kernel) -> None:
    reference, calibration = calibrated(tmp_path, REFERENCE)
    assert refused(reference, calibration, OWN, kernel) == 6
    assert refused(reference, calibration, "alternating", kernel) == 6


@pytest.mark.parametrize("most", SHARES)
def test_no_more_than_the_allowed_share_is_undecided(tmp_path: Path, most: float) -> None:
    """Signs of sums that are zero but for rounding."""
    text = REFERENCE.replace("x.sum(-1) > 0, (x > x.mean(-1, keepdim=True)).sum(-1)", "torch.cat((x, -x), 1).sum(-1) > 0")
    reference, _ = calibrated(tmp_path, text)
    (mask,) = ReferenceOnCase(reference, make_case(reference, OWN)).undecided(most)
    assert mask is not None
    share = float(mask.float().mean())
    assert share <= 0.01 if most < 1 else share > 0.5
