"""The launch plan of a ``cuda`` kernel: comment lines that specify how its device code is launched.

    // @workspace BYTES [zero]
    // @tensormap NAME = SOURCE [as DTYPE(d0,...)] tile(t0,...) [swizzle(BYTES)]     SOURCE: operand | workspace[+BYTES]
    // @launch KERNEL(arg, ...) grid(x[,y[,z]]) block(x[,y[,z]]) [shared(BYTES)] [cluster(x[,y[,z]])] [cooperative]

An ``arg`` is an operand, ``workspace[+BYTES]`` or the name of a tensor map. This module parses the grammar; sizes stay
expressions, which ``engine.toolchain.resolution`` evaluates and checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from engine.domain.errors import KernelCodeError
from engine.domain.model import Dialect
from engine.toolchain.directives import Directive, directives, without_comments
from engine.toolchain.expressions import Cursor, Expression, Token, near, parse_expression, tokenize

MAX_LAUNCHES = 256
MAX_TENSOR_MAPS = 32

TensorType = Literal["uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16"]
"""Element types of tensor maps."""
TENSOR_TYPES: tuple[str, ...] = get_args(TensorType)

_CODE = re.compile(r"\b__global__\b|([A-Za-z_]\w*)\s*\(|[;{}]")


@dataclass(frozen=True, slots=True)
class Workspace:
    """The plan's scratch memory; ``zeroed``: cleared before every call."""

    size: Expression
    zeroed: bool
    token: Token


@dataclass(frozen=True, slots=True)
class NameRef:
    """An operand or a tensor map, by name; resolution decides which."""

    token: Token


@dataclass(frozen=True, slots=True)
class WorkspaceRef:
    """An address in the workspace; without ``offset`` its start."""

    token: Token
    offset: Expression | None


Reference = NameRef | WorkspaceRef


@dataclass(frozen=True, slots=True)
class Reshape:
    """``as DTYPE(d0,...)``: the source reinterpreted with another type and shape."""

    dtype: Token
    dims: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class TensorMap:
    name: Token
    source: Reference
    shape: Reshape | None
    tile: tuple[Expression, ...]
    tile_token: Token
    swizzle: Expression | None


@dataclass(frozen=True, slots=True)
class Clause:
    """``grid(x,y,z)`` and similar; ``token`` is the clause's word, which errors point at."""

    token: Token
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: Token
    arguments: tuple[Reference, ...]
    grid: Clause
    block: Clause
    shared: Clause | None
    cluster: Clause | None
    cooperative: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel's plan lines, in order."""

    launches: tuple[Launch, ...]
    tensor_maps: tuple[TensorMap, ...] = ()
    workspace: Workspace | None = None


def parse_plan(code: str) -> Plan:
    """Parse the plan lines of ``cuda`` code.

    Raises:
        KernelCodeError: a malformed line, no ``@launch`` line, a duplicate name, or a launched kernel that is not
            a ``__global__`` function of the code.
    """
    launches: list[Launch] = []
    maps: dict[str, TensorMap] = {}
    workspace: Workspace | None = None
    kernels: frozenset[str] | None = None
    for directive in directives(code, Dialect.CUDA, "workspace", "tensormap", "launch"):
        cursor = Cursor(tokenize(directive.text, directive.line, directive.column))
        if directive.word == "workspace":
            if workspace is not None:
                raise _here(directive).error("second @workspace line: request all bytes in one line")
            workspace = parse_workspace(cursor, _here(directive))
        elif directive.word == "tensormap":
            _add_map(maps, _tensor_map(cursor))
        else:
            kernels = global_functions(code) if kernels is None else kernels
            launches.append(_launch(cursor, kernels))
        cursor.end(f"in this @{directive.word} line")
    if not launches:
        raise KernelCodeError("the code has no `// @launch KERNEL(args) grid(...) block(...)` line")
    if len(launches) > MAX_LAUNCHES:
        raise launches[MAX_LAUNCHES].kernel.error(f"too many launches: {MAX_LAUNCHES} at most")
    return Plan(tuple(launches), tuple(maps.values()), workspace)


def global_functions(code: str) -> frozenset[str]:
    """Names of the ``__global__`` functions of this code (and of their attributes, which is harmless)."""
    names: set[str] = set()
    inside = False
    for match in _CODE.finditer(without_comments(code)):
        if match.group() == "__global__":
            inside = True
        elif match.group(1) is None:
            inside = False
        elif inside:
            names.add(match.group(1))
    return frozenset(names)


def _here(directive: Directive) -> Token:
    return Token("name", directive.word, directive.line, directive.column)


def parse_workspace(cursor: Cursor, here: Token) -> Workspace:
    """``BYTES [zero]``, after the word ``here``."""
    size = parse_expression(cursor)
    return Workspace(size, cursor.accept("zero") is not None, here)


def _add_map(maps: dict[str, TensorMap], new: TensorMap) -> None:
    if new.name.text in maps or new.name.text == "workspace":
        raise new.name.error(f"the name '{new.name.text}' is already used: choose another for this tensor map")
    if len(maps) == MAX_TENSOR_MAPS:
        raise new.name.error(f"too many tensor maps: {MAX_TENSOR_MAPS} at most")
    maps[new.name.text] = new


def _tensor_map(cursor: Cursor) -> TensorMap:
    name = cursor.name("a name after @tensormap")
    cursor.expect("=", "after the tensor map's name")
    source = _reference(cursor, "an operand or workspace after '='")
    shape = _reshape(cursor) if cursor.accept("as") else None
    tile_token = cursor.expect("tile", "after the source: write tile(t0,...)")
    tile = clause_values(cursor, tile_token)
    swizzle = None
    if token := cursor.accept("swizzle"):
        swizzle = single_value(Clause(token, clause_values(cursor, token)))
    return TensorMap(name, source, shape, tile, tile_token, swizzle)


def _reshape(cursor: Cursor) -> Reshape:
    dtype = cursor.name("an element type after 'as'")
    if dtype.text not in TENSOR_TYPES:
        hint = near(dtype.text, TENSOR_TYPES) or f": one of {', '.join(TENSOR_TYPES)}"
        raise dtype.error(f"tensor maps do not support the type '{dtype.text}'{hint}")
    return Reshape(dtype, clause_values(cursor, dtype))


def _launch(cursor: Cursor, kernels: frozenset[str]) -> Launch:
    kernel = cursor.name("a kernel's name after @launch")
    if kernel.text not in kernels:
        hint = near(kernel.text, sorted(kernels)) or ': write it as extern "C" __global__ void'
        raise kernel.error(f"no __global__ function '{kernel.text}' in the code{hint}")
    arguments = _launch_arguments(cursor, kernel)
    clauses: dict[str, Clause] = {}
    while cursor.peek.kind == "name":
        token = cursor.take()
        if token.text not in _CLAUSES:
            raise token.error(f"unknown clause '{token.text}'{near(token.text, _CLAUSES) or ' in this @launch line'}")
        if token.text in clauses:
            raise token.error(f"duplicate clause '{token.text}'")
        clauses[token.text] = Clause(token, () if token.text == "cooperative" else clause_values(cursor, token))
    for word in ("grid", "block"):
        if word not in clauses:
            raise kernel.error(f"the launch of '{kernel.text}' has no {word}(x[,y[,z]])")
    for word in ("grid", "block", "cluster"):
        if word in clauses and len(clauses[word].values) > 3:
            raise clauses[word].token.error(f"{word} takes at most three numbers")
    if shared := clauses.get("shared"):
        single_value(shared)
    return Launch(
        kernel, arguments, clauses["grid"], clauses["block"], shared, clauses.get("cluster"), "cooperative" in clauses
    )


_CLAUSES = ("grid", "block", "shared", "cluster", "cooperative")


def _launch_arguments(cursor: Cursor, kernel: Token) -> tuple[Reference, ...]:
    cursor.expect("(", f"after '{kernel.text}'")
    if cursor.accept(")"):
        return ()
    what = "an operand, workspace or a tensor map (sizes are compile-time constants, not arguments)"
    arguments = [_reference(cursor, what)]
    while cursor.accept(","):
        arguments.append(_reference(cursor, what))
    cursor.expect(")", "to close the arguments")
    return tuple(arguments)


def _reference(cursor: Cursor, what: str) -> Reference:
    token = cursor.name(what)
    if token.text != "workspace":
        return NameRef(token)
    return WorkspaceRef(token, parse_expression(cursor) if cursor.accept("+") else None)


def clause_values(cursor: Cursor, word: Token) -> tuple[Expression, ...]:
    """The numbers in brackets after ``word``."""
    cursor.expect("(", f"after '{word.text}'")
    values = [parse_expression(cursor)]
    while cursor.accept(","):
        values.append(parse_expression(cursor))
    cursor.expect(")", f"to close {word.text}(")
    return tuple(values)


def single_value(clause: Clause) -> Expression:
    """The only number of a clause. Raises KernelCodeError where it has several."""
    if len(clause.values) != 1:
        raise clause.token.error(f"{clause.token.text} takes one number")
    return clause.values[0]
