"""Which of a kernelbot task's inputs are memory for outputs: a submission may write to them.

They are those that the reference overwrites, and those that ``generate_input`` leaves uninitialised: nothing can be read there.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty"})
_SAME = frozenset({"contiguous", "to", "cuda"})


@dataclass(frozen=True, slots=True)
class OutputMemory:
    """Inputs of a task that are memory for outputs, by the names that its reference unpacks them into."""

    names: frozenset[str]
    unused: str
    """The only one, if the reference answers with another tensor: submissions answer in this one's type. Else empty."""


def find(reference: ast.FunctionDef, arguments: Sequence[str], generate: ast.FunctionDef) -> OutputMemory:
    """``arguments``: the names that ``reference`` unpacks its data into."""
    overwritten = _overwritten(reference) & set(arguments)
    names = overwritten | {arguments[place] for place in _uninitialised(generate, len(arguments))}
    one_answer = not any(isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) for node in ast.walk(reference))
    unused = next(iter(names)) if len(names) == 1 and not overwritten and one_answer else ""
    return OutputMemory(names, unused)


def _overwritten(function: ast.FunctionDef) -> frozenset[str]:
    names = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=inner))]) if inner is ...:
                names.add(name)
    return frozenset(names)


def _uninitialised(generate: ast.FunctionDef, count: int) -> frozenset[int]:
    """Places of the returned tuple of ``count`` whose memory is empty wherever the function returns."""
    returned = [node.value for node in ast.walk(generate) if isinstance(node, ast.Return)]
    tuples = [value.elts for value in returned if isinstance(value, ast.Tuple) and len(value.elts) == count]
    if not tuples or len(tuples) < len(returned):
        return frozenset()
    names = _empty_names(generate, tuples)
    return frozenset(place for place in range(count) if all(_is_empty(elements[place], names) for elements in tuples))


def _empty_names(generate: ast.FunctionDef, tuples: Sequence[Sequence[ast.expr]]) -> frozenset[str]:
    """Names that are assigned empty memory once and otherwise only returned."""
    uses = Counter(node.id for node in ast.walk(generate) if isinstance(node, ast.Name))
    uses.subtract(element.id for elements in tuples for element in elements if isinstance(element, ast.Name))
    names = set()
    for node in ast.walk(generate):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if uses[name] == 1 and _is_empty(value, frozenset()):
                names.add(name)
    return frozenset(names)


def _is_empty(value: ast.expr, names: frozenset[str]) -> bool:
    match value:
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)):
            return attr in _EMPTY or (attr in _SAME and _is_empty(inner, names))
    return False
