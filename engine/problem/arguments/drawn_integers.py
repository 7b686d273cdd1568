"""The ranges that integer inputs are drawn from, as ``torch.randint`` states them. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from engine.domain.model import Role, Signature
from engine.problem.arguments.values import equal_values, tensors
from engine.problem.torch_modes.operator_mode import MOVING, OperatorMode, named_arguments

Range = tuple[int, int]
"""The least and the greatest number, both among those that are drawn."""
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
"""Types that ``torch.randint`` draws on every device."""
_TYPES = frozenset(getattr(torch, name) for name in _INTEGERS)


class DrawnIntegers(OperatorMode):  # type: ignore[no-untyped-call]
    """Sees what ``randint`` and ``random_`` draw within, and what is only moved of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn: MutableMapping[Tensor, tuple[Range, int]] = WeakTensorKeyDictionary()
        """Tensor → its range, and its version: whoever writes to it afterwards may leave the range."""

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        out, name = func(*args, **given), func._overloadpacket.__name__
        if not isinstance(out, Tensor) or out.dtype not in _TYPES:
            return out
        if name in ("randint", "random_"):
            found = _stated(named_arguments(func, args, given))
        else:
            operands = list(tensors([*args, *given.values()]))
            found = self.range_of(operands[0]) if name in MOVING and len(operands) == 1 else None
        if found is not None:
            self._drawn[out] = found, out._version + (name == "random_")  # it is counted once this has returned
        return out

    def range_of(self, tensor: Tensor) -> Range | None:
        """The range of a tensor that was drawn, and has not been written to since."""
        if tensor not in self._drawn:
            return None
        found, version = self._drawn[tensor]
        return found if tensor._version == version else None


def _stated(arguments: dict[str, Any]) -> Range | None:
    low, high = arguments.get("low", arguments.get("from")), arguments.get("high", arguments.get("to"))
    return (low or 0, high - 1) if isinstance(high, int) and high - 1 > (low or 0) else None


def takes_integers(signature: Signature) -> bool:
    """Whether any input can have a range."""
    return any(one.role is Role.INPUT and one.dtype in _INTEGERS for one in signature.operands)


def drawn_ranges(draw: Callable[[int], Sequence[object]]) -> tuple[Range | None, ...]:
    """The range of each tensor among the inputs of a seed, ``None`` for what is not drawn so.

    Empty where other arguments may follow from what is drawn, as a mask does from lengths: integers and booleans that were not
    drawn themselves, and differ between seeds.
    """
    with DrawnIntegers() as drawn:
        inputs = draw(0)
    others = draw(1)
    found: list[Range | None] = []
    for one, other in zip(tensors(list(inputs)), tensors(list(others)), strict=True):
        known = drawn.range_of(one) if one.dtype in _TYPES else None
        if known is None and not (one.is_floating_point() or one.is_complex()) and not equal_values(one, other):
            return ()
        found.append(known)
    return tuple(found) if _numbers(list(inputs)) == _numbers(list(others)) else ()


def _numbers(values: object) -> list[object]:
    """The integers among arguments, in order."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return [number for value in values for number in _numbers(value)]
    return [values] if isinstance(values, int) else []
