"""Inputs with equal rows, in two of them or in one: differences, distances and angles are exactly zero. Imports torch.

Random inputs have no two rows in common. A kernel that takes the root of a squared distance by its expansion, or the arc cosine
of a product of normalised rows, without a bound gets NaN there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import torch

from engine.domain.model import Operand, Role
from engine.problem.arguments.values import map_arguments
from engine.trial.judge.inputs import structure

_EVERY = 3
"""One row in this many is a copy."""


def can_copy(operands: Sequence[Operand]) -> bool:
    """Whether two floating-point inputs have one type, and rows of one length over 1."""
    kinds = [(o.dtype, o.shape[-1]) for o in operands if o.role is Role.INPUT and _has_rows(getattr(torch, o.dtype), o.shape)]
    return len(set(kinds)) < len(kinds)


def has_several_rows(operands: Sequence[Operand]) -> bool:
    """Whether a floating-point input has two rows of a length over 1."""
    wide = [o.shape for o in operands if o.role is Role.INPUT and _has_rows(getattr(torch, o.dtype), o.shape)]
    return any(math.prod(shape[:-1]) > 1 for shape in wide)


def with_equal_rows(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Every third row of a contiguous tensor, from a random one on, becomes the one before it, or all of these a random other.

    Changes the tensor.
    """
    if not _has_rows(tensor.dtype, tensor.shape) or tensor.numel() == tensor.shape[-1]:
        return tensor
    rows = tensor.view(-1, tensor.shape[-1])
    copies = range(1 + rng.randrange(min(_EVERY, len(rows) - 1)), len(rows), _EVERY)
    before = rows[copies.start - 1 : copies.stop - 1 : _EVERY]
    rows[copies.start :: _EVERY] = before.clone() if rng.random() < _NEIGHBOURS else before[rng.randrange(len(before))].clone()
    return tensor


_NEIGHBOURS = 2 / 3
"""How often rows are copies of their neighbours."""


def with_copies(inputs: tuple[object, ...], rng: Random) -> tuple[object, ...]:
    """Copies of ``inputs``: every third row is that of the first input with rows of the same length and type.

    Rows lie along the last dimension, and keep their index. The first one that is copied is random.
    """
    firsts: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if not _has_rows(tensor.dtype, tensor.shape):
            return tensor
        length = tensor.shape[-1]
        first = firsts.setdefault((tensor.dtype, length), tensor)
        if first is tensor:
            return tensor
        copy = tensor.clone(memory_format=torch.contiguous_format)
        mine, theirs = copy.view(-1, length), first.reshape(-1, length)
        count = min(len(mine), len(theirs))
        start = rng.randrange(min(_EVERY, count))
        mine[start:count:_EVERY] = theirs[start:count:_EVERY]
        return structure.kept(tensor, copy)

    return map_arguments(changed, inputs)


def _has_rows(dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Types of one byte, which lack most operators, come with scales of their own."""
    return dtype.is_floating_point and dtype.itemsize > 1 and len(shape) > 0 and shape[-1] > 1 and 0 not in shape
