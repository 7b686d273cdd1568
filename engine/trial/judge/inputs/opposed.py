"""Inputs shifted against each other: some up, others down. Imports torch.

All products of an input that went up and one that went down are negative. Scores of an attention are sums of such products: a
maximum of them that starts at 0 is no maximum of theirs, and every exponential is zero. Perturbations that change all inputs
alike make such products positive; those that change one make the scores of a query negative for some keys, and not for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from engine.domain.model import Operand, Role
from engine.problem.arguments.values import map_arguments, tensors
from engine.trial.judge.inputs import structure

_BY, _BY_IN_HALF = 32.0, 8.0
"""As far as ``shifted`` inputs. Half precision keeps too little of a number behind 32, and its products overflow."""
_IN_HALVES = 1 / 2
"""How often the first half of the inputs moves one way."""


def can_oppose(operands: Sequence[Operand]) -> bool:
    """Whether there are two floating-point inputs."""
    return sum(_is_wide(getattr(torch, operand.dtype)) for operand in operands if operand.role is Role.INPUT) > 1


def opposed(inputs: tuple[object, ...], rng: Random) -> tuple[object, ...]:
    """Copies of ``inputs``: of the floating-point ones every other one is shifted up, or the first half is, the others down; or
    the reverse.

    Of two or three inputs, as queries, keys and values, the first two move against each other in both ways. Of more,
    neighbours do in the first way and inputs of different halves in the second; some pairs do in neither.
    """
    count = sum(_is_wide(tensor.dtype) for tensor in tensors(list(inputs)))
    in_halves, way = rng.random() < _IN_HALVES, rng.choice((1, -1))
    seen = 0

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        if not _is_wide(tensor.dtype):
            return tensor
        by = way * (_BY if tensor.dtype.itemsize > 2 else _BY_IN_HALF)
        back = seen >= count // 2 if in_halves else seen % 2 == 1
        copy = tensor.clone(memory_format=torch.contiguous_format).add_(-by if back else by)
        seen += 1
        return structure.kept(tensor, structure.in_range(tensor, copy))

    return map_arguments(changed, inputs)


def _is_wide(dtype: torch.dtype) -> bool:
    """Types of one byte have no arithmetic of their own, and come with scales."""
    return dtype.is_floating_point and dtype.itemsize > 1
