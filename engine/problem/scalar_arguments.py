"""Varies the floating-point scalars among the arguments of ``forward``. Imports torch.

A module is called with these scalars. One that holds a copy of the usual value in its code is right until the value changes.
Integers and flags choose shapes, dimensions and algorithms; they stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.domain.errors import ProblemError
from engine.problem.argument_objects import is_object, made, parts

_SHARE = 0.25
"""A varied value lies within this share of the usual one, and keeps its sign."""
_TRIALS = 5


def has_scalars(arguments: object) -> bool:
    """Whether any argument, or element of an argument, is a floating-point number other than zero."""
    match arguments:
        case bool() | Tensor():
            return False
        case float():
            return arguments != 0.0
        case Mapping():
            return any(map(has_scalars, arguments.values()))
        case list() | tuple():
            return any(map(has_scalars, arguments))
        case _ if is_object(arguments):
            return has_scalars(parts(arguments))
        case _:
            return False


def vary_scalars(arguments: tuple[object, ...], seed: int) -> tuple[object, ...]:
    """The arguments with every floating-point scalar varied: the same for the same seed. Zeros, infinities and NaN stay."""
    dice = random.Random(seed)

    def varied(value: Any) -> Any:
        match value:
            case Tensor():
                return value
            case float():
                return value * (1.0 + _SHARE * dice.uniform(-1.0, 1.0))
            case Mapping():
                return {key: varied(inner) for key, inner in value.items()}
            case tuple() if hasattr(value, "_fields"):
                return type(value)(*map(varied, value))
            case list() | tuple():
                return type(value)(map(varied, value))
            case _ if is_object(value):
                return made(type(value), {key: varied(inner) for key, inner in parts(value).items()})
            case _:
                return value

    return tuple(map(varied, arguments))


def takes_other_scalars(forward: Callable[[tuple[object, ...]], tuple[Tensor, ...]], arguments: tuple[object, ...]) -> bool:
    """Whether ``forward`` computes finite elements in the same places with other scalars.

    It is tried on the tensors of ``arguments``, which it must leave unchanged, and may raise ProblemError for other scalars.
    """
    finite = [torch.isfinite(output) for output in forward(arguments)]
    try:
        others = [forward(vary_scalars(arguments, seed)) for seed in range(_TRIALS)]
    except ProblemError:
        return False
    return all(all(map(torch.equal, finite, map(torch.isfinite, outputs))) for outputs in others)
