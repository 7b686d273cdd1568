"""Algorithms that err more than PyTorch's direct sums and are right: they pass on all inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

CONVOLUTION = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)
    def forward(self, x):
        return torch.relu(self.conv(x))
def get_inputs():
    return [torch.randn(4, 16, 32, 32)]
def get_init_inputs():
    return []
"""
TO_INPUT = [
    [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]  # fmt: skip
TO_WEIGHT = [[1 / 4, 0, 0], [-1 / 6] * 3, [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
TO_OUTPUT = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]


def winograd(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution with 3x3 weights in tiles of 4x4 outputs, Winograd's F(4x4, 3x3)."""
    on_input, on_weight, on_output = (torch.tensor(m, dtype=torch.float32) for m in (TO_INPUT, TO_WEIGHT, TO_OUTPUT))
    weight = torch.einsum("ij,ocjk,lk->iloc", on_weight, conv.weight, on_weight)
    tiles = F.pad(x, (1, 1, 1, 1)).unfold(2, 6, 4).unfold(3, 6, 4)
    tiles = torch.einsum("ij,bchwjk,lk->ilcbhw", on_input, tiles, on_input)
    batch, rows, columns = tiles.shape[3:]
    product = weight @ tiles.reshape(6, 6, x.shape[1], -1)
    product = product.reshape(6, 6, -1, batch, rows, columns)
    out = torch.einsum("ai,ilobhw,cl->bohawc", on_output, product, on_output)
    assert conv.bias is not None
    return out.reshape(batch, -1, 4 * rows, 4 * columns) + conv.bias[:, None, None]


@pytest.mark.filterwarnings("ignore")
def test_winograd_is_fp32_arithmetic(tmp_path: Path) -> None:
    file = tmp_path / "reference.py"
    file.write_text(CONVOLUTION)
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    calibration = calibrate(reference, "class")
    refused = []
    for distribution in calibration.distributions * 2:
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        assert isinstance(case.model.conv, nn.Conv2d)
        with torch.no_grad():
            outputs = [torch.relu(winograd(x, case.model.conv))]
        asked = ReferenceOnCase(reference, case)
        found = calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked)
        refused += [] if found.passed else [(distribution, found.errors, found.limit)]
    assert not refused
