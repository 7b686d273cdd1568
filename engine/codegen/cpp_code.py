"""Expressions of the loop-nest IR as C++ text, which is valid CUDA device code as well.

Knows C's types, operators and precedence, and the helper functions that generated code defines when it needs them. Knows
nothing of whole files.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.codegen import ir
from engine.codegen.ir import Buffer, Expr, Kind, Var

TERNARY, OR, AND, EQUAL, LESS, SHIFT, SUM, PRODUCT, UNARY, CALL = range(1, 11)
"""Precedences, loosest first."""

INFIX = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "lt": ("<", LESS),
    "le": ("<=", LESS),
    "gt": (">", LESS),
    "ge": (">=", LESS),
    "eq": ("==", EQUAL),
    "ne": ("!=", EQUAL),
    "logical_and": ("&&", AND),
    "logical_or": ("||", OR),
    "logical_xor": ("!=", EQUAL),
    "shift_left": ("<<", SHIFT),
    "shift_right": (">>", SHIFT),
    "bitwise_and": ("&", TERNARY),
    "bitwise_or": ("|", TERNARY),
    "bitwise_xor": ("^", TERNARY),
}
PREFIX = {"neg": "-", "logical_not": "!", "bitwise_not": "~"}
MATH = {name: name for name in (
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc floor ceil "
    "trunc fmod atan2 hypot pow copysign lgamma"
).split()} | {"abs": "fabs", "round": "rint"}  # fmt: skip
"""Functions of <math.h>, overloaded for float and double."""

HELPERS = {
    "maximum": "return a > b || a != a ? a : b;",
    "minimum": "return a < b || a != a ? a : b;",
    "square": "return a * a;",
    "sign": "return T((a > T(0)) - (a < T(0)));",
    "sigmoid": "return T(1) / (T(1) + exp(-a));",
    "silu": "return a / (T(1) + exp(-a));",
    "gelu": "return T(0.5) * a * (T(1) + erf(a * T(0.70710678118654752)));",
    "gelu_tanh": "return T(0.5) * a * (T(1) + tanh(T(0.79788456080286536) * (a + T(0.044715) * a * a * a)));",
    "relu": "return a < T(0) ? T(0) : a;",
    "leaky_relu": "return a > T(0) ? a : a * b;",
    "elu": "return a > T(0) ? a * c : (exp(a * d) - T(1)) * b * c;",
    "rsqrt_of": "return T(1) / sqrt(a);",
    "floor_divide": "return a / b - (a % b != 0 && (a < 0) != (b < 0));",
    "floor_remainder": "return a - b * floor(a / b);",
    "whole_remainder": "return (a % b + b) % b;",
    "whole_power": "T r = 1; while (b-- > 0) r *= a; return r;",
    "is_nan": "return a != a;",
    "is_inf": "return a - a != a - a && a == a;",
}
"""Bodies of helper functions over ``T``; their parameters are the names ``a``, ``b``, … in the body."""
BOOLEAN_HELPERS = ("is_nan", "is_inf")

C_TYPES = {"float64": "double", "int64": "long", "int32": "int", "int16": "short", "int8": "signed char"}
C_TYPES |= {"uint8": "unsigned char", "bool": "unsigned char"}

_RESERVED_NAMES = (
    set(MATH.values()) | set(HELPERS) | {"NAN", "INFINITY", "fabs", "abs", "max", "min", "round", "rsqrt", "scratch"}
)
_STEP = re.compile(r"step\d+_.*")


def stored_type(buffer: Buffer) -> str:
    """The element type of workspace buffers and tables; half floats are stored as float there."""
    return C_TYPES.get(buffer.dtype, "float")


def loaded_element(buffer: Buffer, kind: Kind, text: str) -> str:
    """A loaded element, converted to its kind."""
    match kind:
        case Kind.FLOAT if buffer.dtype != "float32" and buffer.place == "operand":
            return f"float({text})"
        case Kind.LONG if buffer.dtype != "int64":
            return f"long({text})"
        case _:
            return text


def parameter_name(name: str) -> str:
    """An operand's parameter name in a generated function, without clashes with names that the function uses."""
    return f"{name}_" if name in _RESERVED_NAMES or _STEP.fullmatch(name) else name


def literal(value: bool | int | float, kind: Kind) -> str:
    """A literal whose C type is that of the kind."""
    match kind:
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.INDEX:
            return str(int(value))
        case Kind.LONG:
            return f"{int(value)}L"
        case _:
            return _real(float(value), kind)


def _real(value: float, kind: Kind) -> str:
    if math.isnan(value):
        return "NAN" if kind is Kind.FLOAT else "double(NAN)"
    if kind is Kind.FLOAT and abs(value) > 3.4028234663852886e38:
        value = math.copysign(math.inf, value)
    if math.isinf(value):
        text = "INFINITY" if kind is Kind.FLOAT else "double(INFINITY)"
        return text if value > 0 else f"-{text}"
    text = repr(value)
    if kind is Kind.FLOAT:
        single = struct.unpack("f", struct.pack("f", value))[0]
        texts = (f"{single:.{digits}g}" for digits in range(6, 10))
        text = next(t for t in texts if struct.unpack("f", struct.pack("f", float(t)))[0] == single)
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return f"{text}f" if kind is Kind.FLOAT else text


def helper_definition(name: str, qualifier: str) -> str:
    """The definition of a helper function."""
    body = HELPERS[name]
    count = max(k for k, letter in enumerate("abcd") if re.search(rf"\b{letter}\b", body)) + 1
    arguments = ", ".join(f"T {letter}" for letter in "abcd"[:count])
    result = "bool" if name in BOOLEAN_HELPERS else "T"
    return f"template <class T> {qualifier} {result} {name}({arguments}) {{ {body} }}"


@dataclass(slots=True)
class ExpressionWriter:
    """Writes the expressions of one kernel. Reductions and shared subexpressions become statements, collected in ``lines``."""

    buffers: Mapping[str, Buffer]
    index_type: str
    taken: set[str]
    """Names in use: parameters, loop variables, locals."""
    helpers: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    indent: int = 0
    known: dict[Expr, str] = field(default_factory=dict)
    shared: Counter[Expr] = field(default_factory=Counter)

    def add_line(self, line: str) -> None:
        """Append a statement."""
        self.lines.append("    " * self.indent + line if line else "")

    def name(self, hint: str) -> str:
        """An unused name close to the hint."""
        name, number = hint, 1
        while name in self.taken:
            number += 1
            name = f"{hint}{number}" if not hint[-1].isdigit() else f"{hint}_{number}"
        self.taken.add(name)
        return name

    def variable(self, loop: Var) -> str:
        """Declare a loop variable."""
        self.known[loop] = self.name(loop.name.partition("#")[0])
        return self.known[loop]

    def ctype(self, kind: Kind) -> str:
        """The C type of a kind."""
        return self.index_type if kind is Kind.INDEX else str(kind)

    def value(self, expr: Expr) -> str:
        """The text of an expression; statements that it needs are added first."""
        self.shared = Counter()
        self._count(expr)
        return self.text(expr, 0)

    def _count(self, expr: Expr) -> None:
        self.shared[expr] += 1
        if self.shared[expr] > 1 or expr in self.known:
            return
        if not isinstance(expr, ir.Guard | ir.Reduce):
            for child in ir.children(expr):
                self._count(child)

    def text(self, expr: Expr, outer: int) -> str:
        """The text of an expression, in parentheses if ``outer`` binds more tightly."""
        if expr in self.known:
            return self.known[expr]
        if isinstance(expr, ir.Reduce):
            self.known[expr] = self._reduce(expr)
            return self.known[expr]
        text, precedence = self._write(expr)
        shareable = isinstance(expr, ir.ReadElement | ir.Guard) or (isinstance(expr, ir.Apply) and expr.function != "cast")
        if shareable and self.shared[expr] > 1 and expr.kind is not Kind.INDEX:
            name = self.name("v")
            self.add_line(f"const {self.ctype(expr.kind)} {name} = {text};")
            self.known[expr] = name
            return name
        return f"({text})" if precedence < outer else text

    def _write(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case ir.Const(value, kind):
                text = literal(value, kind)
                return text, UNARY if text.startswith("-") else CALL
            case ir.Linear():
                return self._linear(expr)
            case ir.Div(value, by):
                return f"{self.text(value, PRODUCT)} / {by}", PRODUCT
            case ir.Mod(value, by):
                return f"{self.text(value, PRODUCT)} % {by}", PRODUCT
            case ir.ReadElement(buffer, offset, kind):
                held = self.buffers[buffer]
                name = parameter_name(buffer) if held.place == "operand" else buffer
                text = loaded_element(held, kind, f"{name}[{self.text(offset, 0)}]")
                return (f"{text} != 0", EQUAL) if kind is Kind.BOOL else (text, CALL)
            case ir.Apply():
                return self._call(expr)
            case ir.Guard(conditions, value, other):
                tests = " && ".join(self.text(c, AND + 1) for c in conditions)
                return f"{tests} ? {self._branch(value)} : {self._branch(other)}", TERNARY
            case _:
                raise TypeError(f"a loop variable that no loop declares: {expr!r}")

    def _branch(self, expr: Expr) -> str:
        """A conditional branch: no part of it becomes a statement, which would run before the condition."""
        if any(isinstance(e, ir.Reduce) and e not in self.known for e in ir.walk(expr)):
            raise TypeError("a reduction inside a branch: it should have been stored")
        shared, self.shared = self.shared, Counter()
        text = self.text(expr, TERNARY if isinstance(expr, ir.Guard) else TERNARY + 1)
        self.shared = shared
        return text

    def _linear(self, expr: ir.Linear) -> tuple[str, int]:
        parts: list[str] = []
        for part, factor in expr.terms:
            inner = self.text(part, PRODUCT if abs(factor) == 1 else PRODUCT + 1)
            term = inner if abs(factor) == 1 else f"{inner} * {abs(factor)}"
            parts.append(("- " if factor < 0 else "+ ") + term)
        if expr.constant or not parts:
            parts.append(("- " if expr.constant < 0 else "+ ") + str(abs(expr.constant)))
        parts.sort(key=lambda part: part.startswith("-"))
        first = parts[0][2:] if parts[0].startswith("+") else f"-{parts[0][2:]}"
        simple = len(parts) == 1 and len(expr.terms) < 2 and (not expr.terms or expr.terms[0][1] == 1)
        if simple and expr.terms:
            atom = expr.terms[0][0]
            return first, PRODUCT if isinstance(atom, ir.Div | ir.Mod) else CALL
        if simple:
            return first, CALL if expr.constant >= 0 else UNARY
        return " ".join((first, *parts[1:])), SUM if len(parts) > 1 else PRODUCT

    def _call(self, expr: ir.Apply) -> tuple[str, int]:
        function, arguments = expr.function, expr.arguments
        if function == "cast":
            return self._cast(expr)
        if function == "where":
            tested, yes, no = arguments
            return f"{self.text(tested, OR)} ? {self.text(yes, OR)} : {self.text(no, OR)}", TERNARY
        if function in INFIX:
            mark, precedence = INFIX[function]
            left, right = arguments
            loose = precedence in (TERNARY, SHIFT)
            texts = (self.text(left, CALL if loose else precedence), self.text(right, CALL if loose else precedence + 1))
            return f"{texts[0]} {mark} {texts[1]}", precedence
        if function in PREFIX:
            return f"{PREFIX[function]}{self.text(arguments[0], CALL)}", UNARY
        whole = expr.kind is Kind.LONG
        if whole and function in ("floor", "ceil", "round", "trunc"):
            return self.text(arguments[0], CALL), CALL
        if whole and function == "fmod":  # CUDA's is of floating point numbers only
            return f"{self.text(arguments[0], PRODUCT)} % {self.text(arguments[1], PRODUCT + 1)}", PRODUCT
        if function == "reciprocal":
            return f"{literal(1, expr.kind)} / {self.text(arguments[0], PRODUCT + 1)}", PRODUCT
        return f"{self._function(function, whole)}({', '.join(self.text(a, 0) for a in arguments)})", CALL

    def _function(self, function: str, whole: bool) -> str:
        name = {
            "rsqrt": "rsqrt_of",
            "isnan": "is_nan",
            "isinf": "is_inf",
            "remainder": "whole_remainder" if whole else "floor_remainder",
            "pow": "whole_power" if whole else "pow",
            "abs": "labs" if whole else "fabs",
        }.get(function, MATH.get(function, function))
        if name in HELPERS:
            self.helpers.add(name)
        return name

    def _cast(self, expr: ir.Apply) -> tuple[str, int]:
        inner = expr.arguments[0]
        if expr.kind is Kind.BOOL:
            return f"{self.text(inner, EQUAL + 1)} != {literal(0, inner.kind)}", EQUAL
        return f"{self.ctype(expr.kind)}({self.text(inner, 0)})", CALL

    def _reduce(self, expr: ir.Reduce) -> str:
        """Add the loop of a reduction; returns the accumulator's name."""
        positional = expr.op.startswith("arg")
        total = self.name("best" if positional else "acc")
        kind = Kind.DOUBLE if expr.wide else expr.body.kind
        at = self.name("at") if positional else ""
        start = literal(ir.identity(expr.op.removeprefix("arg"), kind), kind)
        self.add_line(f"{self.ctype(kind)} {total} = {start};")
        if at:
            self.add_line(f"long {at} = -1;")
        scope = (dict(self.known), self.shared, set(self.taken))
        loops = [loop for loop in expr.variables if loop.extent != 1]
        for loop in loops:
            name = self.variable(loop)
            self.add_line(f"for ({self.index_type} {name} = 0; {name} < {loop.extent}; ++{name}) {{")
            self.indent += 1
        self._accumulate(expr, total, at)
        for _ in loops:
            self.indent -= 1
            self.add_line("}")
        self.known, self.shared = scope[0], scope[1]
        self.taken = scope[2]
        if at:
            return at
        return f"{self.ctype(expr.kind)}({total})" if kind is not expr.kind else total

    def _accumulate(self, expr: ir.Reduce, total: str, at: str) -> None:
        body = self.value(expr.body)
        match expr.op:
            case "sum" | "prod":
                self.add_line(f"{total} {'+' if expr.op == 'sum' else '*'}= {body};")
            case "any":
                self.add_line(f"{total} = {total} || {body if body.isidentifier() else f'({body})'};")
            case "all":
                self.add_line(f"{total} = {total} && {body if body.isidentifier() else f'({body})'};")
            case "max" | "min":
                function = self._function(f"{expr.op}imum", whole=False)
                self.add_line(f"{total} = {function}<{self.ctype(expr.body.kind)}>({total}, {body});")
            case _:
                value = self.name("value")
                mark = ">" if expr.op == "argmax" else "<"
                loops = [ir.as_index(loop) for loop in expr.variables]
                place = ir.flatten(loops, [loop.extent for loop in expr.variables])
                self.add_line(f"const {self.ctype(expr.body.kind)} {value} = {body};")
                self.add_line(f"if ({at} < 0 || {value} {mark} {total} || ({value} != {value} && {total} == {total})) {{")
                self.add_line(f"    {total} = {value};")
                self.add_line(f"    {at} = {self.text(place, 0)};")
                self.add_line("}")
