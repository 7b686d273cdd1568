"""Elements replaced by particular numbers: zeros, ones, denormals, and what the reference compares with. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch

from engine.domain.model import Operand, Role
from engine.trial.judge.outputs.blocks import in_blocks

Change = Callable[[torch.Tensor, Random], torch.Tensor]
"""Changes a copy of an input, with random numbers that are the same for the same seed, and returns it."""


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """The largest magnitude."""
    return torch.maximum(tensor.amax(), tensor.amin().neg())


def _replace_some(tensor: torch.Tensor, rng: Random, values: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A random third of the elements replaced, block by block; ``values`` of an even number of elements."""
    generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))
    for (flat,) in in_blocks(tensor, own_type=True):
        chosen = torch.rand(flat.shape, generator=generator, device=flat.device) < 1 / 3
        flat.copy_(torch.where(chosen, values(flat), flat))
    return tensor


def with_zeros(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """A random third of the elements are 0 or, at every other place, −0."""

    def zeros(flat: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(flat)
        found[1::2] = -0.0
        return found

    return _replace_some(tensor, rng, zeros)


def with_ones(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """A random third of the elements are 1 or −1, with their sign: ends of the domain of logarithms and arc functions."""
    return _replace_some(tensor, rng, lambda flat: torch.ones_like(flat).copysign(flat))


def with_denormals(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """A random third of the elements lie below the smallest normal number."""
    smallest = torch.finfo(tensor.dtype).smallest_normal
    most = largest(tensor) if tensor.numel() else 1
    return _replace_some(tensor, rng, lambda flat: (flat / most).nan_to_num() * smallest)


def can_meet(operands: Sequence[Operand], numbers: Sequence[float]) -> bool:
    """Whether the elements of an input can be exactly one of these numbers, other than those of ``zeros`` and ``ones``."""
    dtypes: list[torch.dtype] = [getattr(torch, o.dtype) for o in operands if o.role is Role.INPUT]
    return any(abs(n) not in (0.0, 1.0) and _exact([n], d) for d in dtypes if d.is_floating_point for n in numbers)


def _exact(numbers: Sequence[float], dtype: torch.dtype) -> list[float]:
    """Those that the type represents exactly. Others are compared in one place rounded and in another not."""
    return [number for number in numbers if float(torch.tensor(number, dtype=dtype)) == number]


def meeting(numbers: Sequence[float]) -> Change:
    """A random third of the elements are one of these numbers, or the negative of one."""

    def change(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
        exact = _exact(numbers, tensor.dtype)
        if not exact:
            return tensor
        values = tensor.new_tensor([*exact, *(-number for number in exact)])
        generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))

        def some(flat: torch.Tensor) -> torch.Tensor:
            return values[torch.randint(len(values), flat.shape, generator=generator, device=flat.device)]

        return _replace_some(tensor, rng, some)

    return change
