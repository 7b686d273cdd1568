"""Where large numbers cancel, a right kernel that rounds other intermediate results passes, and a wrong one does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, fresh_seed, output_names
from engine.trial.judge.inputs.perturbations import DOWN, OWN, UP, perturb
from engine.trial.judge.rounding.rounded_results import RoundedResults
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.class_policy import ClassPolicy
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def forward(self, {}):
{}
def get_inputs():
    return [torch.randn({}) for _ in range({})]
def get_init_inputs():
    return []
"""
BACKWARD = """
        p = torch.softmax(q @ k.mT * 0.25, -1)
        dp = do @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * 0.25, ds.mT @ q * 0.25, p.mT @ do
"""
COSINE = "        return (1 - F.cosine_similarity(a, b, dim=1)).mean()"
GATE = """
        decay = -8 * F.softplus(a) * torch.sigmoid(g)
        return torch.sqrt(1 - torch.exp(2 * decay)) * x
"""


def of_saved_logarithms(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, delta: bool = True) -> list[Tensor]:
    """The backward pass of FlashAttention: probabilities from the saved logarithm of the sum, the product with the output."""
    scores = q @ k.mT * (0.25 * 1.4426950408889634)
    top = scores.amax(-1, keepdim=True)
    total = torch.exp2(scores - top).sum(-1, keepdim=True)
    o = torch.exp2(scores - top) @ v / total
    p = torch.exp2(scores - (top + torch.log2(total)))
    ds = p * (do @ v.mT - ((do * o).sum(-1, keepdim=True) if delta else 0))
    return [ds @ k * 0.25, ds.mT @ q * 0.25, p.mT @ do]


def one_less_the_mean(a: Tensor, b: Tensor) -> list[Tensor]:
    squares = (a * a).sum(1).clamp(min=1e-16), (b * b).sum(1).clamp(min=1e-16)
    return [1 - ((a * b).sum(1) * torch.rsqrt(squares[0]) * torch.rsqrt(squares[1])).mean()]


def one_less_the_mean_of_one(a: Tensor, b: Tensor) -> list[Tensor]:
    return [1 - ((a * b).sum(1) / (a * a).sum(1).clamp(min=1e-16)).mean()]


def more_exact_than_float64(a: Tensor, g: Tensor, x: Tensor) -> list[Tensor]:
    return [torch.sqrt(-torch.expm1(-16 * F.softplus(a) * torch.sigmoid(g))) * x]


def without_a_root(a: Tensor, g: Tensor, x: Tensor) -> list[Tensor]:
    return [-torch.expm1(-16 * F.softplus(a) * torch.sigmoid(g)) * x]


def calibrated(folder: Path, names: str, body: str, shape: str) -> tuple[Reference, Calibration]:
    file = folder / "reference.py"
    file.write_text(MODEL.format(names, body, shape, 1 + names.count(",")))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    return reference, calibrate(reference, "class")


def passes(
    reference: Reference, calibration: Calibration, distribution: str, kernel: Callable[..., Sequence[Tensor]], *seeds: int
) -> list[bool]:
    """Whether a kernel passes on the inputs of each seed. Calibration may leave a distribution out: a random case decides."""
    assert isinstance(calibration.policy, ClassPolicy)
    classes = calibration.policy.classes
    policy = replace(calibration.policy, classes={distribution: classes[OWN], **classes})
    found = []
    for seed in seeds:
        model, inputs = reference.judged_model(seed, sample=True), perturb(reference.inputs(seed), distribution, seed)
        case = Case(model, lambda inputs=inputs: inputs, reference.exact(model, inputs).outputs)  # type: ignore[misc]
        asked = ReferenceOnCase(reference, case)
        outputs = kernel(*inputs)
        found.append(policy.rule(outputs, case.expected, output_names(reference), distribution, asked).passed)
    return found


@pytest.mark.parametrize(
    ("names", "body", "shape", "distribution", "right", "wrong"),
    [
        pytest.param("q, k, v, do", BACKWARD, "2, 2, 64, 16", "x64", of_saved_logarithms, None, marks=pytest.mark.slow),
        ("q, k, v, do", BACKWARD, "2, 2, 64, 16", "lowered", of_saved_logarithms, None),
        pytest.param("q, k, v, do", BACKWARD, "2, 2, 64, 16", "rising ends", of_saved_logarithms, None, marks=pytest.mark.slow),
        (
            "q, k, v, do",
            BACKWARD,
            "2, 2, 64, 16",
            "x0.001",
            of_saved_logarithms,
            lambda *x: of_saved_logarithms(*x, delta=False),
        ),
        ("a, b", COSINE, "1024, 40", "lowered", one_less_the_mean, one_less_the_mean_of_one),
        ("a, g, x", GATE, "20, 30", "lowered", more_exact_than_float64, None),
        pytest.param("a, g, x", GATE, "20, 30", "x64", more_exact_than_float64, without_a_root, marks=pytest.mark.slow),
    ],
    ids=[
        "one-hot scores",
        "alike scores",
        "large scores",
        "small scores",
        "a difference of a mean",
        "an output of zeros",
        "a gate",
    ],
)
def test_what_rounding_all_results_explains_passes(
    tmp_path: Path, names: str, body: str, shape: str, distribution: str,
    right: Callable[..., Sequence[Tensor]], wrong: Callable[..., Sequence[Tensor]] | None,
) -> None:  # fmt: skip
    reference, calibration = calibrated(tmp_path, names, body, shape)
    assert all(passes(reference, calibration, distribution, right, *range(12)))
    assert wrong is None or not any(passes(reference, calibration, distribution, wrong, *range(3)))


def test_only_results_of_arithmetic_move_and_random_numbers_stay() -> None:
    x = torch.linspace(-3, 3, 600, dtype=torch.float64).view(20, 30)
    torch.manual_seed(5)
    without = torch.rand(4)
    torch.manual_seed(5)
    with RoundedResults(torch.float32, fresh_seed()):
        kept = [x.t().contiguous(), x.sort(0).values, torch.where(x > 0, x, -x), x.relu(), x.argmax(1), torch.arange(5) + 1]
        moved = [x + 1, x.t() * 2, torch.exp(x), x @ x.mT, x.sum(), x.clone().mul_(3), F.layer_norm(x, (30,))]
        drawn = torch.rand(4)
    right = [x + 1, x.t() * 2, torch.exp(x), x @ x.mT, x.sum(), x * 3, F.layer_norm(x, (30,))]
    assert torch.equal(drawn, without)
    for mine, exact in zip(kept, [x.t(), x.sort(0).values, x.abs(), x.relu(), x.argmax(1), torch.arange(1, 6)], strict=True):
        assert torch.equal(mine, exact)
    for mine, exact in zip(moved, right, strict=True):
        apart = (mine - exact).abs() / exact.abs().clamp(min=1e-300)
        assert 0 < apart.max() <= 4.01 * torch.finfo(torch.float32).eps


def test_results_move_one_way_by_parts_that_do_not_cancel() -> None:
    x = torch.linspace(1, 3, 600, dtype=torch.float64)
    with RoundedResults(torch.float32, 0, UP):
        up, quotient = x * 2, x / (x.amax() / 127)
    with RoundedResults(torch.float32, 0, DOWN):
        down = x * 2
    assert bool((up > x * 2).all())
    assert bool((down < x * 2).all())
    assert not bool((quotient == x / (x.amax() / 127)).any())
    assert (quotient / (x / (x.amax() / 127)) - 1).abs().max() < 8 * torch.finfo(torch.float32).eps
