"""The launch plan of a ``triton`` kernel: comment lines that say how its ``@jit`` functions are launched.

    # @workspace BYTES [zero]
    # @launch FUNCTION(arg, ..., PARAMETER=arg, ...) grid(x[,y[,z]])
    #         [num_warps(EXPR)] [num_stages(EXPR)] [num_ctas(EXPR)] [maxnreg(EXPR)] [cooperative]

An ``arg`` is an operand, ``workspace[+BYTES] [as DTYPE]``, an expression, or ``None``. They bind like the arguments of a Python
call. A ``tl.constexpr`` parameter that the line leaves out takes the tunable or the constant of the problem with its name. This
module parses the grammar; ``engine.toolchain.triton.resolution`` evaluates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain.errors import KernelCodeError
from engine.domain.model import Dialect
from engine.toolchain.directives import directives
from engine.toolchain.expressions import Cursor, Expression, Token, near, parse_expression, tokenize
from engine.toolchain.plan import MAX_LAUNCHES, Clause, Workspace, clause_values, parse_workspace, single_value
from engine.toolchain.triton.source import OPTIONS, JitFunction, jit_functions

POINTERS: Mapping[str, str] = {
    "float64": "*fp64", "float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5", "int64": "*i64", "int32": "*i32", "int16": "*i16", "int8": "*i8", "uint64": "*u64",
    "uint32": "*u32", "uint16": "*u16", "uint8": "*u8", "bool": "*i1",
}  # fmt: skip
"""Element type → the type of a pointer to it, in Triton's words."""
_CLAUSES = ("grid", *OPTIONS, "cooperative")


@dataclass(frozen=True, slots=True)
class WorkspaceValue:
    """An address in the workspace, as a pointer to ``dtype``."""

    token: Token
    offset: Expression | None
    dtype: str


@dataclass(frozen=True, slots=True)
class ExpressionValue:
    """An expression; a name alone may also be an operand or a number that is not an integer."""

    token: Token
    expression: Expression


@dataclass(frozen=True, slots=True)
class Constant:
    """``None``, ``True`` or ``False``."""

    value: bool | None


Value = WorkspaceValue | ExpressionValue | Constant
_CONSTANTS = {"None": Constant(None), "True": Constant(True), "False": Constant(False)}


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """One ``@launch`` line: ``bound`` is the value of each parameter that the line gives."""

    kernel: Token
    function: JitFunction
    bound: Mapping[str, Value]
    grid: Clause
    options: Mapping[str, Clause]
    cooperative: bool


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A file's plan lines, in order."""

    launches: tuple[TritonLaunch, ...]
    workspace: Workspace | None = None


def parse_triton_plan(code: str) -> TritonPlan:
    """Parse the plan lines of a Triton file.

    Raises:
        KernelCodeError: a malformed line, no ``@launch`` line, a function that is not a ``@jit`` function of the file, or
            arguments that do not fit its parameters.
    """
    functions = jit_functions(code)
    launches: list[TritonLaunch] = []
    workspace: Workspace | None = None
    for directive in directives(code, Dialect.TRITON, "workspace", "tensormap", "launch"):
        cursor = Cursor(tokenize(directive.text, directive.line, directive.column))
        here = Token("name", directive.word, directive.line, directive.column)
        if directive.word == "tensormap":
            raise here.error(
                "a triton plan has no @tensormap lines: make descriptors in the kernel, tl.make_tensor_descriptor()"
            )
        if directive.word == "workspace":
            if workspace is not None:
                raise here.error("second @workspace line: request all bytes in one line")
            workspace = parse_workspace(cursor, here)
        else:
            launches.append(_launch(cursor, functions))
        cursor.end(f"in this @{directive.word} line")
    if not launches:
        raise KernelCodeError("the code has no `# @launch FUNCTION(args) grid(...)` line")
    if len(launches) > MAX_LAUNCHES:
        raise launches[MAX_LAUNCHES].kernel.error(f"too many launches: {MAX_LAUNCHES} at most")
    return TritonPlan(tuple(launches), workspace)


def _launch(cursor: Cursor, functions: Mapping[str, JitFunction]) -> TritonLaunch:
    kernel = cursor.name("a function's name after @launch")
    function = functions.get(kernel.text)
    if function is None:
        hint = near(kernel.text, functions) or ": define it at the top level under @triton.jit or @gluon.jit"
        raise kernel.error(f"no @jit function '{kernel.text}' in the code{hint}")
    bound = _arguments(cursor, kernel, function)
    clauses: dict[str, Clause] = {}
    while cursor.peek.kind == "name":
        token = cursor.take()
        if token.text in ("block", "shared", "cluster"):
            raise token.error(f"Triton decides {token.text} itself: use num_warps(N), num_stages(N) or num_ctas(N)")
        if token.text not in _CLAUSES:
            raise token.error(f"unknown clause '{token.text}'{near(token.text, _CLAUSES) or ' in this @launch line'}")
        if token.text in clauses:
            raise token.error(f"duplicate clause '{token.text}'")
        clauses[token.text] = Clause(token, () if token.text == "cooperative" else clause_values(cursor, token))
    if "grid" not in clauses:
        raise kernel.error(f"the launch of '{kernel.text}' has no grid(x[,y[,z]])")
    if len(clauses["grid"].values) > 3:
        raise clauses["grid"].token.error("grid takes at most three numbers")
    options = {name: clauses[name] for name in OPTIONS if name in clauses}
    for clause in options.values():
        single_value(clause)
    return TritonLaunch(kernel, function, bound, clauses["grid"], options, "cooperative" in clauses)


def _arguments(cursor: Cursor, kernel: Token, function: JitFunction) -> dict[str, Value]:
    """The arguments of a line by parameter, bound as Python binds them."""
    cursor.expect("(", f"after '{kernel.text}'")
    names = [parameter.name for parameter in function.parameters]
    bound: dict[str, Value] = {}
    named = False
    while not cursor.accept(")"):
        if bound:
            cursor.expect(",", "between the arguments")
        start = cursor.peek
        if start.kind == "name" and cursor.following.text == "=":
            named = True
            name = cursor.take().text
            cursor.take()
            if name not in names:
                raise start.error(f"'{kernel.text}' has no parameter '{name}'{near(name, names)}")
        elif named:
            raise start.error("a positional argument after a named one")
        elif len(bound) == len(names):
            raise start.error(f"'{kernel.text}' takes {len(names)} arguments: this one is too many")
        else:
            name = names[len(bound)]
        if name in bound:
            raise start.error(f"'{kernel.text}' gets '{name}' twice")
        bound[name] = _value(cursor)
    return bound


def _value(cursor: Cursor) -> Value:
    token = cursor.peek
    if token.text == "workspace":
        cursor.take()
        offset = parse_expression(cursor) if cursor.accept("+") else None
        dtype = cursor.name("an element type after 'as'") if cursor.accept("as") else None
        if dtype is not None and dtype.text not in POINTERS:
            raise dtype.error(f"unknown element type '{dtype.text}'{near(dtype.text, POINTERS)}")
        return WorkspaceValue(token, offset, dtype.text if dtype else "float32")
    if token.kind == "name" and token.text in _CONSTANTS:
        return _CONSTANTS[cursor.take().text]
    return ExpressionValue(token, parse_expression(cursor))
