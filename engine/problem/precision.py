"""Runs a model in another floating-point type than its author chose. Imports torch.

Converts models, and keeps explicit casts inside a forward from narrowing again. Knows nothing of references.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine.problem.loading import plain_tensors

_NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})


def cast_model(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of ``model`` whose floating-point parameters, buffers and tensor attributes are of ``dtype``."""
    converted = copy.deepcopy(model).to(dtype)
    for module in converted.modules():
        for name, tensor in plain_tensors(module):
            vars(module)[name] = cast(tensor, dtype)
    return converted


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating-point tensor in ``dtype``; any other tensor as it is."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class _NoNarrowing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators with a ``dtype`` of float32 or narrower return float64 instead."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        given = dict(kwargs or {})
        if given.get("dtype") in _NARROW:
            given["dtype"] = torch.float64
        return func(*args, **given)


@contextmanager
def float64_arithmetic() -> Iterator[None]:
    """Within: tensors are float64 unless stated otherwise, and casts to a narrower floating-point type give float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _NoNarrowing():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)
