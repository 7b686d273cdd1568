"""What ATen's reductions mean: sums, extremes, means, variances, vector norms and running sums.

Long sums into few results are cut into partial ones, so that no single thread adds up millions of numbers; long float32 sums
that stay whole are accumulated in double. Registers itself in naive_lower's table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.build import naive_ir as ir
from engine.build.naive_ir import Expr, Index, Kind
from engine.build.naive_lower import Context, Lowered, Value, kind_of, lowers
from engine.build.naive_pointwise import at, call, combine, integers, number, tensor
from engine.build.naive_views import place, reshape

WIDE = 256
"""A float32 sum of more products than this is accumulated in double."""
LONG = 16
"""A float32 sum of more other terms than this is accumulated in double: they are often all of one sign."""
CHUNK = 4096
"""A reduction of more terms than this into few results is done in two steps."""
FEW = 16384
"""Fewer results than this are few."""

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Reduction:
    """What to do along some dimensions; ``dtype`` is the result's."""

    how: str
    dims: tuple[int, ...]
    keep: bool
    dtype: str


def axes(dims: Lowered, rank: int) -> tuple[int, ...]:
    """The dimensions to reduce, from the front; all of them if none are given."""
    if dims is None or dims == ():
        return tuple(range(rank))
    return tuple(sorted(place(d, rank) for d in integers(dims))) if rank else ()


def reduced(cx: Context, value: Value, what: Reduction) -> Value:
    """The reduction as a rule with a loop in it."""
    cx.light(value)
    terms = math.prod(value.shape[d] for d in what.dims)
    results = value.numel // max(terms, 1)
    kind = value.kind if what.how in ("max", "min", "any", "all") else kind_of(what.dtype)
    if terms > CHUNK and results < FEW and not what.how.startswith("arg"):
        return _in_two(cx, value, what)
    long = value.kind is Kind.DOUBLE or (terms > LONG and what.dtype not in HALVES)
    wide = kind is Kind.FLOAT and what.how in ("sum", "prod") and long
    left = [d for d in range(len(value.shape)) if d not in what.dims]
    shape = tuple(1 if d in what.dims else e for d, e in enumerate(value.shape) if what.keep or d not in what.dims)

    def load(index: Index) -> Expr:
        outer = index if not what.keep else tuple(index[d] for d in left)
        loops = {d: cx.loop("r", value.shape[d]) for d in what.dims}
        own = {**dict(zip(left, outer, strict=True)), **{d: ir.atom(loop) for d, loop in loops.items()}}
        body = value.load(tuple(own[d] for d in range(len(value.shape))))
        loop_vars = tuple(loops.values())
        if what.how.startswith("arg"):
            return ir.Reduce(what.how, loop_vars, body, Kind.LONG)
        inner = Kind.BOOL if what.how in ("any", "all") else Kind.DOUBLE if wide and value.kind is Kind.DOUBLE else kind
        result = Kind.BOOL if inner is Kind.BOOL else kind
        return ir.Reduce(what.how, loop_vars, ir.cast(body, inner), result, wide)

    return Value(shape, what.dtype, load, (*value.story, cx.operator))


def _in_two(cx: Context, value: Value, what: Reduction) -> Value:
    """Reduce the last dimensions first, or a long last one in pieces, into scratch; then the rest."""
    long = [d for d in what.dims if value.shape[d] > 1]
    exact = what.how in ("sum", "prod") and kind_of(what.dtype) is Kind.FLOAT
    dtype = "float64" if exact else what.dtype
    if value.shape[long[-1]] > CHUNK:
        cut = _in_pieces(value, long[-1], what.how)
        inner: tuple[int, ...] = (long[-1] + 1,)
    else:
        cut, inner = value, (long[-1],)
        for dim in reversed(long[:-1]):
            if math.prod(value.shape[d] for d in (*inner, dim)) > CHUNK:
                break
            inner = (dim, *inner)
    first = cx.store(reduced(cx, cut, Reduction(what.how, inner, keep=True, dtype=dtype)))
    if cut is not value:
        first = reshape(first, (*first.shape[: inner[0]], *first.shape[inner[0] + 1 :]))
    return reduced(cx, first, what)


def _in_pieces(value: Value, dim: int, how: str) -> Value:
    """A dimension as two: pieces, and places in them. Places beyond the end hold what changes nothing."""
    extent = value.shape[dim]
    size = 2 ** math.ceil(math.log2(math.sqrt(extent)))
    shape = (*value.shape[:dim], -(-extent // size), size, *value.shape[dim + 1 :])
    neutral = ir.constant(ir.neutral(how, value.kind), value.kind)

    def load(index: Index) -> Expr:
        own = ir.add(ir.scale(index[dim], size), index[dim + 1])
        element = value.load((*index[:dim], own, *index[dim + 2 :]))
        return ir.guard(ir.within(own, 0, extent), element, neutral)

    return Value(shape, value.dtype, load, value.story)


@lowers("sum", "prod", "amax", "amin", "any", "all")
def reduce_(cx: Context, x: Lowered, dim: Lowered = None, keepdim: Lowered = False, **_: Lowered) -> Lowered:
    source = tensor(x)
    how = {"amax": "max", "amin": "min"}.get(cx.operator, cx.operator)
    return reduced(cx, source, Reduction(how, axes(dim, len(source.shape)), bool(keepdim), cx.result.dtype))


def divided(value: Value, by: float) -> Value:
    """Every element divided by a number."""
    return Value(
        value.shape,
        value.dtype,
        lambda index: call("div", value.load(index), ir.constant(by, value.kind)),
        value.story,
    )


def mean_of(cx: Context, value: Value, dims: tuple[int, ...], keep: bool, dtype: str) -> Value:
    """The mean along dimensions."""
    terms = math.prod(value.shape[d] for d in dims)
    return divided(reduced(cx, value, Reduction("sum", dims, keep, dtype)), terms)


@lowers("mean")
def mean(cx: Context, x: Lowered, dim: Lowered = None, keepdim: Lowered = False, **_: Lowered) -> Lowered:
    source = tensor(x)
    return mean_of(cx, source, axes(dim, len(source.shape)), bool(keepdim), cx.result.dtype)


def variance(cx: Context, value: Value, dims: tuple[int, ...], keep: bool, correction: float) -> tuple[Value, Value]:
    """Variance and mean, in two passes: the mean first, then the squares of the differences from it."""
    if cx.costly(value):
        cx.store(value)
    centre = cx.store(mean_of(cx, value, dims, True, value.dtype))
    terms = math.prod(value.shape[d] for d in dims)

    def load(index: Index) -> Expr:
        return call("square", call("sub", value.load(index), at(centre, index)))

    squares = Value(value.shape, value.dtype, load, value.story)
    total = reduced(cx, squares, Reduction("sum", dims, keep, value.dtype))
    shape = total.shape
    return divided(total, max(terms - correction, 0.0)), reshape(centre, shape)


@lowers("var", "std", "var_mean", "std_mean")
def var(
    cx: Context,
    x: Lowered,
    dim: Lowered = None,
    correction: Lowered = None,
    keepdim: Lowered = False,
    unbiased: Lowered = True,
) -> Lowered:
    source = tensor(x)
    by = (1.0 if unbiased else 0.0) if correction is None else float(number(correction))
    found, centre = variance(cx, source, axes(dim, len(source.shape)), bool(keepdim), by)
    if cx.operator.startswith("std"):
        spread = found
        found = Value(spread.shape, spread.dtype, lambda index: call("sqrt", spread.load(index)), spread.story)
    return (found, centre) if cx.operator.endswith("mean") else found


@lowers("linalg_vector_norm", "norm")
def vector_norm(
    cx: Context,
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


def norm_of(cx: Context, source: Value, what: Reduction, order: float) -> Value:
    """The vector norm of an order along dimensions."""
    how = {math.inf: "max", -math.inf: "min"}.get(order, "sum")

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
                return magnitude if how != "sum" else call("pow", magnitude, ir.constant(order, e.kind))

    def outer(e: Expr) -> Expr:
        match order:
            case 2.0:
                return call("sqrt", e)
            case _ if how != "sum" or order in (0.0, 1.0):
                return e
            case _:
                return call("pow", e, ir.constant(1.0 / order, e.kind))

    cx.light(source)
    parts = Value(source.shape, source.dtype, lambda index: inner(source.load(index)), source.story)
    total = reduced(cx, parts, Reduction(how, what.dims, what.keep, what.dtype))
    return Value(total.shape, total.dtype, lambda index: outer(total.load(index)), total.story)


@lowers("argmax", "argmin")
def arg(cx: Context, x: Lowered, dim: Lowered = None, keepdim: Lowered = False) -> Lowered:
    source = tensor(x)
    return reduced(cx, source, Reduction(cx.operator, axes(dim, len(source.shape)), bool(keepdim), "int64"))


@lowers("max", "min")
def extreme(cx: Context, x: Lowered, dim: Lowered = None, keepdim: Lowered = False, other: Lowered = None) -> Lowered:
    source = tensor(x)
    how = cx.operator
    if other is not None:
        return combine(cx, lambda a, b: call(f"{how}imum", a, b), source, other)
    if cx.costly(source) and dim is not None:
        cx.store(source)
    dims = axes(dim, len(source.shape))
    found = reduced(cx, source, Reduction(how, dims, bool(keepdim), source.dtype))
    if dim is None:
        return found
    return found, reduced(cx, source, Reduction(f"arg{how}", dims, bool(keepdim), "int64"))


@lowers("cumsum", "cumprod")
def scan(cx: Context, x: Lowered, dim: Lowered, **_: Lowered) -> Lowered:
    source = cx.light(tensor(x))
    shape, kind = source.shape, kind_of(cx.result.dtype)
    if not shape:
        return source
    axis = place(int(number(dim)), len(shape))
    order = [d for d in range(len(shape)) if d != axis] + [axis]
    loops = {d: cx.loop(f"i{d}", shape[d]) for d in order}
    index = tuple(ir.atom(loops[d]) for d in range(len(shape)))
    target = cx.scratch(cx.result.dtype, source.numel)
    result = Value(shape, cx.result.dtype, source.load, (*source.story, cx.operator))
    serial = tuple(loops[d] for d in order if shape[d] != 1 or d == axis)
    body = ir.cast(source.load(index), kind)
    cx.emit(result, target, serial, ir.flatten(index, shape), body, cx.operator.removeprefix("cum"))
    cx.point(result, target)
    return result
