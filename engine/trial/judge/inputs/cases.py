"""A case of a trial: inputs with the reference's float64 outputs. Imports torch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from engine.domain.model import PrecisionClass, Role
from engine.problem.arguments.values import tensors
from engine.problem.counting.operation_count import SHIPPED_WITH_TF32
from engine.problem.reference import Reference
from engine.trial.judge.inputs.perturbations import OWN, perturb
from engine.trial.judge.outputs.blocks import as_integers


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs with the reference's float64 outputs."""

    model: nn.Module
    draw: Callable[[], tuple[object, ...]]
    expected: Sequence[torch.Tensor]
    note: str = ""
    own: bool = True
    """Whether the inputs are the problem's own, not perturbed."""

    @property
    def inputs(self) -> tuple[object, ...]:
        return self.draw()


def fresh_seed() -> int:
    """A secret seed; never leaves the judge."""
    return secrets.randbits(62)


def draws_alike(reference: Reference) -> bool:
    """Whether the same seed draws the same inputs again."""
    one, other = (list(tensors(list(reference.inputs(1)))) for _ in range(2))
    return len(one) == len(other) and all(torch.equal(as_integers(a), as_integers(b)) for a, b in zip(one, other, strict=True))


def make_case(reference: Reference, distribution: str) -> Case:
    """Inputs and weights from fresh secret seeds, with the float64 outputs."""
    model = reference.judged_model(fresh_seed(), sample=True)
    compared, ranges = reference.compared_numbers(), reference.integer_ranges()
    inputs = perturb(reference.inputs(fresh_seed()), distribution, compared=compared, ranges=ranges)
    exact = reference.exact(model, inputs)
    return Case(model, lambda: inputs, exact.outputs, exact.note, own=distribution == OWN)


def output_names(reference: Reference) -> list[str]:
    """Output names, in order."""
    return [o.name for o in reference.signature().operands if o.role == "output"]


def output_dtype(reference: Reference) -> torch.dtype:
    """The floating type of the outputs or their parts (the narrowest, if several), or their integer type."""
    found = output_dtypes(reference)
    floating = [d for d in found if d.is_floating_point]
    return min(floating, key=lambda d: torch.finfo(d).bits) if floating else found[0]


def output_dtypes(reference: Reference) -> list[torch.dtype]:
    """The type of each output or of its parts."""
    return [getattr(torch, o.dtype).to_real() for o in reference.signature().operands if o.role == "output"]


def default_class(reference: Reference) -> PrecisionClass:
    """The class that eager PyTorch uses by default for this problem on this device."""
    operands = reference.signature().operands
    narrow = any(o.dtype in ("float16", "bfloat16") for o in operands)
    if narrow or any(o.role is Role.OUTPUT and o.dtype.startswith("float8") for o in operands):
        return PrecisionClass.HALF
    if reference.device.type == "cuda" and SHIPPED_WITH_TF32 & reference.ops_used():
        return PrecisionClass.TF32
    return PrecisionClass.FP32
