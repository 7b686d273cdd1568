"""Evaluates literal Python of an untrusted file without running it: numbers, lists, comprehensions, module constants."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_STEPS = 100_000
"""Nodes evaluated in all; a hostile comprehension ends there."""
_LARGEST = 2**63
_ARITHMETIC: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class NotLiteral(Exception):
    """An expression that is not a literal; the text names it."""


class Literals:
    """Values of the expressions of one module. ``known_call`` evaluates the calls it knows and returns ``None`` for others."""

    def __init__(self, tree: ast.Module, known_call: Callable[[ast.Call, Literals], object | None]) -> None:
        self._tree = tree
        self._known_call = known_call
        self._local: dict[str, Any] = {}
        self._open: set[str] = set()
        self._steps = 0

    def value(self, node: ast.expr) -> Any:
        """The value of an expression. Raises NotLiteral."""
        self._steps += 1
        if self._steps > _STEPS:
            raise NotLiteral("too many values")
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._constant(name)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(one) for one in parts]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {self._key(key): self.value(value) for key, value in zip(keys, values, strict=True)}
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._number(inner)
            case ast.BinOp(op=op, left=left, right=right):
                return self._operate(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._operate(op, self._number(left), self._number(right))
            case ast.BoolOp(op=op, values=parts):
                return (all if isinstance(op, ast.And) else any)(self.value(one) for one in parts)
            case ast.ListComp(elt=body, generators=loops) | ast.GeneratorExp(elt=body, generators=loops):
                return list(self._loop(body, loops))
            case ast.Call():
                return self._call(node)
        raise NotLiteral(f"`{_shown(node)}` is not a literal")

    def _key(self, node: ast.expr | None) -> str | int:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
            return node.value
        raise NotLiteral("a key that is neither a text nor a number")

    def _number(self, node: ast.expr) -> int | float:
        value = self.value(node)
        if not isinstance(value, int | float):
            raise NotLiteral(f"`{_shown(node)}` is not a number")
        return value

    def _operate(self, op: ast.AST, left: Any, right: Any) -> Any:
        function = _ARITHMETIC.get(type(op))
        lists = isinstance(op, ast.Add) and isinstance(left, list) and isinstance(right, list)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if (
            isinstance(op, ast.Pow | ast.LShift)
            and numbers
            and isinstance(left, int)
            and isinstance(right, int)
            and 0 <= right < 64
        ):
            function = operator.pow if isinstance(op, ast.Pow) else operator.lshift
        if function is None or not (lists or numbers):
            raise NotLiteral(f"an operation {type(op).__name__}")
        try:
            value = function(left, right)
        except ZeroDivisionError as error:
            raise NotLiteral("a division by zero") from error
        if numbers and abs(value) > _LARGEST:
            raise NotLiteral("a number beyond 64 bits")
        return value

    def _loop(self, body: ast.expr, loops: list[ast.comprehension]) -> Iterator[Any]:
        if not loops:
            yield self.value(body)
            return
        first, *rest = loops
        items = self.value(first.iter)
        if not isinstance(items, Iterable) or isinstance(items, str):
            raise NotLiteral(f"`{_shown(first.iter)}` is not a list")
        saved = dict(self._local)
        for item in items:
            self._bind(first.target, item)
            if all(self.value(condition) for condition in first.ifs):
                yield from self._loop(body, rest)
        self._local = saved

    def _bind(self, target: ast.expr, item: Any) -> None:
        if isinstance(target, ast.Name):
            self._local[target.id] = item
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(item, list) and len(item) == len(target.elts):
            for one, part in zip(target.elts, item, strict=True):
                self._bind(one, part)
        else:
            raise NotLiteral(f"`{_shown(target)}` in a loop")

    def _call(self, call: ast.Call) -> Any:
        known = self._known_call(call, self)
        if known is not None:
            return known
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == "range" and not call.keywords and 1 <= len(call.args) <= 3:
            numbers = [self._number(one) for one in call.args]
            if all(isinstance(one, int) for one in numbers) and (len(numbers) < 3 or numbers[2] != 0):
                return list(itertools.islice(range(*(int(one) for one in numbers)), _STEPS))
        if name == "product" and not call.keywords:
            lists = [self.value(one) for one in call.args]
            if all(isinstance(one, list) for one in lists):
                return [list(one) for one in itertools.islice(itertools.product(*lists), _STEPS)]
        if name in ("list", "tuple") and len(call.args) == 1:
            return self.value(call.args[0])
        if isinstance(call.func, ast.Name) and not call.args and not call.keywords:
            return self._returned(call.func.id)
        raise NotLiteral(f"`{_shown(call)}` is computed")

    def _constant(self, name: str) -> Any:
        if name in self._local:
            return self._local[name]
        for statement in self._tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                    return self._once(name, statement.value)
        raise NotLiteral(f"`{name}` is not a constant of the file")

    def _returned(self, name: str) -> Any:
        """What a function of the file returns that consists of one ``return``."""
        for statement in self._tree.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                body = [
                    one for one in statement.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
                ]
                if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
                    return self._once(name, body[0].value)
        raise NotLiteral(f"`{name}()` is computed")

    def _once(self, name: str, node: ast.expr) -> Any:
        if name in self._open:
            raise NotLiteral(f"`{name}` refers to itself")
        self._open.add(name)
        try:
            return self.value(node)
        finally:
            self._open.discard(name)


def _shown(node: ast.AST) -> str:
    return ast.unparse(node)[:60]
