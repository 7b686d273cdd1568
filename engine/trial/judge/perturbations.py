"""Input distributions of a trial: the problem's own, and perturbed ones that expose shortcuts. Imports torch.

A kernel that skips the maximum in a softmax, sums squares without centring, or works in a narrower range fails on one of them.
A perturbation is used only where the reference itself stays finite and accurate (see ``calibration``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import torch

from engine.problem.values import map_arguments

OWN = "own"


def _scaled(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor * factor


def _shifted(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor + by


def _alternating(tensor: torch.Tensor) -> torch.Tensor:
    """Signs alternate along the last dimension: sums cancel."""
    signs = torch.ones(tensor.shape[-1] if tensor.dim() else 1, dtype=tensor.dtype, device=tensor.device)
    signs[1::2] = -1
    return tensor * (signs if tensor.dim() else signs[0])


def _spiked(tensor: torch.Tensor) -> torch.Tensor:
    """Every 97th element, from a random offset on, is multiplied by 40."""
    return _larger(tensor, 97, 40)


def _with_outliers(tensor: torch.Tensor) -> torch.Tensor:
    """Every 997th element, from a random offset on, is multiplied by 1000."""
    return _larger(tensor, 997, 1000)


def _larger(tensor: torch.Tensor, every: int, factor: float) -> torch.Tensor:
    flat = tensor.clone().reshape(-1)
    flat[secrets.randbelow(max(1, min(every, flat.numel()))) :: every] *= factor
    return flat.reshape(tensor.shape)


def _with_few_outliers(tensor: torch.Tensor) -> torch.Tensor:
    """Three random elements are multiplied by 1000: too few for a kernel to find by sampling."""
    flat = tensor.clone().reshape(-1)
    places = {secrets.randbelow(flat.numel()) for _ in range(_FEW if flat.numel() else 0)}
    flat[list(places)] *= 1000
    return flat.reshape(tensor.shape)


_FEW = 3


PERTURBATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x64": _scaled(64.0),
    "x0.001": _scaled(1e-3),
    "shifted": _shifted(32.0),
    "raised": _shifted(1000.0),
    "alternating": _alternating,
    "spiked": _spiked,
    "outliers": _with_outliers,
    "few": _with_few_outliers,
}
"""Name → change applied to every floating-point input."""
WIDE_ONLY = ("raised", "outliers", "few")
"""Not for half precision: 1000 + x loses x, and 1000² overflows."""


def perturb(inputs: tuple[object, ...], distribution: str) -> tuple[object, ...]:
    """``inputs`` in this distribution; integer and non-tensor inputs are unchanged."""
    if distribution == OWN:
        return inputs
    change = PERTURBATIONS[distribution]
    return map_arguments(lambda t: change(t).to(t.dtype) if t.is_floating_point() else t, inputs)
