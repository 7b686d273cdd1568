"""What a module's call returned, as a flat list of tensors in the order of the reference's outputs. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from engine.problem.arguments.values import OutputLayout
from engine.trial.runner.calls import OutputError


def dense(value: Any) -> Any:
    """An output whose memory holds its values in order, as the judge reads them.

    A strided view, and a conjugate or a negation that torch has put off, are copied on the kernel's own time.
    Raises OutputError for a nested tensor, which has no shape.
    """
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout != torch.strided:
        return value
    if value.is_nested:
        raise OutputError("returned a nested tensor, not a plain, dense one")
    if torch.Tensor.is_contiguous(value) and not (torch.Tensor.is_conj(value) or torch.Tensor.is_neg(value)):
        return value
    return torch.resolve_neg(torch.resolve_conj(torch.Tensor.contiguous(value)))


def flattened(value: Any, layout: OutputLayout = 0) -> list[Any]:
    """A module's result as a flat list, in the order of the reference's outputs, without ``None``.

    Where both have a dictionary in the same place, by the keys of the reference's ``layout``; else in order. Raises OutputError
    for a key too few or too many.
    """
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        items = [item for item in value if item is not None]
        parts = layout if isinstance(layout, list) and len(layout) == len(items) else [0] * len(items)
        return [leaf for item, part in zip(items, parts, strict=True) for leaf in flattened(item, part)]
    if isinstance(value, Mapping):
        if isinstance(layout, dict):
            return _by_key(value, layout)
        return [leaf for item in value.values() for leaf in flattened(item)]
    return [value]


def _by_key(value: Mapping[object, Any], layout: dict[object, OutputLayout]) -> list[Any]:
    found = []
    for key, part in layout.items():
        leaves = flattened(value.get(key), part)
        if not leaves:
            raise OutputError(f"returned no {key!r}")
        if isinstance(part, int) and len(leaves) != part:
            raise OutputError(f"returned {len(leaves)} outputs as {key!r} instead of {part}")
        found += leaves
    for key, item in value.items() if len(value) > len(layout) else ():
        if key not in layout and flattened(item):
            raise OutputError(f"returned {key!r}, which the reference does not return")
    return found
