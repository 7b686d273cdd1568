"""Inputs graded along the dimensions that they share: large where another is small. Imports torch.

A product over a shared dimension stays as it is, term by term, and so does the error of arithmetic in floating point. A kernel
that keeps its numbers relative to the largest of a row or a block, as with bytes and one scale, loses the small ones; all other
perturbations leave its error small, because large terms are large on both sides or on one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from engine.domain.model import Operand, Role
from engine.problem.arguments.values import map_arguments, tensors
from engine.trial.judge.inputs import structure

_EXPONENT = 5
"""Factors are powers of two from 2^-5 to 2^5: three decades. Along two dimensions they multiply;"""
_MOST = 2
"""along more they are smaller, and their product has the same range: half precision holds no 2^20."""


def can_grade(operands: Sequence[Operand]) -> bool:
    """Whether two floating-point inputs share the length of a dimension."""
    wide = [o for o in operands if o.role is Role.INPUT and _is_wide(getattr(torch, o.dtype))]
    return bool(_shared_lengths([operand.shape for operand in wide]))


def graded(inputs: tuple[object, ...], rng: Random) -> tuple[object, ...]:
    """Copies of ``inputs``: the first floating-point one multiplied along the dimensions that it shares, the others divided.

    A length has the same random powers of two wherever it occurs, so that they cancel in a product over any of its dimensions.
    """
    shared = _shared_lengths([tensor.shape for tensor in tensors(list(inputs)) if _is_wide(tensor.dtype)])
    seed = rng.getrandbits(62)
    most = _EXPONENT * _MOST // max(_MOST, *(sum(n in shared for n in t.shape) for t in tensors(list(inputs))))
    seen = 0

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        if not _is_wide(tensor.dtype):
            return tensor
        copy = tensor.clone(memory_format=torch.contiguous_format)
        for dim, length in enumerate(copy.shape):
            if length in shared:
                exponents = _exponents(length, most, seed, copy.device) * (1 if seen == 0 else -1)
                copy.mul_((2.0**exponents).to(copy.dtype).view([-1 if d == dim else 1 for d in range(copy.dim())]))
        seen += 1
        return structure.in_range(tensor, copy)

    return map_arguments(changed, inputs)


def _exponents(length: int, most: int, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed ^ length)
    return torch.randint(-most, most + 1, (length,), generator=generator, device=device).float()


def _is_wide(dtype: torch.dtype) -> bool:
    """Types of one byte hold too few powers of two."""
    return dtype.is_floating_point and dtype.itemsize > 1


def _shared_lengths(shapes: Sequence[Sequence[int]]) -> frozenset[int]:
    """The lengths over 1 that the first shape has in common with another one."""
    if not shapes:
        return frozenset()
    return frozenset(set(shapes[0]) & set().union(*shapes[1:])) - {0, 1}
