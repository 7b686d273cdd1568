"""Numbers that a forward compares tensors with: its result jumps where an element meets one. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from engine.problem.operator_mode import named_arguments

_COMPARING = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "threshold", "hardshrink"})
"""Operators, without a trailing underscore, that compare their first argument with the second."""


def compared_number(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> float | None:
    """The number that an operator compares a floating-point tensor with; ``None`` if it does not."""
    if func._overloadpacket.__name__.rstrip("_") not in _COMPARING:
        return None
    first, second, *_ = named_arguments(func, args, given).values()
    floating = isinstance(first, Tensor) and first.is_floating_point()
    return float(second) if floating and isinstance(second, int | float) and math.isfinite(second) else None
