"""What ATen's sorting and scattering mean, in gather form: every result looks for what belongs there.

Sorting counts, for each element, those before it: quadratic, and simple. Registers itself in naive_lower's table.
"""

from __future__ import annotations

from engine.build import naive_ir as ir
from engine.build.naive_ir import Expr, Index, Kind
from engine.build.naive_lower import Context, Lowered, NotLowered, Value, lowers
from engine.build.naive_pointwise import call, full, number, tensor
from engine.build.naive_views import looked_up, place, replaced, view_of


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
        found = ir.Reduce(
            "any", (loop,), ir.guard((*inside, aimed), ir.constant(True, Kind.BOOL), ir.constant(False, Kind.BOOL)), Kind.BOOL
        )
        return call("where", found, total, base.load(i), kind=base.kind)

    return Value(base.shape, base.dtype, load)
