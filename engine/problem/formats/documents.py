"""Reads other people's JSON, JSON Lines, YAML and Python files: bounded sizes and depths, paths confined to a folder.

Every fault is a ProblemError of one line with the file and, where there is one, the field.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import yaml

from engine.domain import python_syntax
from engine.domain.errors import ProblemError
from engine.journal.regular_file import open_regular
from engine.problem.files import strict_toml
from engine.problem.files.strict_toml import TomlError

T = TypeVar("T")
LARGEST = 8 << 20
"""Bytes of the largest file that is read as text."""
MOST_DIMENSIONS = 64
"""Of a tensor: torch has no more."""
_DEEPEST = 32
_MOST_LINES = 20_000
_MOST_NODES = 200_000


def text_of(path: Path) -> str:
    """A UTF-8 file's text with Unix line ends. Raises ProblemError."""
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise ProblemError(f"{path}: no such file") from None
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > LARGEST:
        raise ProblemError(f"{path}: larger than {LARGEST >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise ProblemError(f"{path}: a binary file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_file(path: Path, shape: type[T]) -> T:
    """A JSON file as a value of ``shape``. Raises ProblemError."""
    return as_shape(_json(text_of(path), str(path)), shape, str(path))


def json_lines(path: Path, shape: type[T]) -> Iterator[tuple[int, T]]:
    """(line number, value) of every line of a JSON Lines file; blank lines are skipped. Raises ProblemError."""
    lines = text_of(path).split("\n")
    if len(lines) > _MOST_LINES:
        raise ProblemError(f"{path}: more than {_MOST_LINES} lines")
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield number, as_shape(_json(line, where), shape, where)


def _json(text: str, where: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        raise ProblemError(f"{where}: not valid JSON ({reason} at line {error.lineno}, column {error.colno})") from None
    except _RepeatedKeyError as error:
        raise ProblemError(f"{where}: key {error} occurs twice") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:120]
        raise ProblemError(f"{where}: not valid JSON ({reason})") from None
    check_depth(value, where)
    return value


class _RepeatedKeyError(Exception):
    """A key of an object occurs twice."""


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(repr(key)[:80])
        found[key] = value
    return found


def as_shape(value: object, shape: type[T], where: str) -> T:
    """``value`` converted to ``shape``. Raises ProblemError with the field."""
    try:
        return strict_toml.convert(value, shape)
    except TomlError as error:
        raise ProblemError(f"{where}: {error}") from None


def check_depth(value: object, where: str) -> None:
    """Raises ProblemError for a value that is nested deeper than any of these formats is."""
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        inner: list[object] = []
        for one in level:
            inner += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        if not inner:
            return
        level = inner
    raise ProblemError(f"{where}: nested deeper than {_DEEPEST} levels")


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Safe YAML without anchors and tags: an alias is how a small file becomes a large one.

    Numbers are those of YAML 1.2: ``5e-2`` is one, and a number in base 60 (``1:30``) is text. A long one would take hours.
    """

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read: write the value out", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, "tags are not read: write a plain value", event.start_mark)
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise yaml.composer.ComposerError(None, None, f"more than {_MOST_NODES} values", event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def _number(self, node: yaml.ScalarNode) -> object:
        if ":" in node.value:
            return self.construct_scalar(node)
        whole = node.tag == _INTEGER
        return self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)


_INTEGER, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_PlainLoader.add_constructor(_INTEGER, _PlainLoader._number)
_PlainLoader.add_constructor(_FLOAT, _PlainLoader._number)
_PlainLoader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$", re.ASCII), [*"+-0123456789"])


def yaml_file(path: Path, shape: type[T]) -> T:
    """A YAML file of plain values as a value of ``shape``: no tags, no aliases. Raises ProblemError."""
    text = text_of(path)
    try:
        value: object = yaml.load(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ProblemError(f"{path}{line}: not valid YAML ({' '.join(reason.split())[:160]})") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:160]
        raise ProblemError(f"{path}: not valid YAML ({reason})") from None
    check_depth(value, str(path))
    return as_shape(value, shape, str(path))


def inside(root: Path, relative: str, where: str) -> Path:
    """The existing file ``relative`` to ``root``, links followed. Raises ProblemError if it is missing or lies outside."""
    base = root.resolve()
    if Path(relative).is_absolute() or "\0" in relative:
        raise ProblemError(f"{where}: path {relative[:120]!r} must be relative to {root}")
    path = (base / relative).resolve()
    if not path.is_relative_to(base):
        raise ProblemError(f"{where}: path {relative[:120]!r} leaves {root}")
    if not path.is_file():
        raise ProblemError(f"{where}: no file {relative[:160]!r} in {root}")
    return path


def literals(path: Path, name: str) -> object:
    """The literal that a Python file assigns to ``name``; names in it stand for the file's other literals.

    The file is parsed, never run. Raises ProblemError.
    """
    try:
        tree = python_syntax.parse(text_of(path), str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{path}: not valid Python ({getattr(error, 'msg', None) or error})") from None
    known: dict[str, object] = {}
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(target)], value=value)
                | ast.AnnAssign(target=ast.Name(target), value=ast.expr() as value)
            ):
                try:
                    known[target] = _literal(value, known)
                except ValueError as error:
                    if target == name:
                        raise ProblemError(f"{path}, line {statement.lineno}: {name}: {error}") from None
    if name not in known:
        raise ProblemError(f"{path}: no list {name} of plain values at its top level")
    return known[name]


def _literal(node: ast.expr, known: Mapping[str, object]) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item, known) for item in items]
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {str(_literal(k, known)): _literal(v, known) for k, v in zip(keys, values, strict=True) if k is not None}
    raise ValueError(f"{ast.unparse(node)[:80]} is no plain value")


def top_level(tree: ast.Module) -> Mapping[str, ast.stmt]:
    """The functions and single assignments of a module, by name."""
    found: dict[str, ast.stmt] = {}
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(name)]):
                found[name] = statement
            case _:
                pass
    return found


def shown(names: Sequence[str], most: int = 8) -> str:
    """Names for a message: the first few."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
