"""Lowerings of ATen elementwise operators, with broadcasting and type promotion, and of constants and ranges.

Half floats and float32 are computed in float32, integers in int64. Registers itself with ``lowering``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind
from engine.codegen.lowering import Lowered, LoweringContext, NotLowered, Value, kind_of, lowers

UNARY = (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc sigmoid relu silu floor ceil round trunc sign reciprocal logical_not bitwise_not isnan isinf lgamma square"
).split()
BINARY = (
    "maximum minimum fmod remainder atan2 hypot copysign logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
).split()
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("logical_not", "logical_and", "logical_or", "logical_xor", "isnan", "isinf")


def number(value: Lowered) -> bool | int | float:
    """A scalar argument; NotLowered for anything else."""
    if not isinstance(value, bool | int | float):
        raise NotLowered(f"a number that is not known before the kernel runs ({value!r})")
    return value


def tensor(value: Lowered) -> Value:
    """A tensor argument; NotLowered for anything else."""
    if not isinstance(value, Value):
        raise NotLowered(f"an operator that wants a tensor and was given {value!r}")
    return value


def integers(value: Lowered) -> tuple[int, ...]:
    """A list of integers, or a single one."""
    return tuple(int(number(v)) for v in value) if isinstance(value, tuple) else (int(number(value)),)


def full(shape: tuple[int, ...], value: bool | int | float, dtype: str) -> Value:
    """A tensor of one value."""
    kind = kind_of(dtype)
    return Value(shape, dtype, lambda index: ir.constant(value, kind))


def at(value: Value, index: Index) -> Expr:
    """The element that broadcasts to ``index`` of a larger shape."""
    own = index[len(index) - len(value.shape) :]
    return value.load(tuple(i if extent != 1 else ir.constant_index(0) for i, extent in zip(own, value.shape, strict=True)))


def broadcast(cx: LoweringContext, value: Value, shape: tuple[int, ...]) -> Value:
    """The value, stored first where broadcasting would recompute an expensive element."""
    if value.numel < math.prod(shape) and cx.is_expensive(value):
        cx.store(value)
    return value


def promoted(*values: Lowered) -> Kind:
    """The kind that values are promoted to for a comparison."""
    kinds = [v.kind for v in values if isinstance(v, Value)]
    if any(isinstance(v, float) for v in values) and Kind.DOUBLE not in kinds:
        kinds.append(Kind.FLOAT)
    order = (Kind.DOUBLE, Kind.FLOAT, Kind.LONG)
    return next((kind for kind in order if kind in kinds), Kind.LONG)


def combine(
    cx: LoweringContext, compute: Callable[..., Expr], *values: Lowered, kind: Kind | None = None, dtype: str | None = None
) -> Value:
    """An elementwise result of the current node's type: ``compute`` of the arguments' elements, cast to ``kind``."""
    shape, result = cx.result.shape, dtype or cx.result.dtype
    kind = kind or kind_of(result)
    parts = [broadcast(cx, v, shape) if isinstance(v, Value) else number(v) for v in values]

    def load(index: Index) -> Expr:
        elements = [ir.cast(at(part, index), kind) if isinstance(part, Value) else ir.constant(part, kind) for part in parts]
        return ir.cast(compute(*elements), kind_of(result))

    return Value(shape, result, load)


def call(function: str, *arguments: Expr, kind: Kind | None = None) -> Expr:
    """A function call, by default of its first argument's kind."""
    return ir.Apply(function, arguments, kind or arguments[0].kind)


def _unary(name: str) -> None:
    @lowers(name)
    def lowered(cx: LoweringContext, x: Lowered) -> Lowered:
        source = tensor(x)
        if name in LOGICAL:
            return combine(cx, lambda e: call(name, e, kind=Kind.BOOL), source, kind=source.kind)
        if name == "bitwise_not" and source.kind is Kind.BOOL:
            return combine(cx, lambda e: call("logical_not", e), source)
        return combine(cx, lambda e: call(name, e), source)


for _name in UNARY:
    _unary(_name)


def _binary(name: str) -> None:
    @lowers(name)
    def lowered(cx: LoweringContext, x: Lowered, other: Lowered) -> Lowered:
        if name.startswith("logical"):
            return combine(cx, lambda a, b: call(name, a, b), x, other, kind=Kind.BOOL)
        return combine(cx, lambda a, b: call(name, a, b), x, other)


for _name in BINARY:
    _binary(_name)


def _comparison(name: str) -> None:
    @lowers(name)
    def lowered(cx: LoweringContext, x: Lowered, other: Lowered) -> Lowered:
        return combine(cx, lambda a, b: call(name, a, b, kind=Kind.BOOL), x, other, kind=promoted(x, other))


for _name in COMPARISONS:
    _comparison(_name)


@lowers("pow")
def power(cx: LoweringContext, x: Lowered, exponent: Lowered) -> Lowered:
    """Small integer powers become products."""
    if exponent in (2, 2.0) and isinstance(x, Value):
        return combine(cx, lambda a: call("square", a), x)
    if exponent == 0.5 and isinstance(x, Value):
        return combine(cx, lambda a: call("sqrt", a), x)
    return combine(cx, lambda a, b: call("pow", a, b), x, exponent)


@lowers("add", "sub", "rsub", "subtract")
def add(cx: LoweringContext, x: Lowered, other: Lowered, alpha: Lowered = 1) -> Lowered:
    name = cx.operator
    first, second = (other, x) if name == "rsub" else (x, other)
    function = "add" if name == "add" else "sub"
    kind = kind_of(cx.result.dtype)
    if kind is Kind.BOOL:
        return combine(cx, lambda a, b: call("logical_or", a, b), x, other)
    factor = number(alpha)

    def compute(a: Expr, b: Expr) -> Expr:
        if factor == 1:
            return call(function, a, b)
        scaled = ir.constant(factor, kind)
        return call(function, call("mul", a, scaled), b) if name == "rsub" else call(function, a, call("mul", b, scaled))

    def swapped(a: Expr, b: Expr) -> Expr:
        return call("sub", a, call("mul", b, ir.constant(factor, kind)))

    return combine(cx, swapped if name == "rsub" and factor != 1 else compute, first, second)


@lowers("mul", "multiply")
def multiply(cx: LoweringContext, x: Lowered, other: Lowered) -> Lowered:
    if cx.result.dtype == "bool":
        return combine(cx, lambda a, b: call("logical_and", a, b), x, other)
    return combine(cx, lambda a, b: call("mul", a, b), x, other)


@lowers("div", "divide", "true_divide", "floor_divide")
def divide(cx: LoweringContext, x: Lowered, other: Lowered, rounding_mode: Lowered = None) -> Lowered:
    mode = "floor" if cx.operator == "floor_divide" else rounding_mode
    integral = kind_of(cx.result.dtype) is Kind.LONG

    def compute(a: Expr, b: Expr) -> Expr:
        if integral:
            return call("floor_divide" if mode == "floor" else "div", a, b)
        quotient = call("div", a, b)
        return call(str(mode), quotient) if mode in ("floor", "trunc") else quotient

    return combine(cx, compute, x, other)


@lowers("identity", "_to_copy", "to", "convert_element_type", "lift_fresh_copy", "lift_fresh", "clone", "alias", "detach")
def copy(cx: LoweringContext, x: Lowered, **_: Lowered) -> Lowered:
    source = tensor(x)
    if cx.result.dtype == source.dtype:
        return source
    return combine(cx, lambda e: e, source, kind=source.kind)


@lowers("copy")
def overwritten(cx: LoweringContext, x: Lowered, src: Lowered, **_: Lowered) -> Lowered:
    """A functional ``copy_``: the source's values in the target's shape and dtype."""
    source = tensor(src)
    return combine(cx, lambda e: e, source, kind=source.kind)


@lowers("where")
def where(cx: LoweringContext, condition: Lowered, x: Lowered, other: Lowered) -> Lowered:
    kind = kind_of(cx.result.dtype)
    return combine_mixed(cx, ("where", kind), (condition, Kind.BOOL), (x, kind), (other, kind))


@lowers("masked_fill")
def masked_fill(cx: LoweringContext, x: Lowered, mask: Lowered, value: Lowered) -> Lowered:
    return where(cx, condition=mask, x=value, other=x)


def combine_mixed(cx: LoweringContext, function: tuple[str, Kind], *values: tuple[Lowered, Kind]) -> Value:
    """``combine`` for a function whose arguments have different kinds."""
    shape = cx.result.shape
    parts = [(broadcast(cx, v, shape) if isinstance(v, Value) else number(v), kind) for v, kind in values]

    def load(index: Index) -> Expr:
        elements = [
            ir.cast(at(part, index), kind) if isinstance(part, Value) else ir.constant(part, kind) for part, kind in parts
        ]
        return call(function[0], *elements, kind=function[1])

    return Value(shape, cx.result.dtype, load)


@lowers("clamp", "clamp_min", "clamp_max", "hardtanh", "clip")
def clamp(
    cx: LoweringContext,
    x: Lowered,
    min: Lowered = None,
    max: Lowered = None,
    min_val: Lowered = None,
    max_val: Lowered = None,
) -> Lowered:
    low, high = (min_val if min is None else min), (max_val if max is None else max)
    value = tensor(x)
    if low is not None:
        value = combine(cx, lambda a, b: call("maximum", a, b), value, low)
    if high is not None:
        value = combine(cx, lambda a, b: call("minimum", a, b), value, high)
    return value


@lowers("gelu")
def gelu(cx: LoweringContext, x: Lowered, approximate: Lowered = "none") -> Lowered:
    return combine(cx, lambda e: call("gelu_tanh" if approximate == "tanh" else "gelu", e), x)


@lowers("elu")
def elu(cx: LoweringContext, x: Lowered, alpha: Lowered = 1.0, scale: Lowered = 1.0, input_scale: Lowered = 1.0) -> Lowered:
    return combine(cx, lambda e, a, s, i: call("elu", e, a, s, i), x, alpha, scale, input_scale)


@lowers("leaky_relu")
def leaky_relu(cx: LoweringContext, x: Lowered, negative_slope: Lowered = 0.01) -> Lowered:
    return combine(cx, lambda e, slope: call("leaky_relu", e, slope), x, negative_slope)


@lowers("prelu", "_prelu_kernel")
def prelu(cx: LoweringContext, x: Lowered, weight: Lowered) -> Lowered:
    return combine(cx, lambda e, slope: call("leaky_relu", e, slope), x, weight)


@lowers("addcmul", "addcdiv")
def addc(cx: LoweringContext, x: Lowered, tensor1: Lowered, tensor2: Lowered, value: Lowered = 1) -> Lowered:
    function = "mul" if cx.operator == "addcmul" else "div"
    return combine(
        cx,
        lambda a, b, c, v: call("add", a, call("mul", v, call(function, b, c))),
        x,
        tensor1,
        tensor2,
        value,
    )


@lowers("lerp")
def lerp(cx: LoweringContext, x: Lowered, end: Lowered, weight: Lowered) -> Lowered:
    return combine(cx, lambda a, b, w: call("add", a, call("mul", w, call("sub", b, a))), x, end, weight)


@lowers("full", "full_like", "new_full", "scalar_tensor")
def filled(cx: LoweringContext, fill_value: Lowered = None, s: Lowered = None, **_: Lowered) -> Lowered:
    value = s if fill_value is None else fill_value
    return full(cx.result.shape, number(value), cx.result.dtype)


@lowers("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted", "empty_strided")
def zeros(cx: LoweringContext, **_: Lowered) -> Lowered:
    return full(cx.result.shape, 0, cx.result.dtype)


@lowers("ones", "ones_like", "new_ones")
def ones(cx: LoweringContext, **_: Lowered) -> Lowered:
    return full(cx.result.shape, 1, cx.result.dtype)


@lowers("fill")
def fill(cx: LoweringContext, x: Lowered, value: Lowered) -> Lowered:
    return combine(cx, lambda e: e, value)


@lowers("arange")
def arange(cx: LoweringContext, start: Lowered = 0, end: Lowered = None, step: Lowered = 1, **_: Lowered) -> Lowered:
    kind = kind_of(cx.result.dtype)
    first, by = number(start), number(step)

    def load(index: Index) -> Expr:
        if kind is Kind.LONG:
            return ir.cast(ir.shift(ir.scale(index[0], int(by)), int(first)), kind)
        place = ir.cast(index[0], kind)
        return call("add", call("mul", place, ir.constant(by, kind)), ir.constant(first, kind))

    return Value(cx.result.shape, cx.result.dtype, load)


@lowers("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
def bit_shift(cx: LoweringContext, x: Lowered, other: Lowered) -> Lowered:
    function = "shift_left" if cx.operator in ("bitwise_left_shift", "__lshift__") else "shift_right"
    return combine(cx, lambda a, b: call(function, a, b), x, other)
