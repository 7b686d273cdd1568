"""Other values for inputs of equal numbers, as full lengths or a mask that keeps everything. Imports torch.

A problem that always draws such an input hides a kernel that does not read it: no other perturbation changes integers, or adds
different numbers to a mask of zeros that is added to the scores of a softmax. The values here stay valid wherever the problem's
own are: floating-point numbers near theirs, integers between 1 and theirs, as lengths and indices may be. Zeros of a type that
torch takes no indices in are zero points of a quantisation, and become 1.
"""

from __future__ import annotations

from random import Random

import torch

from engine.trial.judge.outputs.blocks import in_blocks

_CHANGED = 1 / 3
"""The share of booleans, zeros and ones that change."""
_NO_INDICES = (torch.int8, torch.int16)
_SHARE, _AROUND_ZERO = 0.25, 0.5
"""How far floating-point numbers move: as constant parameters do."""


def can_vary(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds several equal numbers: booleans, floating-point numbers, positive integers or zeros that are no
    indices.

    Types of one byte stay: some hold powers of two only.
    """
    if tensor.is_complex() or tensor.is_quantized or tensor.layout is not torch.strided or tensor.numel() < 2:
        return False
    first = tensor.reshape(-1)[0]
    if tensor.is_floating_point():
        varies = tensor.dtype.itemsize > 1 and bool(first.isfinite())
    else:
        varies = tensor.dtype is torch.bool or int(first) > 0 or (tensor.dtype in _NO_INDICES and int(first) == 0)
    return varies and all(bool((block == first).all()) for (block,) in in_blocks(tensor, own_type=True))


def varied(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """A copy in which a third of the booleans is inverted, the integers lie between 1 and their number (0 and 1 for ones and
    zeros), or floating-point numbers near theirs.

    Of integers and booleans, one in every line along every dimension keeps its value: a row that a mask leaves empty has no
    softmax, and the largest length, which may decide the shape of an output, stays. At least one changes.
    """
    copy = tensor.clone(memory_format=torch.contiguous_format)
    generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))
    if tensor.is_floating_point():
        return _near(copy, generator)
    number = int(tensor.reshape(-1)[0])
    period = min(size for size in tensor.shape if size > 1)
    kept, start = rng.randrange(period), 0
    for (flat,) in in_blocks(copy, own_type=True):
        stays = _sum_of_indices(tensor.shape, start, flat).remainder_(period) == kept
        if tensor.dtype is torch.bool or number in (0, 1):
            stays |= torch.rand(flat.shape, generator=generator, device=flat.device) >= _CHANGED
            others = torch.full_like(flat, not number)
        else:
            others = torch.randint(1, number + 1, flat.shape, generator=generator, device=flat.device).to(flat.dtype)
        flat.copy_(torch.where(stays, flat, others))
        start += flat.numel()
    if bool((copy == number).all()):
        first = next(place for place in range(period) if place != kept)  # along the first dimension longer than 1
        dim = next(d for d, size in enumerate(tensor.shape) if size > 1)
        copy.select(dim, first).view(-1)[0] = number - 1 if number > 0 else 1
    return copy


def _near(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    number = float(tensor.reshape(-1)[0])
    for (flat,) in in_blocks(tensor, own_type=True):
        flat.add_(torch.rand(flat.shape, generator=generator, device=flat.device).mul_(2).sub_(1), alpha=_reach(number))
    return tensor


def _reach(number: float) -> float:
    return _SHARE * number if number else _AROUND_ZERO


def _sum_of_indices(shape: torch.Size, start: int, flat: torch.Tensor) -> torch.Tensor:
    """For each element of a block, the sum of its indices. Modulo a size, every number occurs along every longer dimension."""
    place = torch.arange(start, start + flat.numel(), device=flat.device)
    found = torch.zeros_like(place)
    for size in reversed(shape):
        found += place % size
        place //= size
    return found
