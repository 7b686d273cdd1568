"""The part of a reference's text that defines some of its classes, for a process that may have no more of it.

Works on Python's syntax tree. Only imports, functions, classes and plain values are taken: executing them computes nothing.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Collection, Iterator, Sequence
from types import CodeType

from engine.domain.errors import ProblemError
from engine.problem.files.reference_code import bound_names

_PLAIN = (
    ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.UnaryOp, ast.BinOp,
    ast.expr_context, ast.operator, ast.unaryop,
)  # fmt: skip
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF")


def definitions(tree: ast.Module, names: Sequence[str], attached: Collection[str], file: str) -> str:
    """The statements of a module that define the classes ``names`` and what they use, in order.

    ``attached``: modules that the other process lacks. Raises ProblemError for a class that needs one of these, or a value that
    must be computed.
    """
    future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    binding: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in bound_names(statement):
            binding.setdefault(name, []).append(statement)
    taken: dict[int, ast.stmt] = {}
    pending = [*names, "*"]
    while pending:
        for statement in binding.pop(pending.pop(), ()):
            if id(statement) not in taken:
                taken[id(statement)] = statement
                _check(statement, names, attached, file)
                pending += _read(ast.Module([*future, statement], []), file)
    chosen = [s for s in tree.body if id(s) in taken and s not in future]
    return ast.unparse(ast.Module([*future, *chosen], []))


def _check(statement: ast.stmt, names: Sequence[str], attached: Collection[str], file: str) -> None:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return
        case ast.Import(names=aliases):
            modules = [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(module), level=0):
            modules = [module]
        case ast.Assign(value=ast.expr() as value) | ast.AnnAssign(value=ast.expr() as value):
            if all(isinstance(node, _PLAIN) for node in ast.walk(value)):
                return
            modules = []
        case _:
            modules = []
    if not modules or any(module.partition(".")[0] in attached for module in modules):
        raise ProblemError(
            f"{file}, line {statement.lineno}: the classes of forward's arguments ({', '.join(names)}) need this statement: "
            "only imports of installed modules, functions, classes and plain values are executed in a kernel's process"
        )


def _read(module: ast.Module, file: str) -> Iterator[str]:
    """The global names that a module's code reads."""
    pending = [compile(module, file, "exec", dont_inherit=True)]
    while pending:
        code = pending.pop()
        yield from (str(one.argval) for one in dis.get_instructions(code) if one.opname in _READS)
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
