"""Integers at the ends of the range that they are drawn from. Imports torch.

A few hundred tokens of a vocabulary of 50,000 rarely draw the last one, so that a kernel which never reads the last row is
right on them. The ends are those of ``torch.randint`` in the problem: the reference takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from engine.problem.arguments.drawn_integers import Range
from engine.problem.arguments.values import map_arguments
from engine.trial.judge.outputs.blocks import in_blocks

_CHANGED = 1 / 8
"""The share of the elements that become an end."""


def at_ends(inputs: tuple[object, ...], ranges: Sequence[Range | None], rng: Random) -> tuple[object, ...]:
    """``inputs`` with ends among the integers: the ``ranges`` of their tensors, in order. Without any, none changes."""
    left = iter(ranges)

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        ends = next(left, None)
        return tensor if ends is None else _with_ends(tensor, ends, rng)

    return map_arguments(changed, inputs)


def _with_ends(tensor: torch.Tensor, ends: Range, rng: Random) -> torch.Tensor:
    copy = tensor.clone(memory_format=torch.contiguous_format)
    generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))
    values = copy.new_tensor(ends)
    for (flat,) in in_blocks(copy, own_type=True):
        chosen = torch.rand(flat.shape, generator=generator, device=flat.device) < _CHANGED
        which = torch.randint(2, flat.shape, generator=generator, device=flat.device)
        flat.copy_(torch.where(chosen, values[which], flat))
    for place, end in zip(rng.sample(range(copy.numel()), min(2, copy.numel())), reversed(ends), strict=False):
        copy.view(-1)[place] = end
    return copy
