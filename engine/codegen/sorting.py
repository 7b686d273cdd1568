"""Lowerings of ATen sorting and scattering, in gather form: every output element searches for its source.

Sorting computes each element's rank by counting the elements before it, in quadratic time. Registers itself with ``lowering``.
"""

from __future__ import annotations

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind
from engine.codegen.lowering import Lowered, LoweringContext, NotLowered, Value, lowers
from engine.codegen.pointwise import call, full, number, tensor
from engine.codegen.views import lookup, positive_dim, view_of, with_position


def ranks(cx: LoweringContext, value: Value, axis: int, descending: bool) -> Value:
    """The rank of each element in a stable sort along a dimension, by counting the elements before it."""
    cx.store_unless_cheap(value)

    def load(index: Index) -> Expr:
        loop = cx.loop("r", value.shape[axis])
        mine, other = value.load(index), value.load(with_position(index, axis, ir.as_index(loop)))
        before = call("gt" if descending else "lt", other, mine, kind=Kind.BOOL)
        earlier = ir.Apply("lt", (ir.as_index(loop), index[axis]), Kind.BOOL)
        tied = call("logical_and", call("eq", other, mine, kind=Kind.BOOL), earlier)
        return ir.Reduce("sum", (loop,), ir.cast(call("logical_or", before, tied), Kind.LONG), Kind.LONG)

    return cx.store(Value(value.shape, "int64", load, (cx.operator,)))


@lowers("sort", "topk", "argsort")
def sort(
    cx: LoweringContext,
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
    axis = positive_dim(int(number(dim)), len(source.shape))
    order = ranks(cx, source, axis, bool(descending if k is None else largest))
    extent = source.shape[axis] if k is None else int(number(k))
    shape = (*source.shape[:axis], extent, *source.shape[axis + 1 :])

    def load(index: Index) -> Expr:
        loop = cx.loop("r", source.shape[axis])
        rank = order.load(with_position(index, axis, ir.as_index(loop)))
        here = call("eq", rank, ir.cast(index[axis], Kind.LONG), kind=Kind.BOOL)
        chosen = call("where", here, ir.cast(ir.as_index(loop), Kind.LONG), ir.constant(0, Kind.LONG), kind=Kind.LONG)
        return ir.Reduce("sum", (loop,), chosen, Kind.LONG)

    places = cx.store(Value(shape, "int64", load, (cx.operator,)))
    if cx.operator == "argsort":
        return places
    length = source.shape[axis]
    values = view_of(source, shape, lambda index: with_position(index, axis, lookup(places, index, length)))
    return values, places


@lowers("scatter", "scatter_add")
def scatter(
    cx: LoweringContext,
    x: Lowered,
    dim: Lowered,
    index: Lowered,
    src: Lowered = None,
    value: Lowered = None,
    reduce: Lowered = None,
) -> Lowered:
    """Each output element sums the sources whose index selects it."""
    if reduce is not None:
        raise NotLowered("aten.scatter with a reduction")
    base, targets = tensor(x), cx.store_unless_cheap(tensor(index))
    axis = positive_dim(int(number(dim)), len(base.shape))
    source = cx.store_unless_cheap(tensor(src)) if value is None else full(targets.shape, number(value), base.dtype)
    cx.store_if_loop(base)
    adds = cx.operator == "scatter_add"

    def load(i: Index) -> Expr:
        loop = cx.loop("r", targets.shape[axis])
        own = with_position(i, axis, ir.as_index(loop))
        inside = [c for d, e in enumerate(targets.shape) if d != axis for c in ir.in_range(i[d], 0, e)]
        selected = call("eq", targets.load(own), ir.cast(i[axis], Kind.LONG), kind=Kind.BOOL)
        zero = ir.constant(0, base.kind)
        term = ir.guard((*inside, selected), ir.cast(source.load(own), base.kind), zero)
        total = ir.Reduce("sum", (loop,), term, base.kind)
        if adds:
            return call("add", base.load(i), total)
        hit = ir.Reduce(
            "any",
            (loop,),
            ir.guard((*inside, selected), ir.constant(True, Kind.BOOL), ir.constant(False, Kind.BOOL)),
            Kind.BOOL,
        )
        return call("where", hit, total, base.load(i), kind=base.kind)

    return Value(base.shape, base.dtype, load)
