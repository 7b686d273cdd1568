"""Batch normalisations on fake tensors. Imports torch.

Torch learns the shapes of their results by taking each apart into some fifty operators: 40 ms on two cores, and a DenseNet has
two hundred of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.problem.torch_modes.operator_mode import OperatorMode, named_arguments

_aten = torch.ops.aten
_WITH_RESERVE = (_aten.cudnn_batch_norm.default,)
_NORMS = (_aten.native_batch_norm.default, *_WITH_RESERVE)


class BatchNormShapes(OperatorMode):  # type: ignore[no-untyped-call]
    """Results of batch normalisations as empty tensors of the right shapes; to be entered right after ``FakeTensorMode``.

    Where parameters do not fit, torch says so.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        if func not in _NORMS:
            return func(*args, **given)
        named = named_arguments(func, args, given)
        x, held = named["input"], [named[name] for name in ("weight", "bias", "running_mean", "running_var")]
        if x.dim() < 2 or not all(one is None or one.shape == x.shape[1:2] for one in held):
            return func(*args, **given)
        count = x.shape[1] if named["training"] else 0
        kind = held[0].dtype if held[0] is not None else x.dtype
        statistics: list[Tensor] = [x.new_empty(count, dtype=kind) for _ in range(2)]
        reserve = [x.new_empty(0, dtype=torch.uint8)] if func in _WITH_RESERVE else []
        return (torch.empty_like(x), *statistics, *reserve)
