"""Nested Python values with tensors in them: arguments and results of a reference. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from engine.problem.arguments.argument_objects import is_object, made, parts

_BLOCK = 1 << 22
"""Elements that are compared at a time."""

OutputLayout = int | list["OutputLayout"] | dict[object, "OutputLayout"]
"""Where a forward's result holds its outputs: how many there are, or, where dictionaries hold some, a layout for each item."""


def map_tensors(function: Callable[[Tensor], Tensor], value: object) -> object:
    """``value`` with every tensor in its lists, tuples, dictionaries and objects replaced; all of these are new."""
    match value:
        case Tensor():
            return function(value)
        case tuple():
            return tuple(map_tensors(function, v) for v in value)
        case list():
            return [map_tensors(function, v) for v in value]
        case dict():
            return {key: map_tensors(function, v) for key, v in value.items()}
        case _ if is_object(value):
            return made(type(value), {key: map_tensors(function, v) for key, v in parts(value).items()})
        case _:
            return value


def map_arguments(function: Callable[[Tensor], Tensor], arguments: tuple[object, ...]) -> tuple[object, ...]:
    """``map_tensors`` over each argument."""
    return tuple(map_tensors(function, argument) for argument in arguments)


def tensors(value: object) -> Iterator[Tensor]:
    """Every tensor in ``value``, in order: lists and tuples by position, dictionaries and objects by insertion."""
    match value:
        case Tensor():
            yield value
        case Mapping():
            for inner in value.values():
                yield from tensors(inner)
        case list() | tuple():
            for inner in value:
                yield from tensors(inner)
        case _ if is_object(value):
            yield from tensors(parts(value))
        case _:
            return


def output_tensors(value: object, device: torch.device) -> Iterator[Tensor]:
    """Every tensor and number that a forward returned, numbers as 0-dim tensors; ``None`` is left out.

    Raises TypeError for anything else.
    """
    match value:
        case Tensor():
            yield value
        case bool() | int() | float():
            yield torch.tensor(value, device=device)
        case None:
            return
        case Mapping():
            for inner in value.values():
                yield from output_tensors(inner, device)
        case list() | tuple():
            for inner in value:
                yield from output_tensors(inner, device)
        case _:
            raise TypeError(f"forward returns a {type(value).__name__}, not tensors")


def output_layout(value: object) -> OutputLayout:
    """The layout of a forward's result, without ``None`` and what holds no output."""
    match value:
        case None:
            return 0
        case Mapping():
            return {key: layout for key, inner in value.items() if (layout := output_layout(inner))} or 0
        case list() | tuple():
            layouts = [output_layout(inner) for inner in value if inner is not None]
            counts = [layout for layout in layouts if isinstance(layout, int)]
            return sum(counts) if len(counts) == len(layouts) else layouts
        case _:
            return 1


def equal_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if not (one.is_floating_point() or one.is_complex()) or torch.equal(one, other):
        return torch.equal(one, other)
    a, b = one.reshape(-1), other.reshape(-1)
    blocks = ((a[start : start + _BLOCK], b[start : start + _BLOCK]) for start in range(0, a.numel(), _BLOCK))
    return all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in blocks)


def comparable(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if it is one of eight-bit floats: torch lacks most operators for them."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def finite_elements(tensor: Tensor) -> Tensor:
    """Where the tensor is neither infinite nor NaN."""
    return torch.isfinite(comparable(tensor))


def is_dense(tensor: Tensor) -> bool:
    """Whether a pointer to contiguous elements can represent the tensor."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def repeats_elements(tensor: Tensor) -> bool:
    """Whether elements share memory, as after ``expand``: torch writes nothing into such a tensor."""
    return is_dense(tensor) and any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def kind_without_strides(tensor: Tensor) -> str:
    """What a tensor that is not dense is; empty if it is dense."""
    if is_dense(tensor):
        return ""
    return "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "sparse"


def storage(tensor: Tensor) -> int:
    """A number that tensors which share memory have in common."""
    return tensor.untyped_storage().data_ptr() if is_dense(tensor) and tensor.numel() else id(tensor)


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor detached and row-major, conjugated and negated in memory; other layouts than dense ones stay."""
    tensor = tensor.detach()
    return tensor.contiguous().resolve_conj().resolve_neg() if is_dense(tensor) else tensor
