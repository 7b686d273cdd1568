"""Numbers that a forward compares tensors with: its result jumps where an element meets one. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

_COMPARING = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "threshold", "hardshrink"})
"""Operators, without a trailing underscore, that compare their first argument with the second."""


def compared_number(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> float | None:
    """The number that an operator compares a floating-point tensor with; ``None`` if it does not."""
    arguments = func._schema.arguments
    if func._overloadpacket.__name__.rstrip("_") not in _COMPARING or not isinstance(args[0], Tensor):
        return None
    second = args[1] if len(args) > 1 else given.get(arguments[1].name, arguments[1].default_value)
    if not isinstance(second, int | float) or not args[0].is_floating_point() or not math.isfinite(second):
        return None
    return float(second)
