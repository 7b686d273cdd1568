"""Lowerings of ATen matrix products and pairwise distances.

Registers itself with ``lowering``.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind
from engine.codegen.lowering import Lowered, LoweringContext, NotLowered, Value, kind_of, lowers
from engine.codegen.pointwise import at, call, combine, integers, number, tensor
from engine.codegen.reductions import HALVES, MAX_FLOAT_PRODUCTS, Reduction, axes, norm_of, reduce_dims
from engine.codegen.views import reshape


def product(cx: LoweringContext, a: Value, b: Value, dtype: str, operators: Sequence[str] = ()) -> Value:
    """The matrix product of the last two dimensions, batched over the others."""
    cx.store_unless_cheap(a)
    cx.store_unless_cheap(b)
    shape = (*a.shape[:-1], b.shape[-1])
    kind, terms = kind_of(dtype), a.shape[-1]
    wide = kind is Kind.FLOAT and terms > MAX_FLOAT_PRODUCTS and dtype not in HALVES

    def load(index: Index) -> Expr:
        loop = cx.loop("k", terms)
        inner = ir.as_index(loop)
        left = ir.cast(a.load((*index[:-1], inner)), kind)
        right = ir.cast(b.load((*index[:-2], inner, index[-1])), kind)
        return ir.Reduce("sum", (loop,), call("mul", left, right), kind, wide)

    return Value(shape, dtype, load, tuple(operators))


@lowers("mm", "bmm", "matmul")
def matmul(cx: LoweringContext, x: Lowered, mat2: Lowered = None, other: Lowered = None) -> Lowered:
    return product(cx, tensor(x), tensor(other if mat2 is None else mat2), cx.result.dtype)


@lowers("mv", "dot", "vdot")
def matvec(cx: LoweringContext, x: Lowered, vec: Lowered = None, **given: Lowered) -> Lowered:
    a, b = tensor(x), tensor(given.get("tensor", given.get("other")) if vec is None else vec)
    rows = a if len(a.shape) > 1 else reshape(a, (1, *a.shape))
    return reshape(product(cx, rows, reshape(b, (*b.shape, 1)), cx.result.dtype), cx.result.shape)


@lowers("addmm", "baddbmm", "addmv", "addbmm")
def addmm(
    cx: LoweringContext,
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
def distances(cx: LoweringContext, x1: Lowered = None, x2: Lowered = None, p: Lowered = 2.0, **_: Lowered) -> Lowered:
    if x1 is None or x2 is None:
        raise NotLowered(f"aten.{cx.operator}")
    a, b = cx.store_unless_cheap(tensor(x1)), cx.store_unless_cheap(tensor(x2))
    a, b = reshape(a, (*a.shape[:-1], 1, a.shape[-1])), reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    shape = (*cx.result.shape, a.shape[-1])
    difference = Value(shape, cx.result.dtype, lambda index: call("sub", at(a, index), at(b, index)))
    last = len(shape) - 1
    return norm_of(cx, difference, Reduction("sum", (last,), keep=False, dtype=cx.result.dtype), float(number(p)))


@lowers("_trilinear")
def trilinear(
    cx: LoweringContext,
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
        value = cx.store_unless_cheap(tensor(given))
        shape = list(value.shape)
        for dim in sorted(integers(dims) if dims != () else ()):
            shape.insert(dim, 1)
        parts.append(reshape(value, shape))
    whole = tuple(max(extents) for extents in zip(*(p.shape for p in parts), strict=True))

    def load(index: Index) -> Expr:
        return call("mul", call("mul", at(parts[0], index), at(parts[1], index)), at(parts[2], index))

    return reduce_dims(
        cx, Value(whole, cx.result.dtype, load), Reduction("sum", axes(sumdim, len(whole)), keep=False, dtype=cx.result.dtype)
    )
