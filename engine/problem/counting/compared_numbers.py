"""Numbers at which the result of a forward jumps: it compares tensors with them, or rounds its inputs. Imports torch.

They stand in its code, or in tensors that its model keeps, as the edges of buckets in a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from engine.problem.arguments.values import tensors
from engine.problem.operands import Row
from engine.problem.torch_modes.operator_mode import MOVING, named_arguments

_WITH_TENSORS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
_COMPARING = _WITH_TENSORS | {"threshold", "hardshrink"}
"""Operators, without a trailing underscore, that compare their first argument with the second."""
_SEARCHING = frozenset({"bucketize", "searchsorted"})
"""Those that look for a tensor's elements among those of another."""
_HALVES = (0.5, 1.5, 2.5)
"""Rounded to the even neighbour: down, up and down."""
_FEW = 256
"""Elements of a tensor of edges or levels at most."""


class ComparedNumbers:
    """Those of the operators seen. Halves are among them where elements are rounded as they are given: after any arithmetic,
    rounding it decides which way a half goes."""

    def __init__(self) -> None:
        self.found: set[float] = set()
        self.named: tuple[str, ...] = ()
        """The model's tensors with which others are compared, once they have been named."""
        self._computed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """The results of arithmetic."""
        self._moved: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """The results of operators that only move elements, with the tensor that these come from."""
        self._compared: list[Tensor] = []
        """Small tensors that are compared with others, both as they are given."""

    def see(self, func: Any, args: Sequence[Any], given: Mapping[str, Any], out: object) -> None:
        """An operator has run."""
        name = func._overloadpacket.__name__.rstrip("_")
        if name in _COMPARING or name == "round":
            self.found.update(self._numbers(name, named_arguments(func, args, given)))
        operands = list(tensors([*args, *given.values()]))
        computes = name not in MOVING or any(t in self._computed for t in operands)
        if name in _WITH_TENSORS | _SEARCHING and len(operands) > 1 and not any(t in self._computed for t in operands):
            origins = [self._origin(t) for t in operands]
            self._compared += [t for t in origins if t.is_floating_point() and t.numel() <= _FEW]
        for made in tensors([out]):
            if computes:
                self._computed[made] = True
            elif len(operands) == 1 and made is not operands[0]:
                self._moved[made] = self._origin(operands[0])

    def _origin(self, tensor: Tensor) -> Tensor:
        found: Tensor = self._moved.get(tensor, tensor)  # type: ignore[no-untyped-call]
        return found

    def name(self, state: Sequence[Row]) -> None:
        """Name those of a model's tensors with which others were compared."""
        self.named = tuple(name for name, _, tensor in state if any(tensor is one for one in self._compared))
        self._compared.clear()

    def numbers(self, states: Iterator[Sequence[Row]]) -> set[float]:
        """The numbers seen, and those that the named tensors hold in all of these ``states``: of models from other seeds."""
        if not self.named:
            return self.found
        kept = [[tensor for name, _, tensor in rows if name in self.named] for rows in states]
        return self.found.union(*(_common(held) for held in zip(*kept, strict=True)))

    def _numbers(self, name: str, arguments: Mapping[str, Any]) -> Sequence[float]:
        first, second = arguments["self"], next(iter([*arguments.values()][1:]), None)
        if not (isinstance(first, Tensor) and first.is_floating_point()):
            return ()
        if name == "round":
            return () if second or first in self._computed else _HALVES
        return (float(second),) if isinstance(second, int | float) and math.isfinite(second) else ()


def _common(held: Sequence[Tensor]) -> list[float]:
    """The elements that are the same in all of these tensors: the problem's own.

    Only numbers of few digits (0.5, not 0.1): around others, rounding decides what a kernel finds that computes the place.
    """
    if any(map(nn.parameter.is_lazy, held)) or len({tensor.shape for tensor in held}) > 1:
        return []
    first, *others = (tensor.detach().double() for tensor in held)
    same = (first.bfloat16() == first) & first.isfinite()
    for other in others:
        same &= first == other
    found: list[float] = torch.unique(first[same]).tolist()
    return found
