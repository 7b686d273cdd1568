"""Decodes hand-written TOML into strict ``msgspec`` structs. Errors name the key and the expected value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
import tomli

from engine.domain.errors import EspalierError

T = TypeVar("T")
_PATH = re.compile(r" - at (?:`key` in )?`\$[^`]*`$")


class TomlError(EspalierError):
    """One line: the place in the file, and the fault."""


def decode(text: str, shape: type[T]) -> T:
    """The text as a value of ``shape``. Raises TomlError."""
    try:
        table = tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError, ValueError) as error:
        raise TomlError(f"not valid TOML ({' '.join(str(error).split())}): correct it") from None
    return convert(table, shape)


def convert(value: object, shape: type[T], where: str = "") -> T:
    """A decoded value converted to ``shape``; ``where`` is its place in the file. Raises TomlError."""
    try:
        return msgspec.convert(value, shape, builtin_types=(date,))
    except msgspec.ValidationError as error:
        path, reason = _fault(value, shape, str(error))
        place = ", ".join(filter(None, [where, ".".join(path)]))
        raise TomlError(f"{place}: {reason}" if place else reason) from None


def _fault(value: object, shape: Any, message: str) -> tuple[list[str], str]:
    """The path to the first fault within ``value``, and its description."""
    while get_origin(shape) is Annotated or type(None) in get_args(shape):
        shape = get_args(shape)[0]
    for key, inner, inner_shape in _children(value, shape):
        try:
            msgspec.convert(inner, inner_shape, builtin_types=(date,))
        except msgspec.ValidationError as error:
            path, reason = _fault(inner, inner_shape, str(error))
            return [key, *path], reason
    message = _PATH.sub("", message)
    if match := re.fullmatch(r"Object missing required field `(\w+)`", message):
        return [match[1]], "required"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL):
        return [], f"unknown key {match[1][:80]!r}: use {', '.join(sorted(shape.__struct_fields__))}"
    words = message.replace("`object`", "a table").replace("`array`", "a list").replace(" | null", "").replace("`", "")
    return [], words[:1].lower() + words[1:]


def _children(value: object, shape: Any) -> Iterator[tuple[str, object, Any]]:
    """(key, value, expected type) of everything directly within a table or a list."""
    if isinstance(value, dict) and hasattr(shape, "__struct_fields__"):
        yield from (
            (f.encode_name, value[f.encode_name], f.type) for f in msgspec.structs.fields(shape) if f.encode_name in value
        )
    elif isinstance(value, dict) and get_origin(shape) is dict:
        yield from ((str(key), inner, get_args(shape)[1]) for key, inner in value.items())
    elif isinstance(value, list) and get_origin(shape) in (list, tuple):
        yield from ((str(number), inner, get_args(shape)[0]) for number, inner in enumerate(value, 1))
