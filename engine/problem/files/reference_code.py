"""Static analysis of a reference's code: names, constants, and the insertion of a workload's settings.

Works on Python's syntax tree; knows nothing of files, workloads or torch.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Iterator, Mapping

from engine.domain import python_syntax
from engine.domain.errors import ProblemError
from engine.domain.model import Number

ENTRY_POINTS = ("Model", "get_inputs", "get_init_inputs")
"""Top-level definitions of a file in KernelBench's format."""

_WHAT = {
    "Model": "class Model (a torch.nn.Module)",
    "get_inputs": "function get_inputs() (the list of forward's arguments)",
    "get_init_inputs": "function get_init_inputs() (the list of Model's arguments; an empty list is fine)",
}
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parse(text: str, origin: str) -> ast.Module:
    """The syntax tree of a reference, which is known to compile.

    Raises ProblemError with the line of a syntax error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = python_syntax.parse(text, origin)
            compile(tree, origin, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise ProblemError(f"{origin}{where}: not valid Python ({error.msg}): correct the syntax") from error
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ProblemError(f"{origin}: Python cannot read this file ({reason}): is it a reference?") from error
    return tree


def bound_names(node: ast.AST) -> Iterator[str]:
    """Every name that a module, or one statement of it, binds in the module's own scope; ``*`` for a star import."""
    pending: list[ast.AST] = [node]
    while pending:
        match pending.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.split(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case inner if not isinstance(inner, _INNER_SCOPE):
                pending.extend(ast.iter_child_nodes(inner))


def assigned_names(tree: ast.Module) -> frozenset[str]:
    """Names that top-level statements assign to: workloads may set them, and constants come from them."""
    plain = (s for s in tree.body if not isinstance(s, (*_OWN_SCOPE, ast.Import, ast.ImportFrom)))
    return frozenset(name for statement in plain for name in bound_names(statement))


def check_entry_points(tree: ast.Module, origin: str) -> None:
    """Raise ProblemError for the first of ``ENTRY_POINTS`` that the module does not define."""
    names = set(bound_names(tree))
    if "*" in names:
        return
    for entry in ENTRY_POINTS:
        if entry not in names:
            raise ProblemError(
                f"{origin}: no {_WHAT[entry]}: a problem is a file in KernelBench's format, "
                f"which defines {', '.join(ENTRY_POINTS)}"
            )


def plain_numbers(tree: ast.Module) -> dict[str, Number]:
    """The settings as written: module-level names that are bound exactly once, to a number."""
    counts: dict[str, int] = {}
    for statement in tree.body:
        for name in bound_names(statement):
            counts[name] = counts.get(name, 0) + 1
    numbers: dict[str, Number] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if counts[name] == 1:
                number = _number(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if counts[name] == 1:
                number = _number(value)
            case _:
                continue
        if number is not None:
            numbers[name] = number
    return numbers


def is_usable(number: Number) -> bool:
    """Whether a setting can have this value: a finite number, a whole one of at most 64 bits."""
    return -_WIDEST <= number < _WIDEST if isinstance(number, int) else math.isfinite(number)


_WIDEST = 1 << 63


def _number(value: ast.expr) -> Number | None:
    match value:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as number) if is_usable(number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _number(operand)
            return None if inner is None else -inner
        case _:
            return None


def with_settings(tree: ast.Module, settings: Mapping[str, Number]) -> ast.Module:
    """The module with each setting assigned after every top-level statement that binds its name, or in place of one that
    assigns a plain value to it alone.

    So everything that the module derives from such a name is derived from the setting. Line numbers stay the author's.
    """
    body: list[ast.stmt] = []
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant()) if name in settings:
                pass
            case _:
                body.append(statement)
        for name in dict.fromkeys(bound_names(statement)):
            if name in settings:
                assignment = ast.Assign([ast.Name(name, ast.Store())], ast.Constant(settings[name]))
                body.append(ast.fix_missing_locations(ast.copy_location(assignment, statement)))
    return ast.Module(body=body, type_ignores=tree.type_ignores)


class _OnDevice(ast.NodeTransformer):
    """Replaces the device where it is written as a literal, or as a call of ``cuda()``."""

    def __init__(self, device: str) -> None:
        self._device = device

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """See ``NodeTransformer``."""
        if node.value in ("cuda", "cuda:0"):
            return ast.copy_location(ast.Constant(self._device), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """See ``NodeTransformer``."""
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="cuda")):
                method = ast.Attribute(value, "to", ast.Load())
                moved = ast.Call(method, [ast.Constant(self._device)], [])
                return ast.fix_missing_locations(ast.copy_location(moved, node))
        return node


def with_device(tree: ast.Module, device: str) -> ast.Module:
    """The module with every literal ``"cuda"`` and ``"cuda:0"`` replaced, and ``x.cuda()`` by ``x.to(device)``."""
    replaced: ast.Module = _OnDevice(device).visit(tree)
    return replaced


class _TypeChecks(ast.NodeTransformer):
    """Removes statements that only raise because of a tensor's type."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """See ``NodeTransformer``."""
        return ast.copy_location(ast.Pass(), node) if _reads_dtype(node.test) else node

    def visit_If(self, node: ast.If) -> ast.AST:
        """See ``NodeTransformer``."""
        match node:
            case ast.If(body=[ast.Raise()], orelse=[]) if _reads_dtype(node.test):
                return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def without_type_checks(tree: ast.Module) -> ast.Module:
    """The module without ``assert x.dtype == …``, nor ``if x.dtype != …: raise``, which no run in float64 could pass."""
    checked: ast.Module = _TypeChecks().visit(tree)
    return checked


def _reads_dtype(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "dtype" for node in ast.walk(test))
