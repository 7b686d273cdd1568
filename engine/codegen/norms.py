"""Lowerings of ATen normalisations that PyTorch does not decompose: softmax in its variants, and group norm.

Registers itself with ``lowering``.
"""

from __future__ import annotations

import math

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind
from engine.codegen.lowering import Lowered, LoweringContext, Value, kind_of, lowers
from engine.codegen.pointwise import at, call, number, tensor
from engine.codegen.reductions import Reduction, reduce_dims, variance
from engine.codegen.views import positive_dim, reshape


@lowers("native_group_norm")
def group_norm(
    cx: LoweringContext, x: Lowered, weight: Lowered, bias: Lowered, group: Lowered, eps: Lowered, **_: Lowered
) -> Lowered:
    source = tensor(x)
    groups = int(number(group))
    batch, channels = source.shape[:2]
    rest = math.prod(source.shape[2:])
    grouped = reshape(source, (batch, groups, channels // groups, rest))
    spread, centre = variance(cx, grouped, (2, 3), 0.0, keep=True)
    small = ir.constant(number(eps), source.kind)
    scale = cx.store(
        Value(
            spread.shape,
            spread.dtype,
            lambda index: call("rsqrt", call("add", spread.load(index), small)),
            spread.operators,
        )
    )

    def load(index: Index) -> Expr:
        return call("mul", call("sub", grouped.load(index), at(centre, index)), at(scale, index))

    normal = reshape(Value(grouped.shape, source.dtype, load), source.shape)
    affine = (None if v is None else tensor(v) for v in (weight, bias))
    return _affine(normal, *affine), None, None


def _affine(normal: Value, weight: Value | None, bias: Value | None) -> Value:
    """Scale and bias per channel."""

    def load(index: Index) -> Expr:
        element = normal.load(index)
        if weight is not None:
            element = call("mul", element, ir.cast(weight.load((index[1],)), element.kind))
        return element if bias is None else call("add", element, ir.cast(bias.load((index[1],)), element.kind))

    return Value(normal.shape, normal.dtype, load)


@lowers("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(cx: LoweringContext, x: Lowered, dim: Lowered, **_: Lowered) -> Lowered:
    """Subtract the largest element, then divide by the sum of exponentials (or subtract its logarithm)."""
    source, kind, variant = tensor(x), kind_of(cx.result.dtype), cx.operator
    if not source.shape:
        source = reshape(source, (1,))
    if cx.is_expensive(source):
        cx.store(source)
    axis = (positive_dim(int(number(dim)), len(source.shape)),)
    dtype = "float64" if kind is Kind.DOUBLE else "float32"
    top = cx.store(reduce_dims(cx, source, Reduction("max", axis, keep=True, dtype=dtype)))
    floor = ir.constant(-math.inf, kind)

    def shifted(index: Index) -> Expr:
        return call("sub", ir.cast(source.load(index), kind), ir.cast(at(top, index), kind))

    powers = Value(source.shape, dtype, lambda index: call("exp", shifted(index)))
    total = cx.store(reduce_dims(cx, powers, Reduction("sum", axis, keep=True, dtype=dtype)))

    def load(index: Index) -> Expr:
        if "log" in variant:
            return call("sub", shifted(index), call("log", at(total, index)))
        share = call("div", call("exp", shifted(index)), at(total, index))
        if variant != "_safe_softmax":
            return share
        empty = call("eq", at(top, index), floor, kind=Kind.BOOL)
        return call("where", empty, ir.constant(0, kind), share, kind=kind)

    return reshape(Value(source.shape, cx.result.dtype, load), cx.result.shape)
