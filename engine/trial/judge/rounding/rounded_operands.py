"""The reference with what it multiplies moved as rounding to half precision moves it. Imports torch.

A kernel of half precision sums in fp32, and rounds what it hands to the next product: the probabilities and the output of an
attention, a normalised row. Where large numbers cancel, or one input is far larger than the others, single elements of the
output then err by more than a few roundings of the output itself.

It rounds neither means and variances nor a state that it multiplies and adds to step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from engine.problem.arguments.values import tensors
from engine.problem.torch_modes.operator_mode import OperatorMode, named_arguments

_ELEMENTWISE = "mul"
_OF_MATRICES = frozenset(
    "mm bmm mv dot vdot addmm baddbmm addbmm addmv linear convolution _convolution convolution_overrideable "
    "mkldnn_convolution convolution_backward _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward".split()
)
"""Further operators, without a trailing underscore, whose operands are rounded. What is only added, or is given to an
exponential, stays in fp32 in every careful kernel: a mean, a variance, scores before their softmax."""
_STATISTICS = frozenset("mean var var_mean std std_mean norm linalg_vector_norm".split())
_MOST_IN_A_ROW = 3
"""So many elementwise products in a row round their operands: of a normalised row, its weight and its modulation. Those of a
recurrence round none: a state of bf16 errs by one rounding per step."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a tensor was computed from."""

    products: int = 0
    """The elementwise products in a row, since the last product of matrices."""
    statistic: bool = False
    """Whether it is a mean, a variance or a sum that keeps its dimension, or computed from nothing else."""


class RoundedOperands(OperatorMode):  # type: ignore[no-untyped-call]
    """Moves each operand of a product by a random part of half a unit in the last place of a type of half precision.

    Numbers that this type holds stay: they are not rounded. So do factors of one element, such as the scale of scores.
    """

    def __init__(self, half: torch.dtype, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._half, self._seed = half, seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._origins: dict[StorageWeakRef, _Origin] = {}

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        of_matrices = name.rstrip("_") in _OF_MATRICES
        elementwise = name.rstrip("_") == _ELEMENTWISE and not any(_is_one_number(a) for a in args[:2])
        operands = [t for t in tensors([*args, *given.values()]) if _has_numbers(t)]
        in_a_row = 0 if of_matrices else max((self._origin(t).products for t in operands), default=0)
        statistic = not of_matrices and self._makes_statistic(func, args, given, operands)
        if of_matrices or (elementwise and in_a_row < _MOST_IN_A_ROW):
            in_place = name.endswith("_")
            kept = [elementwise and self._is_statistic(a) for a in args]
            args = [a if at < in_place or kept[at] else self._moved(a) for at, a in enumerate(args)]
        found = func(*args, **given)
        for tensor in filter(_has_numbers, tensors([found])):
            self._origins[_key(tensor)] = _Origin(in_a_row + elementwise, statistic)
        return found

    def _origin(self, tensor: torch.Tensor) -> _Origin:
        return self._origins.get(_key(tensor), _Origin())

    def _makes_statistic(self, func: Any, args: Sequence[Any], given: dict[str, Any], operands: Sequence[torch.Tensor]) -> bool:
        name = func.overloadpacket.__name__
        if name in _STATISTICS or (name == "sum" and bool(named_arguments(func, args, given).get("keepdim"))):
            return True
        several = [self._origin(t).statistic for t in operands if not _is_one_number(t)]
        return bool(several) and all(several)

    def _is_statistic(self, value: Any) -> bool:
        return _has_numbers(value) and self._origin(value).statistic

    def _moved(self, value: Any) -> Any:
        if not _has_numbers(value):
            return value
        if (generator := self._generators.get(value.device)) is None:
            generator = self._generators[value.device] = torch.Generator(value.device).manual_seed(self._seed)
        by = torch.rand(value.shape, generator=generator, device=value.device, dtype=value.dtype).mul_(2).sub_(1)
        moved = value * by.mul_(torch.finfo(self._half).eps / 2).add_(1)
        return torch.where(value.to(self._half) == value, value, moved)


def _is_one_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1


def _has_numbers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided


def _key(tensor: torch.Tensor) -> StorageWeakRef:
    """Of all views of one tensor; no later storage has the same while it is kept."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
