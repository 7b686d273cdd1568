"""The reference's outputs where inputs or results move in their last places: what rounding decides. Imports torch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from engine.domain.errors import ProblemError
from engine.problem.arguments.values import tensors
from engine.problem.loading import is_out_of_memory
from engine.problem.reference import Reference
from engine.problem.torch_modes.randomness import seeded
from engine.trial.judge.inputs.perturbations import BY_CHANCE, DOWN, UP, nudged
from engine.trial.judge.rounding.rounded_results import RoundedResults

_Inputs = tuple[object, ...]
_Runs = Iterator[Sequence[torch.Tensor]]
_NUDGES = 16
"""Random ones. UP and DOWN leave quotients as they are, and each of four missed an honest rounding in three of four cases."""


def exact_if_any(reference: Reference, model: nn.Module, inputs: _Inputs) -> _Runs:
    """The float64 outputs on inputs close to a case's; none where the reference fails on them: they may leave its domain.

    Raises ProblemError where memory runs out: another memory plan is tried then.
    """
    try:
        outputs = reference.exact(model, inputs).outputs
    except ProblemError as error:
        if is_out_of_memory(error.__cause__ or error):
            raise
        return
    yield outputs


def exact_close_by(
    reference: Reference, model: nn.Module, inputs: _Inputs, count: int, units_of: torch.dtype | None = None
) -> _Runs:
    """The float64 outputs on inputs that are moved in their last places at random, or in those of another type.

    Inputs that meet a number with which the reference compares stay.
    """
    for _ in range(count):
        with seeded(secrets.randbits(62), reference.device):
            close = nudged(inputs, BY_CHANCE, units_of, reference.compared_numbers())
        yield from exact_if_any(reference, model, close)


def exact_rounded(reference: Reference, model: nn.Module, inputs: _Inputs, count: int, units_of: torch.dtype) -> _Runs:
    """The float64 outputs with the results of all arithmetic moved at random, in the last places of a type."""
    for _ in range(count):
        with RoundedResults(units_of, secrets.randbits(62)):
            yield from exact_if_any(reference, model, inputs)


def close_by(reference: Reference, model: nn.Module, inputs: _Inputs) -> _Runs:
    """The reference's outputs in its own arithmetic, and in float64 on inputs moved in the last places and with moved results.

    Inputs of half precision are exact, and a kernel computes with them in fp32: they are also moved by fp32's units. One whose
    quotient by a row's largest number ends in a half is a tie that every other order of operations breaks.
    """
    yield reference.call(model, inputs)
    for way in (UP, DOWN):
        yield from exact_if_any(reference, model, nudged(inputs, way, compared=reference.compared_numbers()))
        with RoundedResults(torch.float32, secrets.randbits(62), way):
            yield from exact_if_any(reference, model, inputs)
    narrow = [t.dtype for t in tensors(list(inputs)) if t.is_floating_point() and t.dtype.itemsize < 4]
    if narrow:
        yield from exact_close_by(reference, model, inputs, _NUDGES, torch.float32)
    yield from exact_close_by(reference, model, inputs, _NUDGES)
    if narrow:
        yield from exact_rounded(reference, model, inputs, _NUDGES, narrow[0])
