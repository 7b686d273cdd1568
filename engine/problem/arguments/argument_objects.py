"""Arguments of ``forward`` that are objects of the reference's own classes: taken apart, and made again. Imports torch.

Those are dataclasses and modules that the reference defines at its top level. Their tensors are operands like any other; what
else they hold is plain data. An object is made without a call of its constructor, which may compute or need other arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor, nn

MODULES = "espalier_reference_"
"""Beginning of the name of a module in which a reference is executed."""
_PARAMETERS, _BUFFERS, _INNER, _NOT_SAVED = "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"
_TABLES = (_PARAMETERS, _BUFFERS, _INNER)
_HELD = "held"
"""The part of a module's own attributes."""
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module."""

Parts = dict[str, object]
"""What an object holds, by name."""


def is_composite(value: object) -> bool:
    """Whether ``value`` is a dataclass's instance or a module, of whatever class."""
    return isinstance(value, nn.Module) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def is_object(value: object) -> bool:
    """Whether ``value`` is an object that can be taken apart: of a class of a reference, and without hooks."""
    kind = type(value)
    if not kind.__module__.startswith(MODULES) or "." in kind.__qualname__ or not is_composite(value):
        return False
    return not isinstance(value, nn.Module) or not any(vars(value)[name] for name in _OF_TORCH if name.endswith("_hooks"))


def parts(value: object) -> Parts:
    """What an object holds, in the order of its attributes; of a module, its tables of tensors and modules first."""
    if not isinstance(value, nn.Module):
        return dict(vars(value)) if hasattr(value, "__dict__") else _in_slots(value)
    held = {name: inner for name, inner in vars(value).items() if name not in _OF_TORCH}
    tables: Parts = {name: dict(vars(value)[name]) for name in _TABLES}
    return {**tables, _NOT_SAVED: sorted(vars(value)[_NOT_SAVED]), _HELD: held}


def _in_slots(value: object) -> Parts:
    names = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def named_parts(value: object) -> Parts:
    """``parts`` without the names of a module's tables."""
    found = parts(value)
    if not isinstance(value, nn.Module):
        return found
    tables = (found[name] for name in (*_TABLES, _HELD))
    return {name: inner for table in tables if isinstance(table, Mapping) for name, inner in table.items()}


def made(kind: type, held: Mapping[str, object]) -> object:
    """An object of this class that holds these parts. No code of the class runs."""
    fresh: object = object.__new__(kind)
    if not isinstance(fresh, nn.Module):
        for name, inner in held.items():
            object.__setattr__(fresh, name, inner)
        return fresh
    nn.Module.__init__(fresh)
    own = vars(fresh)
    for name in _TABLES:
        table = held[name]
        assert isinstance(table, Mapping), "parts() gives tables"
        own[name].update({key: _parameter(inner) if name == _PARAMETERS else inner for key, inner in table.items()})
    not_saved, attributes = held[_NOT_SAVED], held[_HELD]
    assert isinstance(not_saved, list), "parts() gives a list"
    assert isinstance(attributes, Mapping), "parts() gives a table"
    own[_NOT_SAVED].update(not_saved)
    own.update(attributes)
    return fresh


def _parameter(value: object) -> object:
    return nn.Parameter(value.detach(), requires_grad=False) if isinstance(value, Tensor) else value


def unsupported(value: object) -> str:
    """The class of the first object within ``value`` that cannot be taken apart; empty if there is none."""
    match value:
        case Tensor():
            return ""
        case Mapping():
            return next(filter(None, map(unsupported, value.values())), "")
        case list() | tuple():
            return next(filter(None, map(unsupported, value)), "")
        case _ if is_object(value):
            return unsupported(parts(value))
        case _:
            return type(value).__qualname__ if is_composite(value) else ""


def classes(value: object) -> dict[str, type]:
    """The classes of all objects within ``value``, by name."""
    match value:
        case Tensor():
            return {}
        case Mapping():
            return {name: kind for inner in value.values() for name, kind in classes(inner).items()}
        case list() | tuple():
            return {name: kind for inner in value for name, kind in classes(inner).items()}
        case _ if is_object(value):
            return {type(value).__name__: type(value)} | classes(parts(value))
        case _:
            return {}
