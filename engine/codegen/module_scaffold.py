"""Rewrites a reference as a ``ModelNew`` module: a correct KernelBench solution to start from.

Works on Python's syntax tree. Comments and layout stay; entry points and unused constants are removed.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping

from engine.domain import python_syntax
from engine.domain.errors import ProblemError
from engine.domain.model import Number

ENTRY_FUNCTIONS = ("get_inputs", "get_init_inputs")
HEAD = "# Naive port: the reference's model as ModelNew. Correct, and as fast as eager.\n"


def module_source(reference: str, settings: Mapping[str, Number]) -> str:
    """The reference's ``Model`` renamed to ``ModelNew``, with the imports, helpers and constants that it uses.

    Module-level numbers named in ``settings`` take those values. Raises ProblemError for a text that is not Python or has no
    Model.
    """
    try:
        tree = python_syntax.parse(reference)
    except (SyntaxError, ValueError) as error:
        raise ProblemError(f"the reference is not valid Python ({error}): correct its syntax") from error
    if not any(isinstance(s, ast.ClassDef) and s.name == "Model" for s in tree.body):
        raise ProblemError("the reference has no `class Model`: add one, as in KernelBench's format")
    kept = _needed_statements(tree)
    lines = [line.encode() for line in re.findall(r"[^\n]*\n|[^\n]+", reference)]
    for statement in kept:
        for at, length, text in sorted(_edits(statement, lines, settings), reverse=True):
            row, column = at
            lines[row] = lines[row][:column] + text.encode() + lines[row][column + length :]
    dropped = {row for s in tree.body if s not in kept for row in _line_numbers(s)} - {
        row for s in kept for row in _line_numbers(s)
    }
    text = b"".join(line for row, line in enumerate(lines) if row not in dropped).decode()
    return HEAD + re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def _needed_statements(tree: ast.Module) -> list[ast.stmt]:
    """The statements that the model needs, in order."""
    optional = [s for s in tree.body if _is_constant(s)]
    kept = [s for s in tree.body if not _is_constant(s) and not _is_entry(s)]
    while True:
        used = {name for statement in kept for name in _used(statement)}
        wanted = [s for s in optional if s not in kept and used.intersection(_assigned(s))]
        if not wanted:
            return [s for s in tree.body if s in kept]
        kept += wanted


def _is_entry(statement: ast.stmt) -> bool:
    """Whether a statement only serves callers of the reference."""
    match statement:
        case ast.FunctionDef(name=name):
            return name in ENTRY_FUNCTIONS
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case _:
            return False


def _is_constant(statement: ast.stmt) -> bool:
    """Whether a statement only assigns values to names."""
    match statement:
        case ast.Assign(targets=targets):
            return all(isinstance(n, ast.Name | ast.Tuple | ast.List) for n in targets)
        case ast.AnnAssign(target=ast.Name()) | ast.AugAssign(target=ast.Name()):
            return True
        case _:
            return False


def _used(statement: ast.stmt) -> Iterator[str]:
    """Module-level names that a statement reads; arguments and locals of the same name do not count."""
    pending = [symtable.symtable(ast.unparse(statement), "reference.py", "exec")]
    while pending:
        table = pending.pop()
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        pending += table.get_children()


def _assigned(statement: ast.stmt) -> Iterator[str]:
    return (n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _line_numbers(statement: ast.stmt) -> Iterable[int]:
    """Line numbers from 0."""
    decorators = getattr(statement, "decorator_list", [])
    first = min(statement.lineno, *(d.lineno for d in decorators)) if decorators else statement.lineno
    return range(first - 1, statement.end_lineno or statement.lineno)


Edit = tuple[tuple[int, int], int, str]
"""Row and byte column from 0, bytes to replace, new text."""


def _edits(statement: ast.stmt, lines: list[bytes], settings: Mapping[str, Number]) -> Iterator[Edit]:
    for node in ast.walk(statement):
        match node:
            case ast.Name(id="Model"):
                yield (node.lineno - 1, node.col_offset), len(b"Model"), "ModelNew"
            case ast.ClassDef(name="Model"):
                keyword = re.compile(rb"class\s+Model\b").search(lines[node.lineno - 1], node.col_offset)
                if keyword:
                    yield (node.lineno - 1, keyword.end() - len(b"Model")), len(b"Model"), "ModelNew"
            case _:
                pass
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
            if name in settings and value is not None and value.end_lineno == value.lineno:
                length = (value.end_col_offset or 0) - value.col_offset
                yield (value.lineno - 1, value.col_offset), length, repr(settings[name])
        case _:
            pass
