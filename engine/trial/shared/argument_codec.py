"""Codec for Python arguments as plain data in messages. Imports torch.

Each value becomes a mark ``[kind, …]``. The marks of a call have placeholders for its tensors, which are lent. The marks of a
model's constructor arguments contain their tensors. Objects are of classes that the receiver has by name from the reference.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from engine.problem.arguments.argument_objects import is_object, made, parts

Mark = list[Any]
Classes = Mapping[str, type]
"""The reference's classes of objects among the arguments, by name."""
_WIDEST = 2**63
_DEEPEST = 64
"""Levels of lists and dictionaries within each other."""


def encode_call(inputs: Sequence[Any]) -> list[Mark]:
    """The template of a call's arguments, with a placeholder for each tensor.

    Raises TypeError for an argument other than a tensor, a number, a string, a torch dtype or device, None, and lists, tuples,
    dictionaries or objects of the reference's classes that hold these.
    """
    return [_marked(value, lambda _: ["tensor"]) for value in inputs]


def decode_call(template: Sequence[Mark], tensors: Sequence[torch.Tensor], classes: Classes | None = None) -> list[Any]:
    """The arguments of a template, with ``tensors`` for its placeholders, in order. Raises TypeError for an unknown class."""
    remaining = iter(tensors)
    return [_put(mark, remaining, classes or {}) for mark in template]


def encode_value(value: Any) -> Mark:
    """A value with its tensors. Raises TypeError as ``encode_call`` does, and for objects."""
    return _marked(value, _constant)


def decode_value(mark: Mark) -> Any:
    """The value that ``encode_value`` encoded."""
    return _put(mark, iter(()), {})


def _marked(value: Any, tensor: Callable[[torch.Tensor], Mark], depth: int = 0) -> Mark:
    if depth > _DEEPEST:
        raise TypeError(f"a value that is nested deeper than {_DEEPEST} levels")
    inner = partial(_marked, tensor=tensor, depth=depth + 1)
    match value:
        case torch.Tensor():
            return tensor(value)
        case list() | tuple():
            return ["list" if isinstance(value, list) else "tuple", [inner(item) for item in value]]
        case Mapping():
            return ["dict", [[inner(key), inner(item)] for key, item in value.items()]]
        case torch.dtype():
            return ["dtype", str(value).removeprefix("torch.")]
        case torch.device():
            return ["device", str(value)]
        case int() if not -_WIDEST <= value < _WIDEST:
            raise TypeError("an int of more than 64 bits")
        case None | bool() | int() | float() | str():
            return ["value", value]
        case _ if is_object(value) and tensor is not _constant:
            return ["object", type(value).__name__, inner(parts(value))]
    raise TypeError(f"a {type(value).__name__}")


def _constant(tensor: torch.Tensor) -> Mark:
    plain = tensor.detach().cpu().contiguous()
    body = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return ["constant", str(plain.dtype).removeprefix("torch."), list(plain.shape), base64.b64encode(body).decode()]


def _put(mark: Sequence[Any], remaining: Iterator[torch.Tensor], classes: Classes) -> Any:
    match mark:
        case ["tensor"]:
            return next(remaining)
        case ["list", items]:
            return [_put(item, remaining, classes) for item in items]
        case ["tuple", items]:
            return tuple(_put(item, remaining, classes) for item in items)
        case ["dict", items]:
            return {_put(key, remaining, classes): _put(item, remaining, classes) for key, item in items}
        case ["object", name, held] if name in classes:
            return made(classes[name], _put(held, remaining, classes))
        case ["dtype", name]:
            return getattr(torch, name)
        case ["device", name]:
            return torch.device(name)
        case ["constant", name, shape, body]:
            kind = getattr(torch, name)
            held = bytearray(base64.b64decode(body))
            return torch.frombuffer(held, dtype=kind).reshape(shape) if held else torch.empty(shape, dtype=kind)
        case ["value", value]:
            return value
    raise TypeError(f"no such mark: {mark!r}")
