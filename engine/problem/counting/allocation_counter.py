"""Bytes that a forward pass allocates beside its operands, most at a time: counted from its operators' results. Imports torch.

Works on fake tensors too, where nothing is allocated. The workspace inside an operator is not seen; that of operators which
make a tensor as large as their operands before they reduce it is known (``_INSIDE``).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.problem.arguments.values import is_dense, map_arguments, tensors
from engine.problem.precision import cast, float64_arithmetic
from engine.problem.torch_modes.operator_mode import OperatorMode

_INSIDE = {
    "mse_loss": 2, "smooth_l1_loss": 2, "huber_loss": 1, "binary_cross_entropy": 1, "binary_cross_entropy_with_logits": 2,
    "soft_margin_loss": 1, "dist": 1, "logsumexp": 1, "median": 1, "nanmedian": 1, "kthvalue": 3,
}  # fmt: skip
"""Operator → what it takes while it runs, in its largest operand, where its result is smaller. As measured on a CPU."""
WIDENING = 4
"""float64 takes at most this many times the memory of a half-precision type."""


@dataclass(frozen=True, slots=True)
class ForwardMemory:
    """Bytes that one forward pass takes beside inputs and weights, most at a time. Outputs are included."""

    own: int
    """In the types of the reference."""
    exact: int
    """In float64."""


class AllocationCounter(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts memory that operators within return, and that is still in use. ``peak``: the most at a time, in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._in_use: dict[int, int] = {}
        self._total = 0

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        operands = {place_of(t) for t in tensors([*args, *given.values()])}
        found = func(*args, **given)
        for tensor in tensors([found]):
            place = place_of(tensor)
            if place and place not in operands and place not in self._in_use:
                self._take(tensor.untyped_storage(), place)
        self.peak = max(self.peak, self._total + _taken_inside(func, [*args, *given.values()], found))
        return found

    def _take(self, storage: torch.UntypedStorage, place: int) -> None:
        size = storage.nbytes()
        self._in_use[place] = size
        self._total += size
        weakref.finalize(storage, self._free, place)

    def _free(self, place: int) -> None:
        self._total -= self._in_use.pop(place, 0)


def _taken_inside(func: Any, operands: Sequence[Any], found: Any) -> int:
    """What an operator took beside its results, in bytes."""
    times = _INSIDE.get(func.overloadpacket.__name__, 0)
    if not times or func._overloadname != "default":  # along one dimension a median takes nothing
        return 0
    largest = max((t.numel() * t.element_size() for t in tensors(operands)), default=0)
    results = sum(t.numel() * t.element_size() for t in tensors([found]))
    return max(0, times * largest - results) if results < largest else 0


def place_of(tensor: torch.Tensor) -> int:
    """Identifies a tensor's memory; 0 for layouts without a single one."""
    return int(tensor.untyped_storage()._cdata) if is_dense(tensor) else 0


def exact_bytes(model: nn.Module, inputs: tuple[object, ...], own: int) -> int:
    """What the forward takes in float64, on fake tensors. Other operators may run than in the reference's own types, which take
    ``own`` bytes. Converts the model in place."""
    allocated = AllocationCounter()
    try:
        for module in model.modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
            for table in tables:
                for name, value in list(table.items()):
                    if isinstance(value, torch.Tensor):
                        wide = cast(value.detach(), torch.float64)
                        table[name] = nn.Parameter(wide, wide.requires_grad) if isinstance(value, nn.Parameter) else wide
        given = map_arguments(lambda t: cast(t, torch.float64), inputs)
        with float64_arithmetic(), allocated:
            model(*given)
    except Exception:  # what an operator without float64 raises; it runs in float32 then
        return WIDENING * own
    return allocated.peak
