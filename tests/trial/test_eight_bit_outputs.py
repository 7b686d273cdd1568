"""Outputs of eight-bit floats, as quantisation kernels return: what passes, and that a few percent too much does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from engine.domain.memory_plan import ROOMY
from engine.domain.model import PrecisionClass
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.test_bed import TestBed as Bed
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.correctness_check import describe_check
from engine.trial.judge.tolerance.policy import EIGHT_BITS_FACTOR
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase
from engine.trial.judge.tolerance.special_values import replaced

REFERENCE = """
import torch
from torch import nn

rows = 64

class Model(nn.Module):
    def forward(self, x):
        groups = x.view(rows, 8, 128).float()
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / LARGEST
        return (groups / scale).to(torch.KIND).view(rows, 1024), scale.squeeze(-1)

def get_inputs():
    return [torch.randn(rows, 1024, dtype=torch.bfloat16)]

def get_init_inputs():
    return []
"""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
Kernel = Callable[[torch.Tensor, torch.dtype], Sequence[torch.Tensor]]


@pytest.fixture(scope="module", params=LARGEST, ids=str)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Calibration]:
    kind: torch.dtype = request.param
    file = tmp_path_factory.mktemp("eight") / "reference.py"
    file.write_text(REFERENCE.replace("KIND", str(kind).removeprefix("torch.")).replace("LARGEST", str(LARGEST[kind])))
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0])
    return reference, calibrate(reference, "class")


def quantised(x: torch.Tensor, kind: torch.dtype, by: float = 1.0) -> Sequence[torch.Tensor]:
    """With the reciprocal of the scale, which rounds otherwise than the reference."""
    groups = x.reshape(-1, 128).float()
    scale = torch.maximum(groups.amax(1), -groups.amin(1)).clamp_min(1e-4) * (1 / LARGEST[kind])
    return (groups * (by / scale)[:, None]).to(kind).view(x.shape), scale.view(x.shape[0], -1)


def by_three_percent(x: torch.Tensor, kind: torch.dtype) -> Sequence[torch.Tensor]:
    return quantised(x, kind, 0.97 if kind is torch.float8_e4m3fn else 0.93)


def towards_zero(x: torch.Tensor, kind: torch.dtype) -> Sequence[torch.Tensor]:
    """A conversion that cuts the mantissa off."""
    groups = x.reshape(-1, 128).float()
    scale = groups.abs().amax(1).clamp_min(1e-4) / LARGEST[kind]
    kept = -(1 << (20 if kind is torch.float8_e4m3fn else 21))
    cut = ((groups / scale[:, None]).view(torch.int32) & kept).view(torch.float32)
    return cut.to(kind).view(x.shape), scale.view(x.shape[0], -1)


def rounded_scales(x: torch.Tensor, kind: torch.dtype) -> Sequence[torch.Tensor]:
    codes, scale = quantised(x, kind)
    return codes, scale.bfloat16().float()


def one_wrong(x: torch.Tensor, kind: torch.dtype) -> Sequence[torch.Tensor]:
    codes, scale = quantised(x, kind)
    codes[3, int(codes[3].float().abs().argmax())] = 0
    return codes, scale


@pytest.mark.parametrize("kernel", [quantised, by_three_percent, towards_zero, rounded_scales, one_wrong])
def test_codes_are_judged_by_the_error_of_rounding(judged: tuple[Reference, Calibration], kernel: Kernel) -> None:
    reference, calibration = judged
    kind = next(kind for kind in LARGEST if kind == getattr(torch, reference.signature().operands[1].dtype))
    for distribution in calibration.distributions if kernel is quantised else [OWN]:
        case = make_case(reference, distribution)
        (x,) = (one for one in case.inputs if isinstance(one, torch.Tensor))
        asked = ReferenceOnCase(reference, case)
        ruling = calibration.policy.rule(kernel(x, kind), case.expected, output_names(reference), distribution, asked)
        assert ruling.passed == (kernel is quantised), (distribution, ruling)


def test_a_session_says_how_codes_are_judged(judged: tuple[Reference, Calibration]) -> None:
    described = describe_check(*judged)
    assert (described.allowed, described.factor) == (PrecisionClass.HALF, EIGHT_BITS_FACTOR)
    assert not any(model.passed for model in described.nulls)
    assert described.policy == "class:half (1.25x)"


@pytest.fixture
def bed(judged: tuple[Reference, Calibration]) -> Iterator[Bed]:
    found = Bed(*judged, devices.describe("cpu"), ROOMY)
    yield found
    found.close()


def test_codes_are_read_from_lent_memory_and_missing_ones_are_found(bed: Bed) -> None:
    codes, scales = bed.outputs(0)
    for missing in (False, True):
        bed.refill(0)
        bed.poison(0)
        right = quantised(bed._tensor(bed._read_slots(0)[0]), codes.dtype)
        codes[int(missing) :].copy_(right[0][int(missing) :])
        scales.copy_(right[1])
        assert bed.check(0).ruling.passed == (not missing)


def test_a_wrong_byte_that_equals_the_poison_was_not_left_out(bed: Bed) -> None:
    """One byte in 256 does."""
    bed.refill(0)
    bed.poison(0)
    codes, scales = bed.outputs(0)
    right = by_three_percent(bed._tensor(bed._read_slots(0)[0]), codes.dtype)
    codes.copy_(right[0])
    scales.copy_(right[1])
    ruling = bed.check(0).ruling
    assert not ruling.passed
    assert not ruling.errors.flaw


SCALED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
    def forward(self, x, by):
        return (x * self.weight * by).clamp(-448, 448).to(torch.float8_e4m3fn)

def get_inputs():
    return [torch.randn(32, 64), 0.5]

def get_init_inputs():
    return []
"""


def test_constant_parameters_and_scalars_vary_beside_eight_bit_outputs(tmp_path: Path) -> None:
    """An operator that torch lacks for these types was an internal error of the judge."""
    file = tmp_path / "reference.py"
    file.write_text(SCALED)
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0])
    calibration = calibrate(reference, "class")
    for distribution in (OWN, "x64"):
        case = make_case(reference, distribution)
        x, by = case.inputs
        assert isinstance(x, torch.Tensor)
        assert isinstance(by, float)
        weight = case.model.weight
        assert isinstance(weight, torch.Tensor)
        right, wrong = ((x * w * b).detach().clamp(-448, 448).to(torch.float8_e4m3fn) for w, b in ((weight, by), (1.0, 0.6)))
        asked = ReferenceOnCase(reference, case)
        passed = [
            calibration.policy.rule([output], case.expected, output_names(reference), distribution, asked).passed
            for output in (right, wrong)
        ]
        assert passed == [True, False]


def test_infinities_among_inputs_of_eight_bits_are_replaced() -> None:
    given = torch.tensor([1.0, float("inf"), -2.0]).to(torch.float8_e5m2)
    assert replaced(given, 3.0).float().tolist() == [1.0, 3.0, -2.0]
