"""How the expressions of a naive program are spelled in C++, which CUDA device code shares word for word.

Knows C's types, operators, precedence and the few helper functions that are written into a source when it needs them. Does not
know what a whole source looks like.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.build import naive_ir as ir
from engine.build.naive_ir import Buffer, Expr, Kind, Var

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
"""Helper functions over ``T`` of as many arguments ``a``, ``b``, … as their body names."""
TRUTHS = ("is_nan", "is_inf")

C_TYPES = {"float64": "double", "int64": "long", "int32": "int", "int16": "short", "int8": "signed char"}
C_TYPES |= {"uint8": "unsigned char", "bool": "unsigned char"}

_TAKEN = set(MATH.values()) | set(HELPERS) | {"NAN", "INFINITY", "fabs", "abs", "max", "min", "round", "rsqrt", "scratch"}
_STEP = re.compile(r"step\d+_.*")


def stored_type(buffer: Buffer) -> str:
    """The element type of scratch and tables; half floats are kept as float there."""
    return C_TYPES.get(buffer.dtype, "float")


def element(buffer: Buffer, kind: Kind, text: str) -> str:
    """A loaded element as its kind."""
    match kind:
        case Kind.FLOAT if buffer.dtype != "float32" and buffer.place == "operand":
            return f"float({text})"
        case Kind.LONG if buffer.dtype != "int64":
            return f"long({text})"
        case _:
            return text


def local(name: str) -> str:
    """An operand's name as a parameter of a generated function: free of clashes with what the function itself uses."""
    return f"{name}_" if name in _TAKEN or _STEP.fullmatch(name) else name


def literal(value: bool | int | float, kind: Kind) -> str:
    """A number, spelled so that its type is its kind's."""
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


def helper(name: str, qualifier: str) -> str:
    """The definition of a helper function."""
    body = HELPERS[name]
    count = max(k for k, letter in enumerate("abcd") if re.search(rf"\b{letter}\b", body)) + 1
    arguments = ", ".join(f"T {letter}" for letter in "abcd"[:count])
    result = "bool" if name in TRUTHS else "T"
    return f"template <class T> {qualifier} {result} {name}({arguments}) {{ {body} }}"


@dataclass(slots=True)
class Spelling:
    """Expressions of one kernel as text. Loops and shared values become statements, which ``lines`` collects."""

    buffers: Mapping[str, Buffer]
    index_type: str
    taken: set[str]
    """Names in use: parameters and loop variables."""
    helpers: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    indent: int = 0
    known: dict[Expr, str] = field(default_factory=dict)
    shared: Counter[Expr] = field(default_factory=Counter)

    def put(self, line: str) -> None:
        """Append a statement."""
        self.lines.append("    " * self.indent + line if line else "")

    def name(self, hint: str) -> str:
        """A name nobody uses, close to the hint."""
        found, again = hint, 1
        while found in self.taken:
            again += 1
            found = f"{hint}{again}" if not hint[-1].isdigit() else f"{hint}_{again}"
        self.taken.add(found)
        return found

    def variable(self, loop: Var) -> str:
        """Declare a loop variable."""
        self.known[loop] = self.name(loop.name.partition("#")[0])
        return self.known[loop]

    def ctype(self, kind: Kind) -> str:
        """The C type of a kind."""
        return self.index_type if kind is Kind.INDEX else str(kind)

    def value(self, expr: Expr) -> str:
        """An expression, after the statements it needs."""
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
        """An expression in parentheses if ``outer`` binds more tightly."""
        if expr in self.known:
            return self.known[expr]
        if isinstance(expr, ir.Reduce):
            self.known[expr] = self._reduce(expr)
            return self.known[expr]
        text, precedence = self._spelled(expr)
        worth = isinstance(expr, ir.Load | ir.Guard) or (isinstance(expr, ir.Apply) and expr.function != "cast")
        if worth and self.shared[expr] > 1 and expr.kind is not Kind.INDEX:
            name = self.name("v")
            self.put(f"const {self.ctype(expr.kind)} {name} = {text};")
            self.known[expr] = name
            return name
        return f"({text})" if precedence < outer else text

    def _spelled(self, expr: Expr) -> tuple[str, int]:
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
            case ir.Load(buffer, offset, kind):
                held = self.buffers[buffer]
                name = local(buffer) if held.place == "operand" else buffer
                text = element(held, kind, f"{name}[{self.text(offset, 0)}]")
                return (f"{text} != 0", EQUAL) if kind is Kind.BOOL else (text, CALL)
            case ir.Apply():
                return self._applied(expr)
            case ir.Guard(conditions, value, other):
                tests = " && ".join(self.text(c, AND + 1) for c in conditions)
                return f"{tests} ? {self._apart(value)} : {self._apart(other)}", TERNARY
            case _:
                raise TypeError(f"a loop variable that no loop declares: {expr!r}")

    def _apart(self, expr: Expr) -> str:
        """A branch that must not be evaluated ahead of its condition: nothing of it becomes a statement."""
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

    def _applied(self, expr: ir.Apply) -> tuple[str, int]:
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
        """A loop that gathers one value; its name."""
        positional = expr.how.startswith("arg")
        total = self.name("best" if positional else "acc")
        kind = Kind.DOUBLE if expr.wide else expr.body.kind
        at = self.name("at") if positional else ""
        start = literal(ir.neutral(expr.how.removeprefix("arg"), kind), kind)
        self.put(f"{self.ctype(kind)} {total} = {start};")
        if at:
            self.put(f"long {at} = -1;")
        scope = (dict(self.known), self.shared, set(self.taken))
        loops = [loop for loop in expr.variables if loop.extent != 1]
        for loop in loops:
            name = self.variable(loop)
            self.put(f"for ({self.index_type} {name} = 0; {name} < {loop.extent}; ++{name}) {{")
            self.indent += 1
        self._gather(expr, total, at)
        for _ in loops:
            self.indent -= 1
            self.put("}")
        self.known, self.shared = scope[0], scope[1]
        self.taken = scope[2]
        if at:
            return at
        return f"{self.ctype(expr.kind)}({total})" if kind is not expr.kind else total

    def _gather(self, expr: ir.Reduce, total: str, at: str) -> None:
        body = self.value(expr.body)
        match expr.how:
            case "sum" | "prod":
                self.put(f"{total} {'+' if expr.how == 'sum' else '*'}= {body};")
            case "any":
                self.put(f"{total} = {total} || {body if body.isidentifier() else f'({body})'};")
            case "all":
                self.put(f"{total} = {total} && {body if body.isidentifier() else f'({body})'};")
            case "max" | "min":
                function = self._function(f"{expr.how}imum", whole=False)
                self.put(f"{total} = {function}<{self.ctype(expr.body.kind)}>({total}, {body});")
            case _:
                value = self.name("value")
                mark = ">" if expr.how == "argmax" else "<"
                loops = [ir.atom(loop) for loop in expr.variables]
                place = ir.flatten(loops, [loop.extent for loop in expr.variables])
                self.put(f"const {self.ctype(expr.body.kind)} {value} = {body};")
                self.put(f"if ({at} < 0 || {value} {mark} {total} || ({value} != {value} && {total} == {total})) {{")
                self.put(f"    {total} = {value};")
                self.put(f"    {at} = {self.text(place, 0)};")
                self.put("}")
