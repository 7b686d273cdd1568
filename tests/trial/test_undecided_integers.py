"""Integers and booleans that rounding alone decides may be either, on perturbed inputs whatever their share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, make_case, output_names
from engine.trial.judge.inputs.perturbations import OWN, SPECIAL
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

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
Kernel = Callable[[Tensor], tuple[Tensor, Tensor] | Tensor]


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
        found = kernel(x)
        outputs = [found] if isinstance(found, Tensor) else found
        ruling = calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked)
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


def test_an_index_that_rounding_decides_says_nothing_of_the_others(tmp_path: Path) -> None:
    """One of 64 is more than a hundredth of them, and one may always be undecided."""
    reference, calibration = calibrated(
        tmp_path,
        REFERENCE.replace("x.sum(-1) > 0, (x > x.mean(-1, keepdim=True)).sum(-1)", "x.argmax(-1)").replace("256", "64"),
    )
    x = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    x[0, 5], x[0, 300] = 9, 9 * (1 - 2**-22)
    model = reference.judged_model(1)
    case = Case(model, lambda: (x,), reference.exact(model, (x,)).outputs)
    asked = ReferenceOnCase(reference, case)
    rule = partial(calibration.policy.rule, names=["out"], distribution=OWN, case_reference=asked)
    other, without_last = x.argmax(-1), x[:, :360].argmax(-1)
    other[0] = 300
    assert rule([x.argmax(-1)], case.expected).passed
    assert rule([other], case.expected).passed
    assert not rule([without_last], case.expected).passed


@pytest.mark.parametrize("most", SHARES)
def test_no_more_than_the_allowed_share_is_undecided(tmp_path: Path, most: float) -> None:
    """Signs of sums that are zero but for rounding."""
    text = REFERENCE.replace("x.sum(-1) > 0, (x > x.mean(-1, keepdim=True)).sum(-1)", "torch.cat((x, -x), 1).sum(-1) > 0")
    reference, _ = calibrated(tmp_path, text)
    (seen,) = ReferenceOnCase(reference, make_case(reference, OWN)).undecided(most)
    assert seen is not None
    share = float((seen.least != seen.largest).float().mean())
    assert share <= 0.01 if most < 1 else share > 0.5


SUM_OF_CODES = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.round(x * 16.1).to(torch.int32).sum()
def get_inputs():
    return [torch.randn(256, 1024)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("kernel", "right"),
    [
        (lambda x: torch.round(x / (1 / 16.1)).to(torch.int32).sum(), True),
        (lambda x: torch.round(x * 16.1).to(torch.int32).sum() + 40, False),
        (lambda x: torch.tensor(-123456789), False),
        (lambda x: torch.tensor(0), False),
    ],
    ids=["reciprocal", "more", "garbage", "zero"],
)
def test_a_single_integer_is_right_within_the_range_that_rounding_explains(
    tmp_path: Path, kernel: Callable[[Tensor], Tensor], right: bool
) -> None:
    reference, calibration = calibrated(tmp_path, SUM_OF_CODES)
    assert refused(reference, calibration, OWN, kernel, 3) == (0 if right else 3)


SUMS_OF_CODES = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randint(-127, 128, (64, 512), dtype=torch.int8))
    def forward(self, x):
        s = x.abs().amax(-1, keepdim=True) / 127
        q = torch.clamp(torch.round(x / s), -127, 127)
        return torch.matmul(q, self.w.float().t()).to(torch.int32), q.sum(-1).to(torch.int32), s
def get_inputs():
    return [torch.randn(2048, 512)]
def get_init_inputs():
    return []
"""


def wrong_sums(sums: Tensor, wrong: str) -> Tensor:
    match wrong:
        case "one more":
            return sums + 1
        case "zeros":
            return torch.zeros_like(sums)
        case "a column":
            return torch.cat((sums[:, 1:2], sums[:, 1:]), 1)
    return sums


@pytest.mark.slow
def test_sums_of_codes_may_differ_by_codes_that_rounding_decides(tmp_path: Path) -> None:
    """A kernel that multiplies by the reciprocal of the scale rounds a code in a million to its neighbour."""
    reference, calibration = calibrated(tmp_path, SUMS_OF_CODES)

    def passes(wrong: str) -> bool:
        case = make_case(reference, OWN)
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        largest = x.abs().amax(-1, keepdim=True)
        codes = torch.round(x * (127 / largest))
        codes[7, 11] += wrong == "a code"
        sums = torch.matmul(codes, case.model.get_buffer("w").float().t()).to(torch.int32)
        outputs = [wrong_sums(sums, wrong), codes.sum(-1).to(torch.int32), largest / 127]
        asked = ReferenceOnCase(reference, case)
        return calibration.policy.rule(outputs, case.expected, output_names(reference), OWN, asked).passed

    assert all(passes("") for _ in range(6))
    assert not any(passes(wrong) for wrong in ("one more", "zeros", "a column", "a code"))


CODES = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        f = x.float()
        y = (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * 0.75
        scale = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-8) / 127
        return torch.round(y.float() / scale).to(torch.int8), y.sum(-1) > 0
def get_inputs():
    return [torch.randn(64, 128, dtype=torch.bfloat16)]
def get_init_inputs():
    return []
"""


def codes(x: Tensor, dtype: torch.dtype, quantise: Callable[[Tensor], Tensor]) -> Tensor:
    y = (x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) / 128 + 1e-5) * 0.75).to(dtype).float()
    return quantise(y * (127 / y.abs().amax(-1, keepdim=True))).to(torch.int8)


@pytest.mark.parametrize(
    ("kernel", "right"),
    [
        (lambda x: codes(x, torch.float32, torch.round), True),
        (lambda x: codes(x, torch.bfloat16, torch.round), True),
        (None, True),  # the reference itself
        (lambda x: codes(x, torch.bfloat16, torch.trunc), False),
        (lambda x: codes(x, torch.float32, lambda q: torch.round(q) + (torch.arange(128) % 3 == 0)), False),
        (lambda x: codes(x, torch.bfloat16, lambda q: torch.round(q) + 2 * (torch.arange(128) == 5)), False),
    ],
    ids=["unrounded", "rounded once", "the reference's", "truncated", "off by one", "off by two"],
)
def test_codes_may_be_as_wrong_as_those_of_a_reference_that_rounds_before_it_quantises(
    tmp_path: Path, kernel: Callable[[Tensor], Tensor] | None, right: bool
) -> None:
    reference, calibration = calibrated(tmp_path, CODES)
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    model = reference.judged_model(1)
    case = Case(model, lambda: (x,), reference.exact(model, (x,)).outputs)
    own = reference.call(model, (x,))
    assert int((own[0] != case.expected[0]).sum()) > 200, "more than a hundredth"
    outputs = [own[0] if kernel is None else kernel(x), own[1]]
    asked = ReferenceOnCase(reference, case)
    assert calibration.policy.rule(outputs, case.expected, output_names(reference), OWN, asked).passed is right
    outputs[1] = ~outputs[1]
    assert not calibration.policy.rule(outputs, case.expected, output_names(reference), OWN, asked).passed


QUANTISED = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        return torch.round(x.float() / scale).to(torch.int8)
def get_inputs():
    return [torch.randn(64, 1024, dtype=torch.bfloat16)]
def get_init_inputs():
    return []
"""


def by_the_reciprocal(x: Tensor, *, largest: float = 127.0, rounds: Callable[[Tensor], Tensor] = torch.round) -> Tensor:
    return rounds(x.float() * (largest / x.float().abs().amax(-1, keepdim=True).clamp(min=1e-8))).to(torch.int8)


@pytest.mark.slow
def test_either_code_is_right_where_a_quotient_of_half_precision_ends_in_a_half(tmp_path: Path) -> None:
    """A number of bfloat16 is often exactly half of its row's largest: which of two codes it gets is an accident of fp32."""
    reference, calibration = calibrated(tmp_path, QUANTISED)
    assert not refused(reference, calibration, OWN, by_the_reciprocal)
    assert refused(reference, calibration, OWN, partial(by_the_reciprocal, largest=126.0)) == 6
    assert refused(reference, calibration, OWN, partial(by_the_reciprocal, rounds=torch.trunc)) == 6


ROUTER = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter((torch.randn(64, 64) / 8).bfloat16())
    def forward(self, x):
        return torch.topk(torch.softmax((x @ self.weight.T).float(), -1), 4)[1]
def get_inputs():
    return [torch.randn(128, 64, dtype=torch.bfloat16)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_what_the_reference_itself_selects_in_half_precision_is_right(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, ROUTER)
    for _ in range(20):
        case = make_case(reference, OWN)
        own = reference.call(case.model, case.inputs)
        asked = ReferenceOnCase(reference, case)
        assert calibration.policy.rule(own, case.expected, output_names(reference), OWN, asked).passed
        wrong = [(own[0] + 1) % 64]
        assert not calibration.policy.rule(wrong, case.expected, output_names(reference), OWN, asked).passed
