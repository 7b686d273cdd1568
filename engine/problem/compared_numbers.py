"""Numbers at which the result of a forward jumps: it compares tensors with them, or rounds its inputs. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from engine.problem.operator_mode import MOVING, named_arguments
from engine.problem.values import tensors

_COMPARING = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "threshold", "hardshrink"})
"""Operators, without a trailing underscore, that compare their first argument with the second."""
_HALVES = (0.5, 1.5, 2.5)
"""Rounded to the even neighbour: down, up and down."""


class ComparedNumbers:
    """Those of the operators seen. Halves are among them where elements are rounded as they are given: after any arithmetic,
    rounding it decides which way a half goes."""

    def __init__(self) -> None:
        self.found: set[float] = set()
        self._computed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """The results of arithmetic."""

    def see(self, func: Any, args: Sequence[Any], given: Mapping[str, Any], out: object) -> None:
        """An operator has run."""
        name = func._overloadpacket.__name__.rstrip("_")
        if name in _COMPARING or name == "round":
            self.found.update(self._numbers(name, named_arguments(func, args, given)))
        if name not in MOVING or any(t in self._computed for t in tensors([*args, *given.values()])):
            self._computed.update(dict.fromkeys(tensors([out]), True))

    def _numbers(self, name: str, arguments: Mapping[str, Any]) -> Sequence[float]:
        first, second = arguments["self"], next(iter([*arguments.values()][1:]), None)
        if not (isinstance(first, Tensor) and first.is_floating_point()):
            return ()
        if name == "round":
            return () if second or first in self._computed else _HALVES
        return (float(second),) if isinstance(second, int | float) and math.isfinite(second) else ()
