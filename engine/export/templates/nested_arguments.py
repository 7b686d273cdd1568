"""Template: the tensors within an exported module's arguments, which may be objects of the reference's own classes.

``engine.export.template`` copies this file into the module, before the others. Tensors come in the order of the judge's
operands.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch


def _parts(value: Any) -> dict[str, Any]:
    """What a dataclass's object or a module holds, a module's tables of tensors and modules first; empty for anything else."""
    if isinstance(value, torch.nn.Module):
        own = {name: inner for name, inner in vars(value).items() if name not in vars(torch.nn.Module())}
        return {**{name: vars(value)[name] for name in ("_parameters", "_buffers", "_modules")}, **own}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    names = vars(value) if hasattr(value, "__dict__") else [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = (
        list(value)
        if isinstance(value, (list, tuple))
        else list((value if isinstance(value, Mapping) else _parts(value)).values())
    )
    return [tensor for one in inner for tensor in _tensors(one)]


def _map(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Nested arguments with each tensor replaced. Objects are copied, and their constructors not called."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(function, inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        new = [_map(function, inner) for inner in value]
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    if not (parts := _parts(value)):
        return value
    made = copy.copy(value)
    for name, inner in parts.items():
        object.__setattr__(made, name, _map(function, inner))
    return made
