"""Expressions of the loop-nest IR as Triton: one vector of ``BLOCK`` elements where C++ has one element.

Branches become ``tl.where``; loads in a branch are masked by its condition. Functions that Triton lacks are written as ``@jit``
helpers out of those that it has, so that the code also runs in Triton's interpreter.
"""

from __future__ import annotations

import keyword
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.codegen import ir
from engine.codegen.cpp_code import stored_type
from engine.codegen.ir import Buffer, Expr, Kind, Var
from engine.codegen.lowering import NotLowered

TYPES = {Kind.FLOAT: "tl.float32", Kind.DOUBLE: "tl.float64", Kind.LONG: "tl.int64", Kind.BOOL: "tl.int1"}
STORED = {
    "float": "float32", "double": "float64", "long": "int64", "int": "int32", "short": "int16", "signed char": "int8",
    "unsigned char": "uint8",
}  # fmt: skip
"""C type of a workspace buffer → its element type in a plan."""
MAX_TABLE = 64
"""Values of a constant table that are selected one by one."""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "logical_and": "&", "logical_or": "|", "logical_xor": "^", "shift_left": "<<", "shift_right": ">>", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_PLAIN = {name: f"tl.{name}" for name in "exp exp2 log log2 sqrt sin cos erf floor ceil abs".split()}
_HELPERS: Mapping[str, tuple[str, str]] = {
    "maximum": ("a, b", "tl.where((a > b) | (a != a), a, b)"),
    "minimum": ("a, b", "tl.where((a < b) | (a != a), a, b)"),
    "square": ("a", "a * a"),
    "sign": ("a", "tl.where(a > 0, 1.0, 0.0) - tl.where(a < 0, 1.0, 0.0)"),
    "sigmoid": ("a", "1.0 / (1.0 + tl.exp(-a))"),
    "silu": ("a", "a / (1.0 + tl.exp(-a))"),
    "gelu": ("a", "0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))"),
    "gelu_tanh": ("a", "a / (1.0 + tl.exp(-1.5957691216057308 * (a + 0.044715 * a * a * a)))"),
    "relu": ("a", "tl.where(a < 0, a * 0, a)"),
    "leaky_relu": ("a, b", "tl.where(a > 0, a, a * b)"),
    "elu": ("a, b, c, d", "tl.where(a > 0, a * c, (tl.exp(a * d) - 1.0) * b * c)"),
    "rsqrt": ("a", "1.0 / tl.sqrt(a)"),
    "reciprocal": ("a", "1.0 / a"),
    "tanh": ("a", "2.0 / (1.0 + tl.exp(-2.0 * a)) - 1.0"),
    "sinh": ("a", "0.5 * (tl.exp(a) - tl.exp(-a))"),
    "cosh": ("a", "0.5 * (tl.exp(a) + tl.exp(-a))"),
    "tan": ("a", "tl.sin(a) / tl.cos(a)"),
    "erfc": ("a", "1.0 - tl.erf(a)"),
    "log10": ("a", "tl.log(a) * 0.4342944819032518"),
    "log1p": ("a", "tl.where(1.0 + a == 1.0, a, tl.log(1.0 + a) * a / ((1.0 + a) - 1.0))"),
    "expm1": ("a", "tl.where(tl.abs(a) < 1e-3, a + 0.5 * a * a, tl.exp(a) - 1.0)"),
    "trunc": ("a", "tl.where(a < 0, tl.ceil(a), tl.floor(a))"),
    "round": ("a", "tl.floor(a + 0.5) - tl.where((tl.floor(a + 0.5) - a == 0.5) & "
                   "(tl.floor(a + 0.5) != 2.0 * tl.floor(0.5 * tl.floor(a + 0.5))), 1.0, 0.0)"),
    "fmod": ("a, b", "a - b * tl.where(a / b < 0, tl.ceil(a / b), tl.floor(a / b))"),
    "floor_remainder": ("a, b", "a - b * tl.floor(a / b)"),
    "whole_remainder": ("a, b", "(a % b + b) % b"),
    "floor_divide": ("a, b", "a // b - tl.where((a % b != 0) & ((a < 0) != (b < 0)), 1, 0)"),
    "hypot": ("a, b", "tl.sqrt(a * a + b * b)"),
    "copysign": ("a, b", "tl.where(b < 0, -tl.abs(a), tl.abs(a))"),
    "pow": ("a, b", "tl.where(b == 0, 1.0, tl.where((a < 0) & (b != 2.0 * tl.floor(0.5 * b)), -1.0, 1.0) * "
                    "tl.exp2(b * tl.log2(tl.abs(a))))"),
    "isnan": ("a", "a != a"),
    "isinf": ("a", "(a - a != a - a) & (a == a)"),
}  # fmt: skip
"""Parameters and value of helper functions."""
_NAMES = frozenset({"tl", "triton", "range", "float", "BLOCK"})


def parameter(name: str) -> str:
    """An operand's parameter name, without clashes with names that the code uses."""
    return f"{name}_" if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _NAMES | set(_HELPERS) else name


def helper_lines(name: str) -> list[str]:
    """The definition of a helper function."""
    parameters, value = _HELPERS[name]
    return ["@triton.jit", f"def {name}({parameters}):", f"    return {value}"]


def literal(value: bool | int | float, kind: Kind) -> str:
    """A number as Triton reads it beside a tensor."""
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        number = float(value)
        if math.isnan(number):
            return 'float("nan")'
        if kind is Kind.FLOAT and abs(number) > 3.4028234663852886e38:
            number = math.copysign(math.inf, number)
        if math.isinf(number):
            return 'float("inf")' if number > 0 else '-float("inf")'
        return repr(number)
    return str(int(value))


@dataclass(slots=True)
class VectorWriter:
    """Writes the expressions of one step; reductions, loads and shared values become statements, collected in ``lines``."""

    buffers: Mapping[str, Buffer]
    index_type: str
    """``tl.int32`` or ``tl.int64``."""
    taken: set[str]
    helpers: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    mask: str = "mask"
    known: dict[tuple[str, Expr], str] = field(default_factory=dict)
    shared: Counter[Expr] = field(default_factory=Counter)

    def add_line(self, line: str) -> None:
        """Append a statement."""
        self.lines.append("    " * self.indent + line)

    def name(self, hint: str) -> str:
        """An unused name close to the hint."""
        name, number = hint, 1
        while name in self.taken or keyword.iskeyword(name):
            number += 1
            name = f"{hint}{number}" if not hint[-1].isdigit() else f"{hint}_{number}"
        self.taken.add(name)
        return name

    def declare(self, loop: Var, name: str) -> None:
        """Make ``name`` stand for a loop variable, under any mask."""
        self.known["", loop] = name

    def type_of(self, kind: Kind) -> str:
        return TYPES.get(kind, self.index_type)

    def full(self, value: bool | int | float, kind: Kind) -> str:
        """A vector of one number."""
        return f"tl.full((BLOCK,), {literal(value, kind)}, {self.type_of(kind)})"

    def value(self, expr: Expr) -> str:
        """The text of a vector; statements that it needs are added first."""
        self.shared = Counter()
        self._count(expr)
        return self._tensor(expr)

    def _count(self, expr: Expr) -> None:
        self.shared[expr] += 1
        if self.shared[expr] == 1 and not isinstance(expr, ir.Reduce):
            for child in ir.children(expr):
                self._count(child)

    def _tensor(self, expr: Expr) -> str:
        """A vector, also of a constant."""
        return self.full(expr.value, expr.kind) if isinstance(expr, ir.Const) else self.text(expr)

    def text(self, expr: Expr) -> str:
        """An atom: a name, a number, a call or something in brackets."""
        found = self.known.get((self.mask, expr)) or self.known.get(("", expr))
        if found is not None:
            return found
        match expr:
            case ir.Const(value, kind):
                return literal(value, kind)
            case ir.Linear():
                return self._linear(expr)
            case ir.Div(value, by):
                return f"({self.text(value)} // {by})"
            case ir.Mod(value, by):
                return f"({self.text(value)} % {by})"
            case ir.ReadElement():
                return self._kept(expr, self._load(expr), "v")
            case ir.Reduce():
                return self._kept(expr, self._reduce(expr), "")
            case ir.Guard():
                return self._kept(expr, self._guard(expr), "v")
            case ir.Apply():
                text = self._call(expr)
                return self._kept(expr, text, "v") if self.shared[expr] > 1 and expr.function != "cast" else text
            case _:
                raise TypeError(f"a loop variable that no loop declares: {expr!r}")

    def _kept(self, expr: Expr, text: str, hint: str) -> str:
        name = text
        if hint:
            name = self.name(hint)
            self.add_line(f"{name} = {text}")
        self.known[self.mask, expr] = name
        return name

    def _linear(self, expr: ir.Linear) -> str:
        parts = [self.text(part) if factor == 1 else f"{self.text(part)} * {factor}" for part, factor in expr.terms]
        if not parts:
            return self.full(expr.constant, Kind.INDEX)
        parts += [str(expr.constant)] if expr.constant else []
        return parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' + '.join(parts)})"

    def _load(self, expr: ir.ReadElement) -> str:
        held = self.buffers[expr.buffer]
        if held.place == "table":
            return self._selected(held, expr)
        name = parameter(held.name) if held.place == "operand" else held.name
        # Triton does not convert an integer to an eight-bit float.
        nothing = "0.0" if held.place == "operand" and held.dtype.startswith("float8") else "0"
        text = f"tl.load({name} + {self.text(expr.offset)}, mask={self.mask}, other={nothing})"
        if expr.kind is Kind.BOOL:
            return f"{text} != 0"
        plain = {Kind.FLOAT: "float32", Kind.DOUBLE: "float64", Kind.LONG: "int64"}
        stored = held.dtype if held.place == "operand" else STORED[stored_type(held)]
        return text if plain.get(expr.kind) == stored else f"{text}.to({self.type_of(expr.kind)})"

    def _selected(self, table: Buffer, expr: ir.ReadElement) -> str:
        if len(table.values) > MAX_TABLE:
            raise NotLowered(
                f"a constant tensor of {len(table.values)} values", "write it by hand with --empty, or use --dialect cuda"
            )
        place = self.name("at")
        self.add_line(f"{place} = {self.text(expr.offset)}")
        text = self.full(table.values[0] if table.values else 0, expr.kind)
        for index, value in enumerate(table.values[1:], 1):
            text = f"tl.where({place} == {index}, {literal(value, expr.kind)}, {text})"
        return f"{text} != 0" if expr.kind is Kind.BOOL else f"({text}).to({self.type_of(expr.kind)})"

    def _guard(self, expr: ir.Guard) -> str:
        outer = self.mask
        tests = " & ".join(self.text(condition) for condition in expr.conditions)
        tested = self.name("inside")
        self.add_line(f"{tested} = {outer} & {tests}")
        self.mask = tested
        value = self._tensor(expr.value)
        self.mask = outer
        return f"tl.where({tested}, {value}, {self._tensor(expr.other)})"

    def _call(self, expr: ir.Apply) -> str:
        function, arguments = expr.function, expr.arguments
        if function == "cast":
            return self._cast(expr)
        if function == "where":
            tested, yes, no = arguments
            return f"tl.where({self._tensor(tested)}, {self._tensor(yes)}, {self._tensor(no)})"
        texts = [self.text(a) for a in arguments]
        if all(isinstance(a, ir.Const) for a in arguments):
            texts[0] = self._tensor(arguments[0])
        if function in _INFIX:
            mark = "//" if function == "div" and expr.kind is Kind.LONG else _INFIX[function]
            return f"({texts[0]} {mark} {texts[1]})"
        if function == "neg":
            return f"(-{texts[0]})"
        if function == "logical_not":
            return f"({texts[0]} == 0)"
        if function == "bitwise_not":
            return f"(~{texts[0]})"
        whole = expr.kind is Kind.LONG
        if whole and function in ("floor", "ceil", "round", "trunc"):
            return texts[0]
        if whole and function == "fmod":
            return f"({texts[0]} % {texts[1]})"
        if function == "remainder":
            function = "whole_remainder" if whole else "floor_remainder"
        if function in _PLAIN:
            return f"{_PLAIN[function]}({', '.join(texts)})"
        if function not in _HELPERS or (whole and function in ("pow", "sign")):
            raise NotLowered(f"the function {function}, which Triton lacks")
        self.helpers.add(function)
        # Helpers take vectors: a number alone would be a Python value inside them.
        vectors = [self._tensor(a) if isinstance(a, ir.Const) else text for a, text in zip(arguments, texts, strict=True)]
        return f"{function}({', '.join(vectors)})"

    def _cast(self, expr: ir.Apply) -> str:
        inner = expr.arguments[0]
        if expr.kind is Kind.BOOL:
            return f"({self._tensor(inner)} != 0)"
        return f"{self._tensor(inner)}.to({self.type_of(expr.kind)})"

    def _reduce(self, expr: ir.Reduce) -> str:
        """Add the loops of a reduction; returns the text of its result."""
        positional = expr.op.startswith("arg")
        total = self.name("best" if positional else "acc")
        kind = Kind.DOUBLE if expr.wide else expr.body.kind
        kind = Kind.LONG if kind is Kind.INDEX else kind
        at = self.name("at") if positional else ""
        self.add_line(f"{total} = {self.full(ir.identity(expr.op.removeprefix('arg'), kind), kind)}")
        if at:
            self.add_line(f"{at} = {self.full(-1, Kind.LONG)}")
        scope = (dict(self.known), self.shared, self.indent)
        for loop in (loop for loop in expr.variables if loop.extent != 1):
            name = self.open_loop(loop)
            self.declare(loop, name)
        self._accumulate(expr, kind, total, at)
        self.known, self.shared, self.indent = scope
        if at:
            return at
        return total if kind is expr.kind else f"{total}.to({self.type_of(expr.kind)})"

    def open_loop(self, loop: Var) -> str:
        """Start a serial loop; returns the name of its variable, a vector of the index type."""
        count, name = self.name("step"), self.name(loop.name.partition("#")[0])
        self.add_line(f"for {count} in range({loop.extent}):")
        self.indent += 1
        self.add_line(f"{name} = {self.full(0, Kind.INDEX)} + {count}")
        return name

    def _accumulate(self, expr: ir.Reduce, kind: Kind, total: str, at: str) -> None:
        body = self.value(expr.body)
        if kind is not expr.body.kind:
            body = f"{body}.to({self.type_of(kind)})"
        match expr.op:
            case "sum" | "prod":
                self.add_line(f"{total} = {total} {'+' if expr.op == 'sum' else '*'} {body}")
            case "any" | "all":
                self.add_line(f"{total} = {total} {'|' if expr.op == 'any' else '&'} {body}")
            case "max" | "min":
                helper = f"{expr.op}imum"
                self.helpers.add(helper)
                self.add_line(f"{total} = {helper}({total}, {body})")
            case _:
                value, better = self.name("value"), self.name("better")
                mark = ">" if expr.op == "argmax" else "<"
                loops = [ir.as_index(loop) for loop in expr.variables]
                place = self.text(ir.flatten(loops, [loop.extent for loop in expr.variables]))
                self.add_line(f"{value} = {body}")
                self.add_line(
                    f"{better} = ({at} < 0) | ({value} {mark} {total}) | (({value} != {value}) & ({total} == {total}))"
                )
                self.add_line(f"{total} = tl.where({better}, {value}, {total})")
                self.add_line(f"{at} = tl.where({better}, {place}, {at}).to(tl.int64)")
