"""Arguments that a GPU's kernels assert on, checked before. Imports torch.

On a CPU torch raises for a probability of 1.5 or an index out of range. On a GPU the kernel itself asserts, and its process can
use the device no more. Perturbed inputs, and what is computed from them, can be such arguments: there the reference fails, and
its process must not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from engine.problem.torch_modes.operator_mode import OperatorMode

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _all(mask: Tensor) -> bool:
    return bool(mask.all())


def _are_probabilities(*values: Tensor) -> bool:
    return all(_all((one >= 0) & (one <= 1)) for one in values)


def _are_below(index: Tensor, size: int, least: int = 0) -> bool:
    """Whether all of an index tensor's numbers are at least ``least`` and less than ``size``."""
    return _all((index >= least) & (index < size))


def _size(tensor: Tensor, dim: int) -> int:
    return tensor.size(dim) if tensor.dim() else 1


def _rows(weight: Tensor, indices: Tensor, *_: Any) -> bool:
    return _are_below(indices, weight.size(0))


def _along(tensor: Tensor, dim: int, index: Tensor, *_: Any) -> bool:
    return _are_below(index, _size(tensor, dim))


def _places(tensor: Tensor, index: Tensor, *_: Any) -> bool:
    return _are_below(index, tensor.numel(), -tensor.numel())


def _by_dimension(tensor: Tensor, indices: Sequence[Tensor | None], *_: Any) -> bool:
    if any(one is not None and one.dtype not in _INTEGERS for one in indices):
        return True  # a mask takes several dimensions, and its shape is checked on the host
    pairs = zip(tensor.shape, indices, strict=False)
    return all(one is None or _are_below(one, size, -size) for size, one in pairs)


def _classes(values: Tensor, target: Tensor, *_: Any) -> bool:
    return _are_below(target, values.size(-1))


def _targets(values: Tensor, target: Tensor, _: Any = None, __: int = 1, ignored: int = -100) -> bool:
    return _are_below(target[target != ignored], values.size(1 if values.dim() > 1 else 0))


_CHECKS: Mapping[str, Callable[..., bool]] = {
    "binary_cross_entropy": lambda values, target, *_: _are_probabilities(values, target),
    "_assert_async": lambda condition, *_: _all(condition != 0),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _rows),
    **dict.fromkeys(("gather", "index_select", "scatter", "scatter_add", "scatter_reduce"), _along),
    **dict.fromkeys(("index_add", "index_copy", "index_fill"), _along),
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "_index_put_impl"), _by_dimension),
    **dict.fromkeys(("take", "put"), _places),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _targets),
    "multi_margin_loss": _classes,
}
"""Whether the operator of a name, without a trailing underscore, accepts its arguments."""


class _Checked(OperatorMode):  # type: ignore[no-untyped-call]
    """Raises RuntimeError for arguments that a kernel would assert on."""

    def operator(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        check = _CHECKS.get(name.rstrip("_"))
        if check is not None and not check(*args):
            raise RuntimeError(f"{name} got a number outside of its range")
        return func(*args, **given)


def checked(operators: Collection[str], device: torch.device) -> AbstractContextManager[object]:
    """Raises RuntimeError, within, before one of these ``operators`` would end the process's use of the device."""
    asserts = device.type == "cuda" and any(name.rstrip("_") in _CHECKS for name in operators)
    return _Checked() if asserts else nullcontext()  # type: ignore[no-untyped-call]
