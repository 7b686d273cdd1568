"""References that select: what rounding or ties decide may go either way, and whatever follows from the choice with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.domain.model import PrecisionClass, Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, make_case, output_names
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.rounding.jumps import may_jump, nearest_seen
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.class_errors import errors_in_class
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

GATE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        scores = torch.sigmoid(x)
        groups = scores.view(-1, 4, 8).topk(2, dim=-1)[0].sum(-1)
        best = torch.topk(groups, 2, dim=-1, sorted=SORTED)[1]
        inside = torch.zeros_like(groups).scatter_(1, best, 1).repeat_interleave(8, 1)
        left = scores.masked_fill(~inside.bool(), float("-inf"))
        chosen = torch.topk(left, 4, dim=-1, sorted=SORTED)[1]
        weights = scores.gather(1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True)
def get_inputs():
    return [torch.randn(256, 32)]
def get_init_inputs():
    return []
"""
BEAMS = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        best, index = torch.log_softmax(x, -1).flatten(1).topk(4, dim=-1, sorted=SORTED)
        return best, index // 500, index % 500
def get_inputs():
    return [torch.randn(16, 4, 500)]
def get_init_inputs():
    return []
"""
Kernel = Callable[[Tensor], tuple[Tensor, ...]]


def gated(x: Tensor) -> tuple[Tensor, ...]:
    scores = torch.sigmoid(x)
    groups = scores.view(-1, 4, 8).sort(-1, descending=True)[0][..., :2].sum(-1)
    best = groups.sort(-1, descending=True)[1][:, :2]
    inside = torch.zeros_like(groups, dtype=torch.bool).scatter_(1, best, True).repeat_interleave(8, 1)
    weights, chosen = torch.where(inside, scores, torch.full_like(scores, -1.0)).sort(-1, descending=True)
    weights = weights[:, :4]
    return chosen[:, :4].contiguous(), weights / weights.sum(-1, keepdim=True)


def without_groups(x: Tensor) -> tuple[Tensor, ...]:
    weights, chosen = torch.sigmoid(x).topk(4, -1)
    return chosen, weights / weights.sum(-1, keepdim=True)


def beams(x: Tensor) -> tuple[Tensor, ...]:
    best, index = torch.log_softmax(x, -1).flatten(1).sort(-1, descending=True)
    return best[:, :4].contiguous(), torch.div(index[:, :4], 500, rounding_mode="floor"), index[:, :4] % 500


def next_beams(x: Tensor) -> tuple[Tensor, ...]:
    best, beam, token = beams(x)
    return best, beam, (token + 1) % 500


def calibrated(folder: Path, text: str) -> tuple[Reference, Calibration]:
    file = folder / "theirs.py"
    file.write_text(text)
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    return reference, calibrate(reference, "class")


def passes(reference: Reference, calibration: Calibration, case: Case, distribution: str, outputs: list[Tensor]) -> bool:
    asked = ReferenceOnCase(reference, case)
    return calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, asked).passed


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "in any order"])
@pytest.mark.parametrize(
    ("text", "right", "wrong"), [(GATE, gated, without_groups), (BEAMS, beams, next_beams)], ids=["gate", "beams"]
)
def test_choices_among_equals_go_either_way(tmp_path: Path, text: str, right: Kernel, wrong: Kernel, is_sorted: bool) -> None:
    """Sigmoids of large scores are all one, and log-probabilities beside an outlier are equal in fp32."""
    reference, calibration = calibrated(tmp_path, text.replace("SORTED", str(is_sorted)))

    def refused(kernel: Callable[[Tensor], Sequence[Tensor]], distribution: str) -> bool:
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        return not passes(reference, calibration, case, distribution, list(kernel(x)))

    assert [one for one in calibration.distributions * 2 if refused(right, one)] == []
    if not is_sorted:
        assert [one for one in calibration.distributions if refused(lambda x: [t.flip(1) for t in right(x)], one)] == []
    assert all(refused(wrong, OWN) for _ in range(3))
    assert sum(refused(wrong, one) for one in calibration.distributions) > len(calibration.distributions) / 3


EXPERTS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        gate = torch.randn(64, 8)
        gate[:, 0] = 2 + torch.rand(64)
        gate[:, 1] = gate[:, 0].flip(0)
        self.gate = nn.Parameter(gate)
        self.experts = nn.Parameter(torch.randn(8, 16))
    def forward(self, x):
        return self.experts[(x @ self.gate).argmax(1)]
def get_inputs():
    return [torch.rand(1024, 64)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("changed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 4, 64])
def test_an_element_that_jumps_may_be_either(tmp_path: Path, changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In four rows the scores of two experts are equal: the order of a sum decides. The other rows' choice is plain."""
    reference, calibration = calibrated(tmp_path, EXPERTS)
    model, (x,) = make_case(reference, OWN).model, reference.inputs(1)
    assert isinstance(x, Tensor)
    x[:4] += x[:4].flip(1)
    case = Case(model, lambda: (x,), reference.exact(model, (x,)).outputs)
    with torch.no_grad():
        chosen = (x.double() @ model.gate.double()).argmax(1)
        chosen[:changed] = 1 - chosen[:changed].clamp(max=1)
        output = model.experts[chosen]  # type: ignore[index]
    assert passes(reference, calibration, case, OWN, [output]) is (changed <= 4)
    monkeypatch.setattr("engine.trial.judge.rounding.jumps._JUMPING", frozenset())
    assert passes(reference, calibration, case, OWN, [output]) is (changed == 0)


def test_jumps_of_the_reference_itself_widen_no_limit(tmp_path: Path) -> None:
    """In its own arithmetic it chooses the other of two equal experts in some rows: ten times that error is no limit."""
    reference, _ = calibrated(tmp_path, EXPERTS)
    model, (x,) = make_case(reference, OWN).model, reference.inputs(1)
    assert isinstance(x, Tensor)
    x[:8] += x[:8].flip(1)
    case = Case(model, lambda: (x,), reference.exact(model, (x,)).outputs)
    with torch.no_grad():
        assert isinstance(model.gate, Tensor)
        one, other = model.gate[:, 0], model.gate[:, 1]
        assert bool((x[:8].double() @ one.double() - x[:8].double() @ other.double()).abs().max() < 1e-9)
        output = case.expected[0].float()
        output[0] = model.experts[1] if torch.equal(output[0], model.experts[0]) else model.experts[0]  # type: ignore[index]
    errors = errors_in_class(reference, case, PrecisionClass.FP32, [output])
    assert errors is not None
    assert errors.rel_fro < 1e-6
    output[100] += 1
    errors = errors_in_class(reference, case, PrecisionClass.FP32, [output])
    assert errors is not None
    assert errors.rel_fro > 1e-3


CODEBOOK = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes, self.mix = nn.Parameter(torch.randn(128, 32)), nn.Linear(32, 32)
        self.bfloat16()
    def forward(self, x):
        y = self.mix(x)
        far = (y * y).sum(-1, keepdim=True) - 2 * y @ self.codes.t() + (self.codes * self.codes).sum(-1)
        return y + self.codes[far.argmin(-1)]
def get_inputs():
    return [torch.randn(512, 32, dtype=torch.bfloat16)]
def get_init_inputs():
    return []
"""


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_choices_that_half_precision_decides_widen_no_limit(tmp_path: Path) -> None:
    """In bf16 a few rows of a hundred choose another code than in float64, and the limit was 0.3: 10% passed for rounding."""
    reference, calibration = calibrated(tmp_path, CODEBOOK)
    assert calibration.policy.limit(OWN).rel_fro < 0.03

    def kernel(model: Callable[[Tensor], Tensor], x: Tensor, scale: float = 1.0) -> Tensor:
        y = model.mix(x).float()  # type: ignore[attr-defined]
        codes = model.codes.float()  # type: ignore[attr-defined]
        return (scale * y + codes[((codes * codes).sum(-1) - 2 * y @ codes.t()).argmin(-1)]).bfloat16()

    for _ in range(4):
        case = make_case(reference, OWN)
        (x,) = case.inputs
        assert isinstance(x, Tensor)
        with torch.no_grad():
            right, wrong = kernel(case.model, x), kernel(case.model, x, 1.1)
        assert passes(reference, calibration, case, OWN, reference.call(case.model, case.inputs)), "eager"
        assert passes(reference, calibration, case, OWN, [right])
        assert not passes(reference, calibration, case, OWN, [wrong])


def test_an_output_of_numbers_that_no_run_shows_is_wrong() -> None:
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0] * 100, dtype=torch.float64)
    run = expected.clone()
    run[:2] = 9.0
    output = expected.float()
    output[0], output[1] = 9.0, 8.0
    nearest = nearest_seen(output, expected, iter([run]), 1e-5, 0.01)
    assert nearest is not None
    assert nearest[:3].tolist() == [9.0, 9.0, 3.0]
    assert nearest_seen(output, expected, iter([run]), 1e-5, 0.001) is None
    assert nearest_seen(expected.float(), expected, iter([run]), 1e-5, 0.01) is None
    runs = iter([expected] * 20)
    assert nearest_seen(output, expected, runs, 1e-5, 0.01) is None
    assert len(list(runs)) >= 10, "a fault is not sought in all runs"
    assert not may_jump(frozenset({"mm", "relu_"}))
    assert may_jump(frozenset({"mm", "round_"}))
