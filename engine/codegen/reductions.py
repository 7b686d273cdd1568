"""Lowerings of ATen reductions: sums, extremes, means, variances, vector norms and scans.

Long reductions into few results are done in two steps, so that no thread accumulates millions of elements; other long float32
sums are accumulated in double. Registers itself with ``lowering``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind
from engine.codegen.lowering import Lowered, LoweringContext, Value, kind_of, lowers
from engine.codegen.pointwise import at, call, combine, integers, number, tensor
from engine.codegen.views import positive_dim, reshape

MAX_FLOAT_PRODUCTS = 256
"""Longer float32 sums of products are accumulated in double."""
MAX_FLOAT_TERMS = 16
"""Longer float32 sums of other terms, often all of one sign, are accumulated in double."""
MAX_SERIAL_TERMS = 4096
"""Longer reductions into few results are done in two steps."""
MANY_RESULTS = 16384
"""From this many results on, a reduction is parallel enough in one step."""

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operation along some dimensions; ``dtype`` is the result's."""

    op: str
    dims: tuple[int, ...]
    keep: bool
    dtype: str


def axes(dims: Lowered, rank: int) -> tuple[int, ...]:
    """The dimensions to reduce, non-negative and sorted; all of them if none are given."""
    if dims is None or dims == ():
        return tuple(range(rank))
    return tuple(sorted(positive_dim(d, rank) for d in integers(dims))) if rank else ()


def reduce_dims(cx: LoweringContext, value: Value, reduction: Reduction) -> Value:
    """The reduced tensor; its element function contains the loop."""
    cx.store_if_loop(value)
    terms = math.prod(value.shape[d] for d in reduction.dims)
    results = value.numel // max(terms, 1)
    kind = value.kind if reduction.op in ("max", "min", "any", "all") else kind_of(reduction.dtype)
    if terms > MAX_SERIAL_TERMS and results < MANY_RESULTS and not reduction.op.startswith("arg"):
        return _in_two_steps(cx, value, reduction)
    long = value.kind is Kind.DOUBLE or (terms > MAX_FLOAT_TERMS and reduction.dtype not in HALVES)
    wide = kind is Kind.FLOAT and reduction.op in ("sum", "prod") and long
    left = [d for d in range(len(value.shape)) if d not in reduction.dims]
    shape = tuple(
        1 if d in reduction.dims else e for d, e in enumerate(value.shape) if reduction.keep or d not in reduction.dims
    )

    def load(index: Index) -> Expr:
        outer = index if not reduction.keep else tuple(index[d] for d in left)
        loops = {d: cx.loop("r", value.shape[d]) for d in reduction.dims}
        own = {**dict(zip(left, outer, strict=True)), **{d: ir.as_index(loop) for d, loop in loops.items()}}
        body = value.load(tuple(own[d] for d in range(len(value.shape))))
        loop_vars = tuple(loops.values())
        if reduction.op.startswith("arg"):
            return ir.Reduce(reduction.op, loop_vars, body, Kind.LONG)
        inner = Kind.BOOL if reduction.op in ("any", "all") else Kind.DOUBLE if wide and value.kind is Kind.DOUBLE else kind
        result = Kind.BOOL if inner is Kind.BOOL else kind
        return ir.Reduce(reduction.op, loop_vars, ir.cast(body, inner), result, wide)

    return Value(shape, reduction.dtype, load, (*value.operators, cx.operator))


def _in_two_steps(cx: LoweringContext, value: Value, reduction: Reduction) -> Value:
    """Reduce the last dimensions, or chunks of a long last one, into the workspace; then reduce the rest."""
    long = [d for d in reduction.dims if value.shape[d] > 1]
    exact = reduction.op in ("sum", "prod") and kind_of(reduction.dtype) is Kind.FLOAT
    dtype = "float64" if exact else reduction.dtype
    if value.shape[long[-1]] > MAX_SERIAL_TERMS:
        cut = _split_dim(value, long[-1], reduction.op)
        inner: tuple[int, ...] = (long[-1] + 1,)
    else:
        cut, inner = value, (long[-1],)
        for dim in reversed(long[:-1]):
            if math.prod(value.shape[d] for d in (*inner, dim)) > MAX_SERIAL_TERMS:
                break
            inner = (dim, *inner)
    first = cx.store(reduce_dims(cx, cut, Reduction(reduction.op, inner, keep=True, dtype=dtype)))
    if cut is not value:
        first = reshape(first, (*first.shape[: inner[0]], *first.shape[inner[0] + 1 :]))
    return reduce_dims(cx, first, reduction)


def _split_dim(value: Value, dim: int, op: str) -> Value:
    """Split a dimension into chunks and positions within them, padded with the identity element."""
    extent = value.shape[dim]
    size = 2 ** math.ceil(math.log2(math.sqrt(extent)))
    shape = (*value.shape[:dim], -(-extent // size), size, *value.shape[dim + 1 :])
    neutral = ir.constant(ir.identity(op, value.kind), value.kind)

    def load(index: Index) -> Expr:
        own = ir.add(ir.scale(index[dim], size), index[dim + 1])
        element = value.load((*index[:dim], own, *index[dim + 2 :]))
        return ir.guard(ir.in_range(own, 0, extent), element, neutral)

    return Value(shape, value.dtype, load, value.operators)


@lowers("sum", "prod", "amax", "amin", "any", "all")
def lower_reduction(cx: LoweringContext, x: Lowered, dim: Lowered = None, keepdim: Lowered = False, **_: Lowered) -> Lowered:
    source = tensor(x)
    op = {"amax": "max", "amin": "min"}.get(cx.operator, cx.operator)
    return reduce_dims(cx, source, Reduction(op, axes(dim, len(source.shape)), bool(keepdim), cx.result.dtype))


def divide_by(value: Value, by: float) -> Value:
    """Every element divided by a number."""
    return Value(
        value.shape,
        value.dtype,
        lambda index: call("div", value.load(index), ir.constant(by, value.kind)),
        value.operators,
    )


def mean_of(cx: LoweringContext, value: Value, dims: tuple[int, ...], dtype: str, *, keep: bool) -> Value:
    """The mean along dimensions."""
    terms = math.prod(value.shape[d] for d in dims)
    return divide_by(reduce_dims(cx, value, Reduction("sum", dims, keep, dtype)), terms)


@lowers("mean")
def mean(cx: LoweringContext, x: Lowered, dim: Lowered = None, keepdim: Lowered = False, **_: Lowered) -> Lowered:
    source = tensor(x)
    return mean_of(cx, source, axes(dim, len(source.shape)), cx.result.dtype, keep=bool(keepdim))


def variance(cx: LoweringContext, value: Value, dims: tuple[int, ...], correction: float, *, keep: bool) -> tuple[Value, Value]:
    """Variance and mean, in two passes: the mean, then the sum of squared differences from it."""
    if cx.is_expensive(value):
        cx.store(value)
    centre = cx.store(mean_of(cx, value, dims, value.dtype, keep=True))
    terms = math.prod(value.shape[d] for d in dims)

    def load(index: Index) -> Expr:
        return call("square", call("sub", value.load(index), at(centre, index)))

    squares = Value(value.shape, value.dtype, load, value.operators)
    total = reduce_dims(cx, squares, Reduction("sum", dims, keep, value.dtype))
    shape = total.shape
    return divide_by(total, max(terms - correction, 0.0)), reshape(centre, shape)


@lowers("var", "std", "var_mean", "std_mean")
def var(
    cx: LoweringContext,
    x: Lowered,
    dim: Lowered = None,
    correction: Lowered = None,
    keepdim: Lowered = False,
    unbiased: Lowered = True,
) -> Lowered:
    source = tensor(x)
    by = (1.0 if unbiased else 0.0) if correction is None else float(number(correction))
    value, centre = variance(cx, source, axes(dim, len(source.shape)), by, keep=bool(keepdim))
    if cx.operator.startswith("std"):
        spread = value
        value = Value(spread.shape, spread.dtype, lambda index: call("sqrt", spread.load(index)), spread.operators)
    return (value, centre) if cx.operator.endswith("mean") else value


@lowers("linalg_vector_norm", "norm")
def vector_norm(
    cx: LoweringContext,
    x: Lowered,
    ord: Lowered = None,
    dim: Lowered = None,
    keepdim: Lowered = False,
    p: Lowered = None,
    **_: Lowered,
) -> Lowered:
    source = tensor(x)
    order = next((float(number(v)) for v in (ord, p) if v is not None), 2.0)
    dims, dtype = axes(dim, len(source.shape)), cx.result.dtype
    return norm_of(cx, source, Reduction("sum", dims, bool(keepdim), dtype), order)


def norm_of(cx: LoweringContext, source: Value, reduction: Reduction, order: float) -> Value:
    """The vector norm of an order along dimensions."""
    op = {math.inf: "max", -math.inf: "min"}.get(order, "sum")

    def inner(e: Expr) -> Expr:
        match order:
            case 2.0:
                return call("square", e)
            case 0.0:
                return ir.cast(call("ne", e, ir.constant(0, e.kind), kind=Kind.BOOL), e.kind)
            case 1.0 | math.inf:
                return call("abs", e)
            case _:
                magnitude = call("abs", e)
                return magnitude if op != "sum" else call("pow", magnitude, ir.constant(order, e.kind))

    def outer(e: Expr) -> Expr:
        match order:
            case 2.0:
                return call("sqrt", e)
            case _ if op != "sum" or order in (0.0, 1.0):
                return e
            case _:
                return call("pow", e, ir.constant(1.0 / order, e.kind))

    cx.store_if_loop(source)
    parts = Value(source.shape, source.dtype, lambda index: inner(source.load(index)), source.operators)
    total = reduce_dims(cx, parts, Reduction(op, reduction.dims, reduction.keep, reduction.dtype))
    return Value(total.shape, total.dtype, lambda index: outer(total.load(index)), total.operators)


@lowers("argmax", "argmin")
def arg(cx: LoweringContext, x: Lowered, dim: Lowered = None, keepdim: Lowered = False) -> Lowered:
    source = tensor(x)
    return reduce_dims(cx, source, Reduction(cx.operator, axes(dim, len(source.shape)), bool(keepdim), "int64"))


@lowers("max", "min")
def extreme(cx: LoweringContext, x: Lowered, dim: Lowered = None, keepdim: Lowered = False, other: Lowered = None) -> Lowered:
    source = tensor(x)
    op = cx.operator
    if other is not None:
        return combine(cx, lambda a, b: call(f"{op}imum", a, b), source, other)
    if cx.is_expensive(source) and dim is not None:
        cx.store(source)
    dims = axes(dim, len(source.shape))
    values = reduce_dims(cx, source, Reduction(op, dims, bool(keepdim), source.dtype))
    if dim is None:
        return values
    return values, reduce_dims(cx, source, Reduction(f"arg{op}", dims, bool(keepdim), "int64"))


@lowers("cumsum", "cumprod")
def scan(cx: LoweringContext, x: Lowered, dim: Lowered, **_: Lowered) -> Lowered:
    source = cx.store_if_loop(tensor(x))
    shape, kind = source.shape, kind_of(cx.result.dtype)
    if not shape:
        return source
    axis = positive_dim(int(number(dim)), len(shape))
    order = [d for d in range(len(shape)) if d != axis] + [axis]
    loops = {d: cx.loop(f"i{d}", shape[d]) for d in order}
    index = tuple(ir.as_index(loops[d]) for d in range(len(shape)))
    target = cx.scratch(cx.result.dtype, source.numel)
    result = Value(shape, cx.result.dtype, source.load, (*source.operators, cx.operator))
    serial = tuple(loops[d] for d in order if shape[d] != 1 or d == axis)
    body = ir.cast(source.load(index), kind)
    cx.emit(result, target, serial, ir.flatten(index, shape), body, cx.operator.removeprefix("cum"))
    cx.read_from(result, target)
    return result
