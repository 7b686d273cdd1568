"""What ATen's matrix products and distances mean: sums of products over one dimension.

Registers itself in naive_lower's table.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.build import naive_ir as ir
from engine.build.naive_ir import Expr, Index, Kind
from engine.build.naive_lower import Context, Lowered, NotLowered, Value, kind_of, lowers
from engine.build.naive_pointwise import at, call, combine, integers, number, tensor
from engine.build.naive_reduce import HALVES, WIDE, Reduction, axes, norm_of, reduced
from engine.build.naive_views import reshape


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
def matvec(cx: Context, x: Lowered, vec: Lowered = None, **given: Lowered) -> Lowered:
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


@lowers("_cdist_forward", "_euclidean_dist")
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

    return reduced(cx, Value(whole, cx.result.dtype, load), Reduction("sum", axes(sumdim, len(whole)), False, cx.result.dtype))
