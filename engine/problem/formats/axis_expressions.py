"""Evaluates the arithmetic of ``expr`` axes over other axes: + - * / // % ** and parentheses. Runs no code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from engine.domain import python_syntax
from engine.domain.errors import EspalierError

_LONGEST = 400
_LARGEST = 2**48
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class ExpressionError(EspalierError):
    """One line: what is wrong with an expression."""


def literal(axis: str) -> int | None:
    """The size that a shape states by itself, as in ``["M", "1"]``; ``None`` for an axis's name."""
    return int(axis) if axis.isascii() and axis.isdecimal() else None


def size(axis: str, sizes: Mapping[str, int]) -> int:
    """The size of one entry of a shape: an axis's, or the number that it is."""
    number = literal(axis)
    return sizes[axis] if number is None else number


def names_in(text: str) -> frozenset[str]:
    """The axes that an expression reads. Raises ExpressionError."""
    return frozenset(node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name))


def evaluate(text: str, axes: Mapping[str, int]) -> int:
    """The expression's value, a whole number that is not negative. Raises ExpressionError."""
    value = _value(_parsed(text), axes)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise ExpressionError(f"{text!r} is {value}: an axis is a whole number of at least 0")
    return value


def resolve(expressions: Mapping[str, str], axes: Mapping[str, int]) -> dict[str, int]:
    """All axes, with those of ``expressions`` computed, in any order. Raises ExpressionError for an unknown name or a cycle."""
    found = dict(axes)
    reads = {name: names_in(text) for name, text in expressions.items()}
    for name, used in reads.items():
        for one in sorted(used):
            if one not in axes and one not in expressions:
                raise ExpressionError(f"axis {name}: {expressions[name]!r} reads {one}, which is not an axis")
    waiting = dict(expressions)
    while waiting:
        ready = [name for name in waiting if reads[name] <= found.keys()]
        if not ready:
            raise ExpressionError(f"axes {', '.join(sorted(waiting))} depend on each other")
        for name in ready:
            try:
                found[name] = evaluate(waiting.pop(name), found)
            except ExpressionError as error:
                raise ExpressionError(f"axis {name}: {error}") from None
    return found


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ExpressionError(f"an expression of {len(text)} characters: at most {_LONGEST} are read")
    try:
        return python_syntax.parse_expression(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is not an arithmetic expression") from None


def _value(node: ast.expr, axes: Mapping[str, int]) -> int | float:
    match node:
        case ast.Constant(value=bool() as flag):
            raise ExpressionError(f"{flag} is a flag, not a number")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name):
            if name not in axes:
                raise ExpressionError(f"{name} is not an axis")
            return axes[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            inner = _value(operand, axes)
            return -inner if isinstance(sign, ast.USub) else inner
        case ast.BinOp(left=left, op=op, right=right):
            return _operate(op, _value(left, axes), _value(right, axes))
    raise ExpressionError(f"{ast.unparse(node)[:60]!r} is not allowed: use names, numbers, + - * / // % ** and parentheses")


def _operate(op: ast.operator, left: int | float, right: int | float) -> int | float:
    try:
        if isinstance(op, ast.Pow):
            if abs(right) > 64:
                raise ExpressionError(f"the exponent {right} is too large")
            raised: int | float = left**right
            return _bounded(raised)
        if type(op) not in _BINARY:
            raise ExpressionError(f"operator {type(op).__name__} is not allowed: use + - * / // % **")
        result: int | float = _BINARY[type(op)](left, right)
        return _bounded(result)
    except ZeroDivisionError:
        raise ExpressionError("division by zero") from None
    except OverflowError:
        raise ExpressionError("a value is too large") from None


def _bounded(value: int | float) -> int | float:
    if isinstance(value, complex) or not abs(value) <= _LARGEST:
        raise ExpressionError("a value is too large")
    return value
