"""What ATen's normalisations mean that are read whole: softmax in its variants, and group norm.

Registers itself in naive_lower's table.
"""

from __future__ import annotations

import math

from engine.build import naive_ir as ir
from engine.build.naive_ir import Expr, Index, Kind
from engine.build.naive_lower import Context, Lowered, Value, kind_of, lowers
from engine.build.naive_pointwise import at, call, number, tensor
from engine.build.naive_reduce import Reduction, reduced, variance
from engine.build.naive_views import place, reshape


@lowers("native_group_norm")
def group_norm(cx: Context, x: Lowered, weight: Lowered, bias: Lowered, group: Lowered, eps: Lowered, **_: Lowered) -> Lowered:
    source = tensor(x)
    groups = int(number(group))
    batch, channels = source.shape[:2]
    rest = math.prod(source.shape[2:])
    grouped = reshape(source, (batch, groups, channels // groups, rest))
    spread, centre = variance(cx, grouped, (2, 3), True, 0.0)
    small = ir.constant(number(eps), source.kind)
    scale = cx.store(
        Value(
            spread.shape,
            spread.dtype,
            lambda index: call("rsqrt", call("add", spread.load(index), small)),
            spread.story,
        )
    )

    def load(index: Index) -> Expr:
        return call("mul", call("sub", grouped.load(index), at(centre, index)), at(scale, index))

    normal = reshape(Value(grouped.shape, source.dtype, load), source.shape)
    affine = (None if v is None else tensor(v) for v in (weight, bias))
    return _affine(normal, *affine), None, None


def _affine(normal: Value, weight: Value | None, bias: Value | None) -> Value:
    """A factor and an offset per channel."""

    def load(index: Index) -> Expr:
        element = normal.load(index)
        if weight is not None:
            element = call("mul", element, ir.cast(weight.load((index[1],)), element.kind))
        return element if bias is None else call("add", element, ir.cast(bias.load((index[1],)), element.kind))

    return Value(normal.shape, normal.dtype, load)


@lowers("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(cx: Context, x: Lowered, dim: Lowered, **_: Lowered) -> Lowered:
    """Subtract the largest element, then divide by the sum of exponentials (or subtract its logarithm)."""
    source, kind, variant = tensor(x), kind_of(cx.result.dtype), cx.operator
    if not source.shape:
        source = reshape(source, (1,))
    if cx.costly(source):
        cx.store(source)
    axis = (place(int(number(dim)), len(source.shape)),)
    dtype = "float64" if kind is Kind.DOUBLE else "float32"
    top = cx.store(reduced(cx, source, Reduction("max", axis, True, dtype)))
    floor = ir.constant(-math.inf, kind)

    def shifted(index: Index) -> Expr:
        return call("sub", ir.cast(source.load(index), kind), ir.cast(at(top, index), kind))

    powers = Value(source.shape, dtype, lambda index: call("exp", shifted(index)))
    total = cx.store(reduced(cx, powers, Reduction("sum", axis, True, dtype)))

    def load(index: Index) -> Expr:
        if "log" in variant:
            return call("sub", shifted(index), call("log", at(total, index)))
        share = call("div", call("exp", shifted(index)), at(total, index))
        if variant != "_safe_softmax":
            return share
        empty = call("eq", at(top, index), floor, kind=Kind.BOOL)
        return call("where", empty, ir.constant(0, kind), share, kind=kind)

    return reshape(Value(source.shape, cx.result.dtype, load), cx.result.shape)
