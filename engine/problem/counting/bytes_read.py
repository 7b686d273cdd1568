"""Bytes of its operands that a forward pass reads or writes in place, counted from its operators' arguments. Imports torch.

A lookup in a table, or a slice of a cache, needs a part of its operand only: a floor that counts all of it would call every
kernel impossible. Works on fake tensors too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from engine.problem.arguments.values import tensors
from engine.problem.counting.allocation_counter import place_of
from engine.problem.torch_modes.operator_mode import OperatorMode

_PICKS = frozenset({"embedding", "index", "index_select", "gather", "take"})
"""Operators that read as much of their first tensor as they return, or, of bags, as their indices select."""
_PLACES = {"index_put_": 2, "_index_put_impl_": 2, "index_copy_": 3, "index_add_": 3, "scatter_": 2, "scatter_add_": 2}
"""Operators that write or read as many elements of their first tensor as this argument has."""
_BAG = "_embedding_bag"
_QUERIES, _SIZES = "prim", ("sym_", "is_")
"""What is asked of a tensor without its memory."""
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
"""They read one element of their first tensor for each target."""


class ReadCounter(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts what the operators within access of each tensor's memory; views access nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._accessed: Counter[int] = Counter()

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        out = func(*args, **given)
        if func.namespace == _QUERIES or func._overloadpacket.__name__.startswith(_SIZES):
            return out
        returned = {place_of(t) for t in tensors([out])}
        for position, argument in enumerate((*args, *given.values())):
            for tensor in tensors([argument]):
                if func._schema.is_mutable or place_of(tensor) not in returned:
                    count = _picked(func, args, tensor, out) if position == 0 and tensor is argument else tensor.numel()
                    self._accessed[place_of(tensor)] += min(count, tensor.numel()) * tensor.element_size()
        return out

    def count(self, tensor: Tensor) -> None:
        """Count a tensor that is accessed besides."""
        self._accessed[place_of(tensor)] += tensor.numel() * tensor.element_size()

    def bytes_of(self, operand: Tensor) -> int:
        """Bytes of an operand that were accessed, each at most once; all of one whose memory cannot be told."""
        whole = operand.numel() * operand.element_size()
        return min(whole, self._accessed[place_of(operand)]) if place_of(operand) else whole


def _picked(func: Any, args: Sequence[Any], first: Tensor, out: object) -> int:
    """Elements of an operator's first argument that it accesses, at most."""
    name = func._overloadpacket.__name__
    if name.startswith(_BAG):
        return int(args[1].numel()) * int(first.shape[-1])
    if name in _PICKS:
        return sum(t.numel() for t in tensors([out]))
    if name in _LOSSES:
        return int(args[1].numel())
    if name in _PLACES and len(args) > _PLACES[name] and isinstance(args[_PLACES[name]], Tensor):
        return int(args[_PLACES[name]].numel())
    return int(first.numel())
