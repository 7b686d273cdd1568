"""A mode that sees each basic operator of torch. Imports torch.

Modes that count, widen or replace operators derive from it. Operators of higher order, as ``torch.cond`` and
``flex_attention``, call functions, and torch refuses them under a mode that does not know them. Here they run as their eager
definition, whose operators the mode sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode


def _chosen(predicate: Any, then: Callable[..., Any], otherwise: Callable[..., Any], operands: Sequence[Any]) -> Any:
    return (then if predicate else otherwise)(*operands)


def _repeated(goes_on: Callable[..., Any], body: Callable[..., Any], carried: Sequence[Any], further: Sequence[Any]) -> Any:
    while goes_on(*carried, *further):
        carried = body(*carried, *further)
    return tuple(carried)


_OWN: dict[Any, Callable[..., Any]] = {torch.ops.higher_order.cond: _chosen, torch.ops.higher_order.while_loop: _repeated}
"""Operators whose eager definition refuses every mode."""
MOVING = frozenset(
    "view reshape _unsafe_view squeeze unsqueeze slice select clone detach alias _to_copy transpose permute t expand cat "
    "stack device".split()
)
"""Operators that only move or convert elements."""
_EAGER = torch._C.DispatchKey.CompositeExplicitAutograd


def named_arguments(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an operator, by their names in its schema; those that were left out with their defaults."""
    declared = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in declared}
    return {**defaults, **{argument.name: value for argument, value in zip(declared, args, strict=False)}, **given}


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls ``operator`` for each basic operator within."""

    supports_higher_order_operators = True
    _composing = False
    """Whether an operator of higher order is running."""

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        """The result of ``func(*args, **given)``, or what replaces it."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            eager = _OWN.get(func) or func.py_kernels.get(_EAGER)
            if eager is None:
                return NotImplemented
            return self._composed(eager, args, given)
        if self._composing:  # below autograd, which would have taken composite operators apart
            parts = self._composed(func.decompose, args, given)
            if parts is not NotImplemented:
                return parts
        return self.operator(func, args, given)

    def _composed(self, of: Callable[..., Any], args: Sequence[Any], given: dict[str, Any]) -> Any:
        before, self._composing = self._composing, True
        try:
            with self:
                return of(*args, **given)
        finally:
            self._composing = before
