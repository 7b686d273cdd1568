"""Slips that uniform inputs hide: each wrong kernel passes on ``torch.rand`` alone and is refused on perturbed inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import make_case, output_names
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.rand({})]
def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Slip:
    """A reference's expression, a wrong kernel for it, and the shape of its input."""

    reference: str
    wrong: Callable[[Tensor], object]
    shape: str = "16, 300"


def softmax_from(x: Tensor, least: float) -> Tensor:
    top = torch.clamp(x.amax(1, keepdim=True), min=least)
    e = torch.exp(x - top)
    return e / e.sum(1, keepdim=True)


def logsumexp_from_zero(x: Tensor) -> Tensor:
    top = x.amax(1, keepdim=True).clamp(min=0)
    return top.squeeze(1) + torch.log(torch.exp(x - top).sum(1))


def variance_of_squares(x: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(1, keepdim=True) - mean * mean + 1e-5)


def pool_from_zero(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1).clamp(min=0)


def arg_from_zero(x: Tensor) -> Tensor:
    """Keeps index 0 unless something exceeds 0."""
    return torch.where(x.amax(1) > 0, x.argmax(1), 0)


def collapsed_ranks(x: Tensor) -> Tensor:
    """Sorts by rank, and equal elements share one: their places stay unwritten."""
    rank = (x[:, None, :] < x[:, :, None]).sum(2)
    return torch.zeros_like(x).scatter_(1, rank, x)


def median_distinct(x: Tensor) -> Tensor:
    """Counts distinct elements only."""
    return torch.stack([torch.unique(row)[(len(torch.unique(row)) - 1) // 2] for row in x])


SLIPS = {
    "softmax with a maximum from 0": Slip("torch.softmax(x, 1)", lambda x: softmax_from(x, 0.0)),
    "softmax without its maximum": Slip("torch.softmax(x, 1)", lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True)),
    "log-softmax without its maximum": Slip("F.log_softmax(x, 1)", lambda x: x - torch.log(torch.exp(x).sum(1, keepdim=True))),
    "logsumexp with a maximum from 0": Slip("torch.logsumexp(x, 1)", logsumexp_from_zero),
    "maximum from 0": Slip("x.amax(1)", lambda x: x.amax(1).clamp(min=0)),
    "minimum from 1": Slip("x.amin(1)", lambda x: x.amin(1).clamp(max=1)),
    "largest magnitude without abs": Slip("x.abs().amax(1)", lambda x: x.amax(1)),
    "max-pool from 0": Slip("F.max_pool2d(x, 3, 2, 1)", pool_from_zero, "2, 3, 16, 16"),
    "hardtanh without its lower bound": Slip("F.hardtanh(x)", lambda x: x.clamp(max=1)),
    "clamp without its upper bound": Slip("x.clamp(-2, 2)", lambda x: x.clamp(min=-2)),
    "relu6 without its upper bound": Slip("F.relu6(x)", F.relu),
    "relu left out": Slip("F.relu(x)", lambda x: x.clone()),
    "leaky relu with slope 0": Slip("F.leaky_relu(x, 0.01)", F.relu),
    "ELU wrong below -1": Slip("F.elu(x)", lambda x: torch.where(x < -1, x, F.elu(x))),
    "SELU with a wrong factor below 0": Slip("F.selu(x)", lambda x: torch.where(x < 0, 1.6732632 * torch.expm1(x), F.selu(x))),
    "GELU by tanh that is 0 below 0": Slip(
        "F.gelu(x, approximate='tanh')", lambda x: F.gelu(x, approximate="tanh").clamp(min=0)
    ),
    "hardswish without its zero": Slip("F.hardswish(x)", lambda x: x * (x + 3).clamp(max=6) / 6),
    "hardsigmoid without bounds": Slip("F.hardsigmoid(x)", lambda x: x / 6 + 0.5),
    "softplus without its threshold": Slip("F.softplus(x)", lambda x: torch.log(1 + torch.exp(x))),
    "tanh by a quotient that overflows": Slip("torch.tanh(x)", lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)),
    "softsign without abs": Slip("F.softsign(x)", lambda x: x / (1 + x)),
    "threshold on the wrong side": Slip("torch.where(x > 0, x, -0.5)", lambda x: x.clone()),
    "sign of everything positive": Slip("torch.sign(x) * x * x", lambda x: x * x),
    "L1 norm without abs": Slip("x / x.abs().sum(1, keepdim=True)", lambda x: x / x.sum(1, keepdim=True)),
    "variance without centring": Slip("F.layer_norm(x, (300,))", variance_of_squares),
    "square root of a magnitude": Slip("torch.sqrt(x.abs())", lambda x: torch.sqrt(x.clamp(min=0))),
    "hinge with the wrong sign beyond 1": Slip("(1 - x).clamp(min=0).mean()", lambda x: (1 - x).mean()),
    "Huber without its linear part": Slip("F.smooth_l1_loss(x, torch.zeros_like(x), reduction='none')", lambda x: 0.5 * x * x),
    "floor by truncation": Slip("torch.floor(x * 3)", lambda x: torch.trunc(x * 3)),
    "cumulative maximum from 0": Slip("torch.cummax(x, 1).values", lambda x: torch.cummax(x, 1).values.clamp(min=0)),
    "cumulative product of magnitudes": Slip("torch.cumprod(x, 1)", lambda x: torch.cumprod(x.abs(), 1), "16, 12"),
    "argmax from 0": Slip("x.argmax(1)", arg_from_zero),
    "argmin from 1": Slip("x.argmin(1)", lambda x: torch.where(x.amin(1) < 1, x.argmin(1), 0)),
    "positive elements counted as all": Slip("(x > 0).sum(1)", lambda x: torch.full((len(x),), x.shape[1])),
    "sort where equal elements share a rank": Slip("torch.sort(x, 1).values", collapsed_ranks, "8, 60"),
    "median of distinct elements": Slip("x.median(1).values", median_distinct, "8, 61"),
    "0 as a positive number": Slip("(x > 0).float()", lambda x: (x >= 0).float()),
    "sum that skips what is not positive": Slip("x.sum(1)", lambda x: x.clamp(min=0).sum(1)),
    "product with a term that is not finite left out": Slip("x * 2", lambda x: torch.where(torch.isfinite(x), x * 2, 0.0)),
    "logarithm of a floor": Slip("torch.log(x.abs())", lambda x: torch.log(x.abs().clamp(min=1.2e-38))),
}


def judged(folder: Path, reference: str, shape: str) -> tuple[Reference, Calibration]:
    file = folder / "reference.py"
    file.write_text(MODEL.format(reference, shape))
    loaded = Reference(catalog.find(str(file)), Workload("full", {}))
    return loaded, calibrate(loaded, "class")


def passes(reference: Reference, calibration: Calibration, kernel: Callable[..., object], distribution: str) -> bool:
    case = make_case(reference, distribution)
    returned = kernel(*case.inputs)
    outputs = [returned] if isinstance(returned, Tensor) else list(returned)  # type: ignore[call-overload]
    outputs = [
        o.to(e.dtype if not e.is_floating_point() else torch.float32) for o, e in zip(outputs, case.expected, strict=True)
    ]
    on_case = ReferenceOnCase(reference, case)
    return calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, on_case).passed


def refusing(reference: Reference, calibration: Calibration, kernel: Callable[..., object]) -> list[str]:
    """The distributions on which a kernel is refused."""
    return [d for d in calibration.distributions if not passes(reference, calibration, kernel, d)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_that_uniform_inputs_hide_is_refused_and_the_reference_passes(tmp_path: Path, name: str) -> None:
    slip = SLIPS[name]
    reference, calibration = judged(tmp_path, slip.reference, slip.shape)
    found = refusing(reference, calibration, slip.wrong)
    assert found, calibration.distributions
    assert OWN not in found
    model = reference.model(1)
    assert refusing(reference, calibration, lambda *given: reference.call(model, given)) == []
