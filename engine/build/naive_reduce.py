"""What ATen's reductions mean: sums, extremes, norms, variances, running sums, sorting, and matrix products.

Long sums into few results are cut into partial ones, so that no single thread adds up millions of numbers; long float32 sums
that stay whole are accumulated in double. Registers itself in naive_lower's table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.build import naive_ir as ir
from engine.build.naive_ir import Expr, Index, Kind
from engine.build.naive_lower import Context, Lowered, NotLowered, Value, kind_of, lowers
from engine.build.naive_pointwise import at, call, combine, full, integers, number, tensor
from engine.build.naive_views import looked_up, place, replaced, reshape, view_of

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
    neutral = ir.constant(neutral_of(how, value.kind), value.kind)

    def load(index: Index) -> Expr:
        own = ir.add(ir.scale(index[dim], size), index[dim + 1])
        element = value.load((*index[:dim], own, *index[dim + 2 :]))
        return ir.guard(ir.within(own, 0, extent), element, neutral)

    return Value(shape, value.dtype, load, value.story)


def neutral_of(how: str, kind: Kind) -> bool | int | float:
    """What changes nothing: 0 for a sum, the least value for a maximum."""
    huge = 2**63 - 1 if kind is Kind.LONG else math.inf
    return {"sum": 0, "prod": 1, "max": -huge, "min": huge, "any": False, "all": True}[how]


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
    ord: Lowered = None,  # noqa: A002 - the schema's own name
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


def ranks(cx: Context, value: Value, axis: int, descending: bool) -> Value:
    """The place of each element in a stable order along a dimension, by counting those before it."""
    cx.plain(value)

    def load(index: Index) -> Expr:
        loop = cx.loop("r", value.shape[axis])
        mine, other = value.load(index), value.load(replaced(index, axis, ir.atom(loop)))
        before = call("gt" if descending else "lt", other, mine, kind=Kind.BOOL)
        earlier = ir.Apply("lt", (ir.atom(loop), index[axis]), Kind.BOOL)
        tied = call("logical_and", call("eq", other, mine, kind=Kind.BOOL), earlier)
        return ir.Reduce("sum", (loop,), ir.cast(call("logical_or", before, tied), Kind.LONG), Kind.LONG)

    return cx.store(Value(value.shape, "int64", load, (cx.operator,)))


@lowers("sort", "topk", "argsort")
def sort(
    cx: Context,
    x: Lowered,
    dim: Lowered = -1,
    descending: Lowered = False,
    k: Lowered = None,
    largest: Lowered = True,
    **_: Lowered,
) -> Lowered:
    source = tensor(x)
    if not source.shape:
        raise NotLowered(f"aten.{cx.operator} of a single number")
    axis = place(int(number(dim)), len(source.shape))
    order = ranks(cx, source, axis, bool(descending if k is None else largest))
    extent = source.shape[axis] if k is None else int(number(k))
    shape = (*source.shape[:axis], extent, *source.shape[axis + 1 :])

    def load(index: Index) -> Expr:
        loop = cx.loop("r", source.shape[axis])
        rank = order.load(replaced(index, axis, ir.atom(loop)))
        here = call("eq", rank, ir.cast(index[axis], Kind.LONG), kind=Kind.BOOL)
        chosen = call("where", here, ir.cast(ir.atom(loop), Kind.LONG), ir.constant(0, Kind.LONG), kind=Kind.LONG)
        return ir.Reduce("sum", (loop,), chosen, Kind.LONG)

    places = cx.store(Value(shape, "int64", load, (cx.operator,)))
    if cx.operator == "argsort":
        return places
    length = source.shape[axis]
    values = view_of(source, shape, lambda index: replaced(index, axis, looked_up(places, index, length)))
    return values, places


@lowers("scatter", "scatter_add")
def scatter(
    cx: Context,
    x: Lowered,
    dim: Lowered,
    index: Lowered,
    src: Lowered = None,
    value: Lowered = None,
    reduce: Lowered = None,
) -> Lowered:
    """Each element of the result looks for the sources that are aimed at it; sources that share a target are added."""
    if reduce is not None:
        raise NotLowered("aten.scatter with a reduction")
    base, targets = tensor(x), cx.plain(tensor(index))
    axis = place(int(number(dim)), len(base.shape))
    source = cx.plain(tensor(src)) if value is None else full(targets.shape, number(value), base.dtype)
    cx.light(base)
    adds = cx.operator == "scatter_add"

    def load(i: Index) -> Expr:
        loop = cx.loop("r", targets.shape[axis])
        own = replaced(i, axis, ir.atom(loop))
        inside = [c for d, e in enumerate(targets.shape) if d != axis for c in ir.within(i[d], 0, e)]
        aimed = call("eq", targets.load(own), ir.cast(i[axis], Kind.LONG), kind=Kind.BOOL)
        zero = ir.constant(0, base.kind)
        term = ir.guard((*inside, aimed), ir.cast(source.load(own), base.kind), zero)
        total = ir.Reduce("sum", (loop,), term, base.kind)
        if adds:
            return call("add", base.load(i), total)
        found = ir.Reduce("any", (loop,), ir.guard((*inside, aimed), ir.constant(True, Kind.BOOL), ir.constant(False, Kind.BOOL)), Kind.BOOL)
        return call("where", found, total, base.load(i), kind=base.kind)

    return Value(base.shape, base.dtype, load)


def product(cx: Context, a: Value, b: Value, dtype: str, story: Sequence[str] = ()) -> Value:
    """The matrix product of the last two dimensions, batched over the others."""
    cx.plain(a)
    cx.plain(b)
    shape = (*a.shape[:-1], b.shape[-1])
    kind, terms = kind_of(dtype), a.shape[-1]
    wide = kind is Kind.FLOAT and terms > WIDE and dtype not in HALVES

    def load(index: Index) -> Expr:
        loop = cx.loop("k", terms)
        inner = ir.atom(loop)
        left = ir.cast(a.load((*index[:-1], inner)), kind)
        right = ir.cast(b.load((*index[:-2], inner, index[-1])), kind)
        return ir.Reduce("sum", (loop,), call("mul", left, right), kind, wide)

    return Value(shape, dtype, load, tuple(story))


@lowers("mm", "bmm", "matmul")
def matmul(cx: Context, x: Lowered, mat2: Lowered = None, other: Lowered = None) -> Lowered:
    return product(cx, tensor(x), tensor(other if mat2 is None else mat2), cx.result.dtype)


@lowers("mv", "dot", "vdot")
def matvec(cx: Context, x: Lowered, vec: Lowered = None, tensor_: Lowered = None, **given: Lowered) -> Lowered:
    a, b = tensor(x), tensor(given.get("tensor", given.get("other")) if vec is None else vec)
    rows = a if len(a.shape) > 1 else reshape(a, (1, *a.shape))
    return reshape(product(cx, rows, reshape(b, (*b.shape, 1)), cx.result.dtype), cx.result.shape)


@lowers("addmm", "baddbmm", "addmv", "addbmm")
def addmm(
    cx: Context,
    x: Lowered,
    mat1: Lowered = None,
    mat2: Lowered = None,
    batch1: Lowered = None,
    batch2: Lowered = None,
    beta: Lowered = 1,
    alpha: Lowered = 1,
    **_: Lowered,
) -> Lowered:
    if cx.operator in ("addmv", "addbmm"):
        raise NotLowered(f"aten.{cx.operator}")
    first, second = (mat1, mat2) if mat1 is not None else (batch1, batch2)
    result = product(cx, tensor(first), tensor(second), cx.result.dtype)

    def compute(bias: Expr, total: Expr) -> Expr:
        scaled = total if alpha == 1 else call("mul", total, ir.constant(number(alpha), total.kind))
        if beta == 0:
            return scaled
        return call("add", scaled, bias if beta == 1 else call("mul", bias, ir.constant(number(beta), bias.kind)))

    return combine(cx, compute, x, result)


@lowers("_cdist_forward", "_pdist_forward", "_euclidean_dist")
def distances(cx: Context, x1: Lowered = None, x2: Lowered = None, p: Lowered = 2.0, **_: Lowered) -> Lowered:
    if x1 is None or x2 is None:
        raise NotLowered(f"aten.{cx.operator}")
    a, b = cx.plain(tensor(x1)), cx.plain(tensor(x2))
    a, b = reshape(a, (*a.shape[:-1], 1, a.shape[-1])), reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    shape = (*cx.result.shape, a.shape[-1])
    difference = Value(shape, cx.result.dtype, lambda index: call("sub", at(a, index), at(b, index)))
    last = len(shape) - 1
    return norm_of(cx, difference, Reduction("sum", (last,), False, cx.result.dtype), float(number(p)))


@lowers("_trilinear")
def trilinear(
    cx: Context,
    i1: Lowered,
    i2: Lowered,
    i3: Lowered,
    expand1: Lowered,
    expand2: Lowered,
    expand3: Lowered,
    sumdim: Lowered,
    **_: Lowered,
) -> Lowered:
    parts: list[Value] = []
    for given, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        value = cx.plain(tensor(given))
        shape = list(value.shape)
        for dim in sorted(integers(dims) if dims != () else ()):
            shape.insert(dim, 1)
        parts.append(reshape(value, shape))
    whole = tuple(max(extents) for extents in zip(*(p.shape for p in parts), strict=True))

    def load(index: Index) -> Expr:
        return call("mul", call("mul", at(parts[0], index), at(parts[1], index)), at(parts[2], index))

    return reduced(
        cx, Value(whole, cx.result.dtype, load), Reduction("sum", axes(sumdim, len(whole)), False, cx.result.dtype)
    )


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
    source, kind = tensor(x), kind_of(cx.result.dtype)
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
        if "log" in cx_operator:
            return call("sub", shifted(index), call("log", at(total, index)))
        share = call("div", call("exp", shifted(index)), at(total, index))
        if cx_operator != "_safe_softmax":
            return share
        empty = call("eq", at(top, index), floor, kind=Kind.BOOL)
        return call("where", empty, ir.constant(0, kind), share, kind=kind)

    cx_operator = cx.operator
    return reshape(Value(source.shape, cx.result.dtype, load), cx.result.shape)
