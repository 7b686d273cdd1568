"""Inputs whose ends are their extremes: a maximum or a minimum that misses an end is wrong in every line. Imports torch.

A sum shows an element that is left out by itself. A maximum over 16384 random numbers shows the last one once in 16384 lines,
and raising both ends alike shows it only where the last is the larger one; a minimum never shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch

_FIRST, _LAST = 0, -1


def apart(*, rising: bool) -> Callable[[torch.Tensor, Random], torch.Tensor]:
    """Along every dimension, the last place of a line becomes its largest and the first its smallest; the reverse if not
    ``rising``. So are the last and the first element of all. Changes the tensor.

    Numbers that are not negative stay so: of a logarithm or a root nothing would be left to compare.
    """
    high, low = (_LAST, _FIRST) if rising else (_FIRST, _LAST)

    def change(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
        lines = [dim for dim, length in enumerate(tensor.shape) if length > 1]
        if not tensor.numel() or not lines:
            return tensor
        least, most = tensor.amin(), tensor.amax()
        step = torch.maximum(most, -least) * rng.uniform(*_STEP)
        for dim in lines:
            end = tensor.select(dim, low)
            end.fill_(least / 2) if bool(least >= 0) else end.sub_(step)
        if bool(least >= 0):
            tensor.view(-1)[low] = least / 4
        for dim in lines:
            tensor.select(dim, high).add_(step)
        return tensor

    return change


_STEP = (2.5, 4.0)
"""By how many times the largest magnitude an end moves: over twice, to pass every other number."""
