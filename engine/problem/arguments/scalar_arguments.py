"""Varies the floating-point scalars among the arguments of ``forward``. Imports torch.

A module is called with these scalars. One that holds a copy of the usual value in its code is right until the value changes.
Integers and flags choose shapes, dimensions and algorithms; they stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from engine.domain.errors import ProblemError
from engine.problem.arguments.argument_objects import is_object, made, parts
from engine.problem.arguments.values import equal_values, finite_elements

_SHARE = 0.25
"""A varied value lies within this share of the usual one, and keeps its sign."""
_AROUND_ZERO = 0.5
"""A varied zero lies within this."""
_TRIALS = 5


class Change(Enum):
    """How scalars vary. The first that the reference takes is used."""

    ALL = auto()
    """Zeros too, with either sign."""
    ZEROS_POSITIVE = auto()
    """As an epsilon or a probability must be."""
    ZEROS_KEPT = auto()
    NONE = auto()


def scalars(arguments: object) -> Iterator[float]:
    """Every floating-point number among the arguments and their elements."""
    match arguments:
        case bool() | Tensor():
            return
        case float():
            yield arguments
        case Mapping():
            for inner in arguments.values():
                yield from scalars(inner)
        case list() | tuple():
            for inner in arguments:
                yield from scalars(inner)
        case _ if is_object(arguments):
            yield from scalars(parts(arguments))


def vary_scalars(arguments: tuple[object, ...], seed: int, change: Change) -> tuple[object, ...]:
    """The arguments with every floating-point scalar varied: the same for the same seed. Infinities and NaN stay."""
    if change is Change.NONE:
        return arguments
    dice = random.Random(seed)

    def varied(value: Any) -> Any:
        match value:
            case Tensor():
                return value
            case float():
                draw = dice.uniform(-1.0, 1.0)
                if value or change is Change.ZEROS_KEPT:
                    return value * (1.0 + _SHARE * draw)
                return _AROUND_ZERO * (draw if change is Change.ALL else abs(draw))
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


Forward = Callable[[tuple[object, ...], int], tuple[Tensor, ...]]
"""Computes outputs from arguments and the seed of the random numbers that it draws."""


def usable_change(forward: Forward, arguments: tuple[object, ...]) -> Change:
    """How scalars vary with ``forward``.

    It must compute finite elements in the same places with other scalars; with others than zero the same for other random
    numbers, of which a probability of zero draws none. It is tried on the tensors of ``arguments``, which it must leave
    unchanged, and may raise ProblemError for other scalars.
    """
    usual = list(scalars(arguments))
    if not usual:
        return Change.NONE
    usually = [finite_elements(output) for output in forward(arguments, 0)]
    tried = (Change.ALL, Change.ZEROS_POSITIVE, Change.ZEROS_KEPT) if 0.0 in usual else (Change.ZEROS_KEPT,)
    return next((change for change in tried if _takes(forward, arguments, change, usually)), Change.NONE)


def _takes(forward: Forward, arguments: tuple[object, ...], change: Change, usually: list[Tensor]) -> bool:
    try:
        for seed in range(_TRIALS):
            given = vary_scalars(arguments, seed, change)
            outputs = forward(given, 0)
            if not all(map(torch.equal, usually, map(finite_elements, outputs))):
                return False
            if change is not Change.ZEROS_KEPT and not all(map(equal_values, outputs, forward(given, 1))):
                return False
    except ProblemError:
        return False
    return True
