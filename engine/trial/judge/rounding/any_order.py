"""``topk(sorted=False)`` leaves the order of the chosen elements open: a kernel's is as right as PyTorch's. Imports torch.

The reference is called in float64 again, with the elements in the kernel's order. What it computes from them follows: weights
that it gathers by their indices come in the same order. The order is read from an output that holds the indices, or, without
one, from the ranks in an output of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.problem.arguments.values import comparable
from engine.problem.torch_modes.operator_mode import OperatorMode, named_arguments
from engine.trial.judge.outputs.comparison import compared_exactly
from engine.trial.judge.rounding.ties import selects_a_tied_set, slack


@dataclass(frozen=True, slots=True)
class TopkChoice:
    """What one ``topk(sorted=False)`` returned along ``dim`` of ``scores``."""

    scores: torch.Tensor
    dim: int
    values: torch.Tensor
    indices: torch.Tensor


class TopkOrder(OperatorMode):  # type: ignore[no-untyped-call]
    """Records each ``topk(sorted=False)``, and returns what it chooses in the given orders.

    ``orders``: the indices that each returns instead of its own, in turn; ``None`` for its own.
    """

    def __init__(self, orders: Sequence[torch.Tensor | None] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.chosen: list[TopkChoice] = []
        self._orders = orders

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        found = func(*args, **given)
        if func._overloadpacket.__name__ != "topk":
            return found
        arguments = named_arguments(func, args, given)
        scores = arguments["self"].detach()
        if arguments["sorted"] or not scores.dim():
            return found
        place, dim = len(self.chosen), arguments["dim"] % scores.dim()
        self.chosen.append(TopkChoice(scores, dim, *found))
        order = self._orders[place] if place < len(self._orders) else None
        if order is None or order.shape != found[1].shape:
            return found
        return scores.gather(dim, order), order


def in_order_of(
    outputs: Sequence[torch.Tensor], exact: Callable[[], Sequence[torch.Tensor]], eager: Callable[[], object]
) -> Sequence[torch.Tensor] | None:
    """What ``exact``, the reference in float64, returns with each ``topk(sorted=False)`` in the order of ``outputs``.

    ``eager``: the reference in its own arithmetic, which says how far scores that tie may be apart. ``None`` where there is no
    such operator, or no output tells the order.
    """
    with TopkOrder() as own:
        exact()
    if not own.chosen:
        return None
    with TopkOrder() as rounded:
        eager()
    orders = [_order(one, outputs, slack(own.chosen, rounded.chosen, place)) for place, one in enumerate(own.chosen)]
    if all(order is None for order in orders):
        return None
    with TopkOrder(orders):
        return exact()


def _order(chosen: TopkChoice, outputs: Sequence[torch.Tensor], within: float) -> torch.Tensor | None:
    alike = [output for output in outputs if output.numel() == chosen.indices.numel() and output.numel()]
    whole = [output for output in alike if compared_exactly(output) and output.dtype != torch.bool]
    for output in whole:
        mine = output.to(chosen.indices.device, torch.int64).reshape(chosen.indices.shape)
        if (order := _by_indices(chosen, mine, within)) is not None:
            return order
    for output in alike:
        if output.dtype.is_floating_point and output.shape == chosen.values.shape:
            return _by_ranks(chosen, comparable(output).to(chosen.indices.device))
    return None


def _by_indices(chosen: TopkChoice, mine: torch.Tensor, within: float) -> torch.Tensor | None:
    """``mine`` where it holds the same indices along the dimension, or tied ones, and the reference's own elsewhere.

    ``None`` where it mostly does not: a remainder of the indices is the same in some rows.
    """
    same = selects_a_tied_set(mine, chosen.indices, chosen.scores, chosen.dim, within)
    return torch.where(same, mine, chosen.indices) if 2 * int(same.sum()) > same.numel() else None


def _by_ranks(chosen: TopkChoice, mine: torch.Tensor) -> torch.Tensor:
    dim = chosen.dim
    ordered = chosen.indices.gather(dim, chosen.values.argsort(dim))
    return torch.empty_like(chosen.indices).scatter_(dim, mine.argsort(dim), ordered)
