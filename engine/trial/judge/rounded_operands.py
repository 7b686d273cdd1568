"""The reference with what it multiplies moved as rounding to half precision moves it. Imports torch.

A kernel of half precision sums in fp32, and rounds what it hands to the next product: the probabilities and the output of an
attention, a normalised row. Where large numbers cancel, or one input is far larger than the others, single elements of the
output then err by more than a few roundings of the output itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.problem.operator_mode import OperatorMode

_PRODUCTS = frozenset(
    "mul mm bmm mv dot vdot addmm baddbmm addbmm addmv linear convolution _convolution convolution_overrideable "
    "mkldnn_convolution convolution_backward _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward".split()
)
"""Operators, without a trailing underscore, whose operands are rounded. What is only added, or is given to an
exponential, stays in fp32 in every careful kernel: a mean, a variance, scores before their softmax."""


class RoundedOperands(OperatorMode):  # type: ignore[no-untyped-call]
    """Moves each operand of a product by a random part of half a unit in the last place of a type of half precision.

    Numbers that this type holds stay: they are not rounded. So do factors of one element, such as the scale of scores.
    """

    def __init__(self, half: torch.dtype, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._half, self._seed = half, seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        if name.rstrip("_") in _PRODUCTS and not any(_is_one_number(a) for a in args[:2]):
            in_place = name.endswith("_")
            args = (*args[:in_place], *(self._moved(a) for a in args[in_place:]))
        return func(*args, **given)

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
            return value
        if (generator := self._generators.get(value.device)) is None:
            generator = self._generators[value.device] = torch.Generator(value.device).manual_seed(self._seed)
        by = torch.rand(value.shape, generator=generator, device=value.device, dtype=value.dtype).mul_(2).sub_(1)
        moved = value * by.mul_(torch.finfo(self._half).eps / 2).add_(1)
        return torch.where(value.to(self._half) == value, value, moved)


def _is_one_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() == 1
