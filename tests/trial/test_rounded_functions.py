"""Where a function of exponentials is small, a kernel may err as the usual formula does, and by no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trial.test_rounded_results import calibrated, passes

from engine.trial.judge.inputs.perturbations import OF_EXPONENTIALS
from engine.trial.judge.rounding.rounded_functions import RoundedFunctions
from engine.trial.judge.tolerance.candidate_distributions import candidates

Kernel = Callable[..., Sequence[Tensor]]


def tanh(x: Tensor) -> Tensor:
    return 1 - 2 / (torch.exp(2 * x) + 1)


def softplus(x: Tensor) -> Tensor:
    return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))


def exponential_less_one(x: Tensor) -> Tensor:
    return torch.exp(x) - 1


KERNELS: dict[str, tuple[str, str, Kernel, Kernel]] = {
    "tanh": ("torch.tanh(x)", "x0.001", lambda x: [tanh(x)], lambda x: [tanh(x + 1e-6)]),
    "tanh by a sigmoid": ("torch.tanh(x)", "x0.001", lambda x: [2 * torch.sigmoid(2 * x) - 1], lambda x: [x * 0.99]),
    "two tanh": (
        "torch.tanh(torch.tanh(x) @ x.mT * 0.1)",
        "x0.001",
        lambda x: [tanh(tanh(x) @ x.mT * 0.1)],
        lambda x: [tanh(x @ x.mT * 0.1) + 1e-6],
    ),
    "expm1": ("torch.expm1(x)", "x0.001", lambda x: [exponential_less_one(x)], lambda x: [x]),
    "ELU": (
        "F.elu(x, 0.5)",
        "x0.001",
        lambda x: [torch.where(x > 0, x, 0.5 * exponential_less_one(x))],
        lambda x: [torch.where(x > 0, x, 0.5 * x)],
    ),
    "SELU": (
        "F.selu(x)",
        "x0.001",
        lambda x: [1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * exponential_less_one(x))],
        lambda x: [1.0507 * torch.where(x > 0, x, 1.67 * torch.expm1(x))],
    ),
    "log1p": ("torch.log1p(x * x)", "x0.001", lambda x: [torch.log(1 + x * x)], lambda x: [torch.log(1 + x * x + 1e-6)]),
    "softplus": ("F.softplus(x)", "lowered", lambda x: [softplus(x)], lambda x: [F.softplus(x) + 1e-8]),
    "mish": ("F.mish(x)", "lowered", lambda x: [x * tanh(softplus(x))], lambda x: [x * F.tanh(F.softplus(x) + 1e-6)]),
    "logarithm of a sigmoid": (
        "F.logsigmoid(x)",
        "shifted",
        lambda x: [x.clamp(max=0) - torch.log(1 + torch.exp(-x.abs()))],
        lambda x: [F.logsigmoid(x) - 1e-6],
    ),
    "binary cross-entropy": (
        "F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction='none')",
        "shifted",
        lambda x: [(-x).clamp(min=0) + torch.log(1 + torch.exp(-x.abs()))],
        lambda x: [F.softplus(-x) + 1e-6],
    ),
    "sigmoid": ("torch.sigmoid(x)", "lowered", lambda x: [tanh(x / 2) / 2 + 0.5], lambda x: [torch.sigmoid(x) + 1e-6]),
    "SiLU": ("F.silu(x)", "lowered", lambda x: [x * (tanh(x / 2) / 2 + 0.5)], lambda x: [x * (torch.sigmoid(x) + 1e-6)]),
    "sigmoid in a logarithm": (
        "torch.log(torch.sigmoid(x))",
        "lowered",
        lambda x: [F.logsigmoid(x)],
        lambda x: [torch.log(torch.sigmoid(x) + 1e-8)],
    ),
    "two outputs": ("(torch.tanh(x), x + 1)", "x0.001", lambda x: [tanh(x), x + 1], lambda x: [tanh(x), x + 1.0001]),
    "half precision": (
        "F.softplus(x.bfloat16())",
        "lowered",
        lambda x: [softplus(x.bfloat16().float()).bfloat16()],
        lambda x: [(softplus(x.bfloat16().float()) + 1e-5).bfloat16()],
    ),
    "a sum": ("F.softplus(x).sum(-1)", "lowered", lambda x: [softplus(x).sum(-1)], lambda x: [softplus(x).sum(-1) + 1e-4]),
    "double precision": (
        "torch.tanh(x.double())",
        "x0.001",
        lambda x: [tanh(x.double())],
        lambda x: [tanh(x).double()],
    ),
}


@pytest.mark.parametrize("what", KERNELS)
def test_usual_formulas_pass_where_their_results_are_small(tmp_path: Path, what: str) -> None:
    expression, distribution, right, wrong = KERNELS[what]
    reference, calibration = calibrated(tmp_path, "x", f"        return {expression}", "64, 96")
    assert all(passes(reference, calibration, distribution, right, *range(6)))
    assert not any(passes(reference, calibration, distribution, wrong, *range(3)))


@pytest.mark.parametrize(
    ("expression", "distribution", "zero", "wrong"),
    [
        ("F.softplus(x)", "lowered", softplus, lambda x: torch.where(x < -15, -torch.exp(x), softplus(x))),
        ("F.softplus(x)", "lowered", softplus, lambda x: torch.where(x < -15, 3 * torch.exp(x), softplus(x))),
        ("F.silu(x)", "lowered", lambda x: x * (tanh(x / 2) / 2 + 0.5), lambda x: torch.where(x < -15, -F.silu(x), F.silu(x))),
        ("F.logsigmoid(x)", "shifted", lambda x: x.clamp(max=0) - softplus(-x.abs()), lambda x: torch.exp(-x)),
    ],
    ids=["softplus of the other sign", "three times softplus", "SiLU of the other sign", "logarithm of the other sign"],
)
def test_where_results_round_to_zero_those_of_the_other_sign_or_far_larger_are_wrong(
    tmp_path: Path, expression: str, distribution: str, zero: Callable[[Tensor], Tensor], wrong: Callable[[Tensor], Tensor]
) -> None:
    reference, calibration = calibrated(tmp_path, "x", f"        return {expression}", "64, 96")
    assert all(passes(reference, calibration, distribution, lambda x: [zero(x)], *range(6)))
    assert not any(passes(reference, calibration, distribution, lambda x: [wrong(x)], *range(3)))


@pytest.mark.parametrize(
    ("expression", "distribution", "right", "wrong"),
    [
        ("F.softplus(x)", "lowered by 8", softplus, lambda x: torch.where(x < -8, 0 * x, softplus(x))),
        (
            "F.logsigmoid(x)",
            "shifted by 8",
            lambda x: x.clamp(max=0) - torch.log(1 + torch.exp(-x.abs())),
            lambda x: torch.where(x > 8, 0 * x, F.logsigmoid(x)),
        ),
    ],
    ids=["softplus", "logarithm of a sigmoid"],
)
def test_results_that_the_usual_formulas_do_not_lose_must_not_be_zero(
    tmp_path: Path, expression: str, distribution: str, right: Callable[[Tensor], Tensor], wrong: Callable[[Tensor], Tensor]
) -> None:
    reference, calibration = calibrated(tmp_path, "x", f"        return {expression}", "64, 96")
    assert distribution in candidates(reference)
    assert all(passes(reference, calibration, distribution, lambda x: [right(x)], *range(6)))
    assert not any(passes(reference, calibration, distribution, lambda x: [wrong(x)], *range(3)))


def test_without_functions_of_exponentials_their_inputs_are_not_tried(tmp_path: Path) -> None:
    reference, _ = calibrated(tmp_path, "x", "        return torch.softmax(x, -1)", "64, 96")
    assert set(OF_EXPONENTIALS).isdisjoint(candidates(reference))


def test_on_the_problems_own_inputs_small_results_are_exact(tmp_path: Path) -> None:
    reference, calibration = calibrated(tmp_path, "x", "        return torch.tanh(x * 1e-3)", "64, 96")
    assert not any(passes(reference, calibration, "own", lambda x: [tanh(x * 1e-3)], *range(3)))


def test_functions_are_rounded_to_two_units_of_one_and_other_results_stay() -> None:
    x = torch.linspace(-3, -1, 600, dtype=torch.float64) * 1e-3
    with RoundedFunctions(torch.bfloat16):
        moved = [torch.tanh(x), torch.expm1(x), F.softplus(x), F.elu(x), F.logsigmoid(x), x.clone().tanh_()]
        kept = [x * 2, torch.exp(x), torch.cos(x), x.sum()]
    right = [torch.tanh(x), torch.expm1(x), F.softplus(x), F.elu(x), F.logsigmoid(x), x.tanh()]
    with RoundedFunctions(torch.float32):
        assert not torch.tanh(x * 1e-6).any()
    assert all(map(torch.equal, kept, [x * 2, torch.exp(x), torch.cos(x), x.sum()]))
    for mine, exact in zip(moved, right, strict=True):
        assert 1e-8 < (mine - exact).abs().max() <= 1.001 * torch.finfo(torch.float32).eps
