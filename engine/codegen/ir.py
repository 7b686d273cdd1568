"""Loop-nest IR of naive kernels: expressions over loop variables, and steps that store them element by element.

A program is a list of steps. Each is one loop nest that fills one buffer, one element per iteration, from an expression that
may
contain reductions. Index arithmetic is simplified here: sums, quotients and remainders of loop variables, where their ranges
allow it. Independent of ATen and of the text of C++ or CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The type that an expression is computed in. Half floats are computed in FLOAT, all integers in LONG."""

    FLOAT = "float"
    DOUBLE = "double"
    LONG = "long"
    BOOL = "bool"
    INDEX = "index"


KINDS = {
    "float16": Kind.FLOAT,
    "bfloat16": Kind.FLOAT,
    "float8_e4m3fn": Kind.FLOAT,
    "float8_e5m2": Kind.FLOAT,
    "float32": Kind.FLOAT,
    "float64": Kind.DOUBLE,
    "int64": Kind.LONG,
    "int32": Kind.LONG,
    "int16": Kind.LONG,
    "int8": Kind.LONG,
    "uint8": Kind.LONG,
    "bool": Kind.BOOL,
}
"""torch's dtype → the kind that its values are computed in."""


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: bool | int | float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable from 0 to ``extent`` - 1. ``name`` is unique; the part before ``#`` is the name to show."""

    name: str
    extent: int
    kind: Kind = Kind.INDEX


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear combination of expressions with integer factors: the normal form of every index."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int = 0
    kind: Kind = Kind.INDEX


@dataclass(frozen=True, slots=True)
class Div:
    """``value / by``, rounded down; ``value`` is not negative wherever the result is used."""

    value: Linear
    by: int
    kind: Kind = Kind.INDEX


@dataclass(frozen=True, slots=True)
class Mod:
    """``value % by``; ``value`` is not negative wherever the result is used."""

    value: Linear
    by: int
    kind: Kind = Kind.INDEX


@dataclass(frozen=True, slots=True)
class ReadElement:
    """One element of a buffer, ``offset`` counted in elements."""

    buffer: str
    offset: Linear
    kind: Kind


@dataclass(frozen=True, slots=True)
class Apply:
    """A function call by name (``cpp_code`` defines them). ``cast`` converts to ``kind``."""

    function: str
    arguments: tuple[Expr, ...]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Guard:
    """``value`` where all conditions hold, else ``other``; elsewhere ``value`` may be out of bounds and is not evaluated."""

    conditions: tuple[Expr, ...]
    value: Expr
    other: Expr
    kind: Kind


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of ``body`` over ``variables``: sum, prod, max, min, any, all; argmax and argmin give the first flat
    position.

    ``wide``: accumulated in double.
    """

    op: str
    variables: tuple[Var, ...]
    body: Expr
    kind: Kind
    wide: bool = False


Expr = Const | Var | Linear | Div | Mod | ReadElement | Apply | Guard | Reduce
Index = tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a program: an operand, an intermediate in the workspace, or a constant table in the code."""

    name: str
    numel: int
    dtype: str
    place: str
    """``operand``, ``workspace`` or ``table``."""
    values: tuple[bool | int | float, ...] = ()


@dataclass(frozen=True, slots=True)
class IrStep:
    """One loop nest, which becomes one kernel: ``target[offset] = body`` in every iteration of ``loops``.

    With ``scan``, the last loop is serial and stores the running ``sum`` or ``prod`` of the body.
    """

    name: str
    comment: str
    target: str
    loops: tuple[Var, ...]
    offset: Linear
    body: Expr
    scan: str = ""

    @property
    def parallel_iterations(self) -> int:
        """Iterations that are independent of each other."""
        loops = self.loops[:-1] if self.scan else self.loops
        return math.prod(loop.extent for loop in loops)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order, and every buffer they access."""

    buffers: tuple[Buffer, ...]
    steps: tuple[IrStep, ...]


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside one."""
    match expr:
        case Const() | Var():
            return ()
        case Linear(terms=terms):
            return tuple(atom for atom, _ in terms)
        case Div(value=value) | Mod(value=value):
            return (value,)
        case ReadElement(offset=offset):
            return (offset,)
        case Apply(arguments=arguments):
            return arguments
        case Guard():
            return (*expr.conditions, expr.value, expr.other)
        case Reduce(body=body):
            return (body,)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything inside it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def constant_index(value: int) -> Linear:
    """A constant index."""
    return Linear((), value)


def as_index(expr: Expr) -> Linear:
    """An expression as an index; a loop of one iteration is 0."""
    if isinstance(expr, Linear):
        return expr
    if isinstance(expr, Var) and expr.extent == 1:
        return constant_index(0)
    return Linear(((expr, 1),))


def bounds(expr: Expr) -> tuple[int, int] | None:
    """The smallest and largest value of an index, where they are known."""
    match expr:
        case Var(extent=extent):
            return (0, extent - 1)
        case Mod(by=by):
            return (0, by - 1)
        case Div(value=value, by=by):
            inner = bounds(value)
            return (inner[0] // by, inner[1] // by) if inner else None
        case Linear(terms=terms, constant=constant):
            low = high = constant
            for part, factor in terms:
                inner = bounds(part)
                if inner is None:
                    return None
                ends = (inner[0] * factor, inner[1] * factor)
                low, high = low + min(ends), high + max(ends)
            return (low, high)
        case _:
            return None


def add(*indices: Linear) -> Linear:
    """The sum of indices."""
    factors: dict[Expr, int] = {}
    for index in indices:
        for part, factor in index.terms:
            factors[part] = factors.get(part, 0) + factor
    return _recombine(factors, sum(index.constant for index in indices))


def scale(index: Linear, by: int) -> Linear:
    """The index times a constant."""
    return Linear(tuple((part, factor * by) for part, factor in index.terms) if by else (), index.constant * by)


def shift(index: Linear, by: int) -> Linear:
    """The index plus a constant."""
    return Linear(index.terms, index.constant + by)


def _recombine(factors: dict[Expr, int], constant: int) -> Linear:
    """Recombine quotients and remainders of the same division: (e / c) · kc + (e % c) · k = e · k."""
    for part, factor in list(factors.items()):
        if not isinstance(part, Mod):
            continue
        quotient = divide(part.value, part.by)
        if quotient.constant or len(quotient.terms) != 1 or quotient.terms[0][1] != 1:
            continue
        whole = quotient.terms[0][0]
        if factor and factors.get(whole) == factor * part.by:
            rest = {p: f for p, f in factors.items() if p not in (part, whole)}
            return add(Linear(tuple(rest.items()), constant), scale(part.value, factor))
    terms = [(part, factor) for part, factor in factors.items() if factor]
    return Linear(tuple(sorted(terms, key=lambda term: -abs(term[1]))), constant)


def _quotient_and_rest(index: Linear, by: int) -> tuple[Linear, Linear] | None:
    """``index`` = quotient · by + rest with a rest that is never negative; ``None`` where there is no such split."""
    quotient = Linear(tuple((p, f // by) for p, f in index.terms if f % by == 0), index.constant // by)
    rest = Linear(tuple((p, f) for p, f in index.terms if f % by), index.constant % by)
    span = bounds(rest)
    return (quotient, rest) if span and span[0] >= 0 else None


def divide(index: Linear, by: int) -> Linear:
    """``index / by`` rounded down, for an index that is not negative."""
    parts = _quotient_and_rest(index, by)
    if by == 1 or parts is None:
        return index if by == 1 else as_index(Div(index, by))
    quotient, rest = parts
    span = bounds(rest)
    if span and span[1] < by:
        return quotient
    common = math.gcd(by, *(factor for _, factor in rest.terms))
    rest = Linear(tuple((part, factor // common) for part, factor in rest.terms), rest.constant // common)
    if common > 1:
        return add(quotient, divide(rest, by // common))
    inner = rest.terms[0][0] if len(rest.terms) == 1 and rest.terms[0][1] == 1 and not rest.constant else None
    of_rest = divide(inner.value, inner.by * by) if isinstance(inner, Div) else as_index(Div(rest, by))
    return add(quotient, of_rest)


def remainder(index: Linear, by: int) -> Linear:
    """``index % by``, for an index that is not negative."""
    parts = _quotient_and_rest(index, by)
    if by == 1 or parts is None:
        return constant_index(0) if by == 1 else as_index(Mod(index, by))
    rest = parts[1]
    span = bounds(rest)
    if span and span[1] < by:
        return rest
    common = math.gcd(by, rest.constant, *(factor for _, factor in rest.terms))
    if common > 1:
        smaller = Linear(tuple((part, factor // common) for part, factor in rest.terms), rest.constant // common)
        return scale(remainder(smaller, by // common), common)
    inner = rest.terms[0][0] if len(rest.terms) == 1 and rest.terms[0][1] == 1 and not rest.constant else None
    if isinstance(inner, Mod) and inner.by % by == 0:
        return remainder(inner.value, by)
    return as_index(Mod(rest, by))


def flatten(index: Sequence[Linear], shape: Sequence[int]) -> Linear:
    """The row-major position of an element."""
    position = constant_index(0)
    for at, extent in zip(index, shape, strict=True):
        position = add(scale(position, extent), at)
    return position


def unflatten(position: Linear, shape: Sequence[int]) -> Index:
    """The element at a row-major position."""
    index: list[Linear] = []
    for place in range(len(shape)):
        stride = math.prod(shape[place + 1 :])
        at = divide(position, stride)
        index.append(remainder(at, shape[place]) if place else at)
    if shape and math.prod(shape) == 1:
        return tuple(constant_index(0) for _ in shape)
    return tuple(index)


def in_range(index: Linear, low: int, high: int) -> tuple[Expr, ...]:
    """Bounds checks for low ≤ index < high, without those that always hold."""
    span = bounds(index)
    conditions: list[Expr] = []
    if span is None or span[0] < low:
        conditions.append(Apply("ge", (index, constant_index(low)), Kind.BOOL))
    if span is None or span[1] >= high:
        conditions.append(Apply("lt", (index, constant_index(high)), Kind.BOOL))
    return tuple(conditions)


def guard(conditions: Sequence[Expr], value: Expr, other: Expr) -> Expr:
    """``value`` where the conditions hold; plain ``value`` if there are none."""
    return Guard(tuple(conditions), value, other, value.kind) if conditions else value


def cast(expr: Expr, kind: Kind) -> Expr:
    """The expression converted to a kind, if it has another."""
    if expr.kind is kind:
        return expr
    if isinstance(expr, Const) and kind is not Kind.INDEX:
        return constant(expr.value, kind)
    return Apply("cast", (expr,), kind)


def constant(value: bool | int | float, kind: Kind) -> Const:
    """A number in the representation of a kind."""
    match kind:
        case Kind.BOOL:
            return Const(bool(value), kind)
        case Kind.LONG | Kind.INDEX:
            return Const(int(value), kind)
        case _:
            return Const(float(value), kind)


def identity(op: str, kind: Kind) -> bool | int | float:
    """The identity element of a reduction: 0 for a sum, the least value for a maximum."""
    match op:
        case "sum" | "any":
            return 0
        case "prod" | "all":
            return 1
        case _ if kind is Kind.BOOL:
            return op == "min"
        case _:
            huge = 2**63 - 1 if kind in (Kind.LONG, Kind.INDEX) else math.inf
            return huge if op == "min" else -huge
