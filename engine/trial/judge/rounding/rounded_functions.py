"""The reference with its functions of exponentials rounded as their usual formulas round them. Imports torch.

Kernels compute ``tanh(x)`` as ``1 - 2 / (exp(2 * x) + 1)``, ``expm1(x)`` as ``exp(x) - 1`` and a softplus as
``log(1 + exp(x))``. These formulas round numbers of about one. Where all results are far smaller, as on inputs times 0.001,
that is a large part of them, and no mistake of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from engine.problem.torch_modes.operator_mode import OperatorMode

_FUNCTIONS = frozenset("tanh expm1 log1p sinh asinh atanh erf".split())
"""Operators, without a trailing underscore, whose usual formula adds to one or subtracts from it."""
_SIGMOID = "sigmoid"
"""Half of a tanh and a half: such a function too, unless the reference has ``_MAGNIFYING`` operators. A logarithm of a sigmoid
needs its small results, which ``1 / (1 + exp(-x))`` does not lose, and a kernel that adds an epsilon to them is wrong."""
_MAGNIFYING = frozenset("log log2 log10 div reciprocal rsqrt sqrt pow".split())
_CONTAIN_FUNCTIONS = frozenset(
    "softplus elu celu selu mish log_sigmoid_forward binary_cross_entropy_with_logits soft_margin_loss logaddexp "
    "logaddexp2 silu glu".split()
)
"""Operators, without a trailing underscore, that torch decomposes into these."""
_UNIT_OF = {torch.float64: torch.float64}
"""The type in whose units results are rounded; float32 for all others: kernels of half precision compute in it."""


def has_functions(operators: Iterable[str]) -> bool:
    """Whether a reference with these operators has such a function."""
    return not {name.rstrip("_") for name in operators}.isdisjoint({_SIGMOID} | _FUNCTIONS | _CONTAIN_FUNCTIONS)


class RoundedFunctions(OperatorMode):  # type: ignore[no-untyped-call]
    """Rounds each result of such a function to two units in the last place of one: smaller ones to zero."""

    def __init__(self, output: torch.dtype, operators: Iterable[str] = ()) -> None:
        """``output``: the type of the reference's outputs. ``operators``: all that it has."""
        super().__init__()  # type: ignore[no-untyped-call]
        magnifies = not _MAGNIFYING.isdisjoint(name.rstrip("_") for name in operators)
        self._functions = _FUNCTIONS if magnifies else _FUNCTIONS | {_SIGMOID}
        self._step = 2 * torch.finfo(_UNIT_OF.get(output, torch.float32)).eps

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if name in _CONTAIN_FUNCTIONS:
            from torch._decomp import decomposition_table  # takes a moment to import; few verdicts get here

            if func in decomposition_table:
                return self._composed(decomposition_table[func], args, given)
        found = func(*args, **given)
        if name in self._functions and found.is_floating_point() and found.layout is torch.strided:
            found.div_(self._step).round_().mul_(self._step)
        return found
