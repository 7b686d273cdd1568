"""Each of several outputs has limits of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.domain.model import PrecisionClass, Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.caches.preparation_cache import Calibrations, decode, encode
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.cases import Case, make_case, output_names
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.judged_calls import CheckTally, judge_outputs
from engine.trial.judge.outputs.comparison import NO_ERROR, Errors
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.calibration import Calibration, calibrate, keep_calibration, restore
from engine.trial.judge.tolerance.correctness_check import describe_check
from engine.trial.judge.tolerance.findings import Findings
from engine.trial.judge.tolerance.mismatch_tally import evidence
from engine.trial.judge.tolerance.policy import CheckResult, within
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

REFERENCE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(128, 96)
    def forward(self, x):
        y = self.fc({inputs})
        {body}
def get_inputs():
    return [torch.randn(128, 128){half}]
def get_init_inputs():
    return []
"""
BESIDE_A_HALF = "return y, F.layer_norm(y, (96,)).to(torch.bfloat16)"
BESIDE_CODES = "s = y.abs().amax(-1, keepdim=True) / 127; return y, torch.round(y / s) * s"
BESIDE_A_DOUBLE = "return torch.tanh(y), x.double().cumsum(-1)"
BESIDE_AN_INTEGER = "return y, (y > 0).sum(-1)"
BESIDE_A_NUMBER = "return y, y.mean()"
OF_HALVES = "return y.sum(-1), y.to(torch.bfloat16)"

Kernel = Callable[[nn.Linear, Tensor], Sequence[Tensor]]


def linear(fc: nn.Linear, x: Tensor) -> Tensor:
    """In another order than the library's."""
    half = x.shape[1] // 2
    return F.linear(x[:, half:], fc.weight[:, half:]) + F.linear(x[:, :half], fc.weight[:, :half], fc.bias)


def codes(y: Tensor) -> Tensor:
    s = y.abs().amax(-1, keepdim=True) / 127
    return torch.round(y / s) * s


def normed(y: Tensor) -> Tensor:
    return F.layer_norm(y, (96,)).to(torch.bfloat16)


def rough(fc: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x.half().float(), fc.weight.half().float(), fc.bias)


CASES: dict[str, tuple[str, Kernel, bool]] = {
    "half": (BESIDE_A_HALF, lambda fc, x: (linear(fc, x), normed(linear(fc, x))), True),
    "half, the other in fp16": (BESIDE_A_HALF, lambda fc, x: (rough(fc, x), normed(fc(x))), False),
    "half, too rough": (BESIDE_A_HALF, lambda fc, x: (fc(x), normed(fc(x)).mul(8).round().div(8)), False),
    "codes": (BESIDE_CODES, lambda fc, x: (linear(fc, x), codes(linear(fc, x))), True),
    "codes, the other rounded": (BESIDE_CODES, lambda fc, x: (fc(x).half().float(), codes(fc(x))), False),
    "double": (BESIDE_A_DOUBLE, lambda fc, x: (linear(fc, x).tanh(), x.double().flip(-1).cumsum(-1).flip(-1).neg()
                                               + x.double().sum(-1, keepdim=True) + x.double()), True),
    "double in single": (BESIDE_A_DOUBLE, lambda fc, x: (fc(x).tanh(), x.cumsum(-1).double()), False),
    "integer": (BESIDE_AN_INTEGER, lambda fc, x: (linear(fc, x), (fc(x) > 0).sum(-1)), True),
    "integer, wrong": (BESIDE_AN_INTEGER, lambda fc, x: (fc(x), (fc(x) > 1).sum(-1)), False),
    "number": (BESIDE_A_NUMBER, lambda fc, x: (linear(fc, x), linear(fc, x).mean(0).mean()), True),
    "of halves": (OF_HALVES, lambda fc, x: (linear(fc, x.float()).sum(-1), linear(fc, x.float()).bfloat16()), True),
    "of halves, in halves": (OF_HALVES, lambda fc, x: (fc(x.float()).bfloat16().sum(-1).float(), fc(x.float()).bfloat16()),
                             False),
}  # fmt: skip


def calibrated(tmp_path: Path, body: str) -> tuple[Reference, Calibration]:
    halves = body == OF_HALVES
    file = tmp_path / "theirs.py"
    file.write_text(REFERENCE.format(body=body, inputs="x.float()" if halves else "x", half=".bfloat16()" if halves else ""))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    return reference, calibrate(reference, "class")


def outputs_of(case: Case, kernel: Kernel) -> Sequence[Tensor]:
    (x,) = case.inputs
    fc = case.model.fc
    assert isinstance(x, Tensor)
    assert isinstance(fc, nn.Linear)
    with torch.no_grad():
        return kernel(fc, x)


def ruled(reference: Reference, calibration: Calibration, case: Case, kernel: Kernel, distribution: str = OWN) -> CheckResult:
    outputs, asked = outputs_of(case, kernel), ReferenceOnCase(reference, case)
    return calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_output_has_the_limit_of_another(tmp_path: Path, name: str) -> None:
    body, kernel, right = CASES[name]
    reference, calibration = calibrated(tmp_path, body)
    assert [ruled(reference, calibration, make_case(reference, OWN), kernel).passed for _ in range(4)] == [right] * 4
    if right:
        perturbed = [d for d in calibration.distributions if d != OWN]
        refused = [d for d in perturbed if not ruled(reference, calibration, make_case(reference, d), kernel, d).passed]
        assert not refused
        assert describe_check(reference, calibration).verifiable


def test_the_wrong_one_of_several_outputs_is_named_with_its_limit(tmp_path: Path) -> None:
    body, kernel, _ = CASES["half, the other in fp16"]
    reference, calibration = calibrated(tmp_path, body)
    case = make_case(reference, OWN)
    ruling = ruled(reference, calibration, case, kernel)
    names = output_names(reference)
    assert ruling.output == names[0]
    with pytest.raises(TrialFailed, match=rf"call 1: {names[0]}: centred error .*e-04 \(limit .*e-0[67]\)"):
        judge_outputs(Findings(ruling), CheckTally(), OWN)
    assert ruling.limit is not None
    outputs = outputs_of(case, kernel)
    classes = calibration.policy.classes[OWN]
    found = evidence(calibration.policy, ruling.errors, ruling.limit, outputs, case.expected, names, classes, [0x5B])
    assert [one.output for one in found] == [names[0]]


def test_an_error_of_zeros_is_absolute(tmp_path: Path) -> None:
    """It was "centred error 1.00e+300"."""
    reference, calibration = calibrated(tmp_path, "return y, (x > 1e9).float().mean()")
    ruling = ruled(reference, calibration, make_case(reference, OWN), lambda fc, x: (fc(x), torch.tensor(0.5)))
    with pytest.raises(TrialFailed, match=r"call 1: out1: all expected elements are 0, the largest error is 5\.00e-01$"):
        judge_outputs(Findings(ruling), CheckTally(), OWN)


def test_the_precision_class_is_the_lowest_of_the_outputs(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, BESIDE_A_HALF)
    tally = CheckTally()
    for _ in range(2):
        ruling = ruled(reference, calibration, make_case(reference, OWN), CASES["half"][1])
        judge_outputs(Findings(ruling), tally, OWN)
    assert calibration.policy.label(tally.errors, OWN) is PrecisionClass.FP32
    assert tally.limit is not None
    assert within(tally.errors, tally.limit)
    assert tally.limit.for_output(0).rel_fro < 1e-5 < tally.limit.for_output(1).rel_fro == tally.limit.rel_fro


def test_an_output_that_rounding_decides_makes_a_problem_unverifiable(tmp_path: Path) -> None:
    """Eigenvectors have another sign in float64: random ones passed beside the right eigenvalues."""
    eigenvectors = "a = torch.tanh(y[:, :64].view(-1, 8, 8)); return torch.linalg.eigh(a + a.mT)"
    check = describe_check(*calibrated(tmp_path, eigenvectors))
    assert not check.verifiable
    passed = [model.name for model in check.nulls if model.passed]
    assert "zeros as out1" in passed
    assert not [name for name in passed if "out0" in name]


def test_limits_of_each_output_are_cached(tmp_path: Path) -> None:
    reference, found = calibrated(tmp_path, BESIDE_CODES)
    known = decode(encode(Calibrations(keep_calibration(reference, found))))
    assert known is not None
    restored = restore(reference, "class", known.main)
    assert restored.policy == found.policy
    assert restored.policy.limit(OWN).by_output


def test_errors_of_outputs_are_joined_by_output() -> None:
    small, large = RelativeErrors(1e-7, 1e-6), RelativeErrors(1e-3, 1e-2)
    both, swapped = RelativeErrors.of_outputs([small, large]), RelativeErrors.of_outputs([large, small])
    assert (both.rel_fro, both.max_scaled) == (1e-3, 1e-2)
    assert both.wider(swapped) == RelativeErrors.of_outputs([large, large])
    assert both.wider(RelativeErrors(1e-5, 0.0)).for_output(0) == RelativeErrors(1e-5, 1e-6)
    assert both.times(10).for_output(0).rel_fro == pytest.approx(1e-6)
    assert RelativeErrors.of_outputs([small]) == small == small.for_output(3)
    right, wrong = Errors(1e-7, 1e-6, 1.0), Errors(1e-4, 1e-3, 1.0)
    assert within(Errors.of_outputs([right, wrong]), both)
    assert not within(Errors.of_outputs([wrong, right]), both)
    assert NO_ERROR.worst(Errors.of_outputs([right, wrong])) == Errors.of_outputs([right, wrong])
