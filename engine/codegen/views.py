"""Lowerings of ATen views, concatenations and index lookups: they change where an element is read, not its value.

Registers itself with ``lowering``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind, Linear
from engine.codegen.lowering import Lowered, LoweringContext, NotLowered, Value, lowers
from engine.codegen.pointwise import at, broadcast, call, integers, number, tensor


def view_of(value: Value, shape: Sequence[int], where: Callable[[Index], Index]) -> Value:
    """The same elements under another index mapping."""
    return Value(tuple(shape), value.dtype, lambda index: value.load(where(index)))


def positive_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def with_position(index: Index, dim: int, by: Linear) -> Index:
    """The index with one position changed."""
    return (*index[:dim], by, *index[dim + 1 :])


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order in another shape. Unchanged dimensions keep their index."""
    old = value.shape
    groups = _groups(old, tuple(shape))

    def where(index: Index) -> Index:
        positions: list[Linear] = []
        for (a, b), (c, d) in groups:
            positions.extend(ir.unflatten(ir.flatten(index[c:d], tuple(shape)[c:d]), old[a:b]))
        return tuple(positions)

    return view_of(value, shape, where)


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Split both shapes into ranges of equal size: (range of old dimensions, range of new ones)."""
    if 0 in old or 0 in new:
        raise NotLowered("a tensor without elements")
    groups: list[tuple[tuple[int, int], tuple[int, int]]] = []
    a = c = 0
    while a < len(old) or c < len(new):
        b, d = min(a + 1, len(old)), min(c + 1, len(new))
        while math.prod(old[a:b]) != math.prod(new[c:d]):
            if math.prod(old[a:b]) < math.prod(new[c:d]):
                b += 1
            else:
                d += 1
        groups.append(((a, b), (c, d)))
        a, c = b, d
    return groups


@lowers("getitem")
def getitem(cx: LoweringContext, x: Lowered, index: Lowered) -> Lowered:
    if not isinstance(x, tuple):
        raise NotLowered("an operator whose several results are not known")
    result = x[int(number(index))]
    if result is None:
        raise NotLowered("a result of an operator that no naive kernel computes")
    return result


@lowers("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "view_copy", "_reshape_alias")
def view(cx: LoweringContext, x: Lowered, **_: Lowered) -> Lowered:
    source = tensor(x)
    if cx.result.dtype != source.dtype:
        raise NotLowered("aten.view that reads the same bytes as another dtype")
    return reshape(source, cx.result.shape)


@lowers("permute", "transpose", "t", "numpy_T")
def permute(cx: LoweringContext, x: Lowered, dims: Lowered = None, dim0: Lowered = None, dim1: Lowered = None) -> Lowered:
    source = tensor(x)
    rank = len(source.shape)
    order = list(range(rank))
    if dims is not None:
        order = [positive_dim(d, rank) for d in integers(dims)]
    elif rank > 1:
        a, b = (positive_dim(int(number(d)), rank) for d in ((0, 1) if dim0 is None else (dim0, dim1)))
        order[a], order[b] = b, a
    back = [order.index(d) for d in range(rank)]
    return view_of(source, cx.result.shape, lambda index: tuple(index[d] for d in back))


@lowers("expand", "broadcast_to")
def expand(cx: LoweringContext, x: Lowered, **_: Lowered) -> Lowered:
    source, shape = tensor(x), cx.result.shape
    broadcast(cx, source, shape)
    return Value(shape, source.dtype, lambda index: at(source, index))


@lowers("repeat", "tile")
def repeat(cx: LoweringContext, x: Lowered, **_: Lowered) -> Lowered:
    source = tensor(x)
    broadcast(cx, source, cx.result.shape)
    extra = len(cx.result.shape) - len(source.shape)
    return view_of(
        source,
        cx.result.shape,
        lambda index: tuple(ir.remainder(i, e) for i, e in zip(index[extra:], source.shape, strict=True)),
    )


def slice_of(value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
    """Every ``step``-th element of one dimension."""
    shape = (*value.shape[:dim], length, *value.shape[dim + 1 :])
    return view_of(value, shape, lambda index: with_position(index, dim, ir.shift(ir.scale(index[dim], step), start)))


@lowers("slice", "narrow")
def slice_(
    cx: LoweringContext, x: Lowered, dim: Lowered = 0, start: Lowered = None, step: Lowered = 1, **_: Lowered
) -> Lowered:
    source = tensor(x)
    axis = positive_dim(int(number(dim)), len(source.shape))
    extent = source.shape[axis]
    first = 0 if start is None else int(number(start))
    first = min(max(first + extent if first < 0 else first, 0), extent)
    return slice_of(source, axis, first, cx.result.shape[axis], int(number(step)))


@lowers("select")
def select(cx: LoweringContext, x: Lowered, dim: Lowered, index: Lowered) -> Lowered:
    source = tensor(x)
    axis = positive_dim(int(number(dim)), len(source.shape))
    chosen = ir.constant_index(positive_dim(int(number(index)), source.shape[axis]))
    return view_of(source, cx.result.shape, lambda i: (*i[:axis], chosen, *i[axis:]))


@lowers("split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk")
def split(cx: LoweringContext, x: Lowered, dim: Lowered = 0, **_: Lowered) -> Lowered:
    source = cx.store_if_loop(tensor(x))
    axis = positive_dim(int(number(dim)), len(source.shape))
    pieces: list[Lowered] = []
    start = 0
    for kind in cx.node.results if cx.node else ():
        unbound = kind is not None and len(kind.shape) < len(source.shape)
        length = 1 if unbound or kind is None else kind.shape[axis]
        piece = slice_of(source, axis, start, length)
        pieces.append(reshape(piece, kind.shape) if unbound and kind else piece)
        start += length
    return tuple(pieces)


@lowers("flip")
def flip(cx: LoweringContext, x: Lowered, dims: Lowered) -> Lowered:
    source = tensor(x)
    turned = {positive_dim(d, len(source.shape)) for d in integers(dims)}
    return view_of(
        source,
        source.shape,
        lambda index: tuple(ir.shift(ir.scale(i, -1), source.shape[d] - 1) if d in turned else i for d, i in enumerate(index)),
    )


@lowers("roll")
def roll(cx: LoweringContext, x: Lowered, shifts: Lowered, dims: Lowered = ()) -> Lowered:
    source = tensor(x)
    axes = integers(dims) if dims != () else ()
    if not axes:
        flat = roll_dims(reshape(source, (source.numel,)), integers(shifts), (0,))
        return reshape(flat, source.shape)
    return roll_dims(source, integers(shifts), tuple(positive_dim(d, len(source.shape)) for d in axes))


def roll_dims(value: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    """Elements rotated by ``shifts`` along ``dims``."""

    def where(index: Index) -> Index:
        for by, dim in zip(shifts, dims, strict=True):
            extent = value.shape[dim]
            index = with_position(index, dim, ir.remainder(ir.shift(index[dim], -by % extent), extent))
        return index

    return view_of(value, value.shape, where)


@lowers("diagonal", "diagonal_copy")
def diagonal(cx: LoweringContext, x: Lowered, offset: Lowered = 0, dim1: Lowered = 0, dim2: Lowered = 1) -> Lowered:
    source = tensor(x)
    rank = len(source.shape)
    a, b, by = positive_dim(int(number(dim1)), rank), positive_dim(int(number(dim2)), rank), int(number(offset))

    def where(index: Index) -> Index:
        rest = iter(index[:-1])
        along = {a: ir.shift(index[-1], max(-by, 0)), b: ir.shift(index[-1], max(by, 0))}
        return tuple(along[d] if d in along else next(rest) for d in range(rank))

    return view_of(source, cx.result.shape, where)


@lowers("unfold")
def unfold(cx: LoweringContext, x: Lowered, dimension: Lowered, size: Lowered, step: Lowered) -> Lowered:
    source = tensor(x)
    if cx.is_expensive(source):
        cx.store(source)
    axis, by = positive_dim(int(number(dimension)), len(source.shape)), int(number(step))
    return view_of(
        source,
        cx.result.shape,
        lambda index: with_position(index[:-1], axis, ir.add(ir.scale(index[axis], by), index[-1])),
    )


def pad_value(
    cx: LoweringContext, value: Value, before: Sequence[int], shape: Sequence[int], fill: bool | int | float
) -> Value:
    """The value placed in another shape, ``before`` elements from the start of each dimension (negative: cropped)."""
    cx.store_if_loop(value)

    def load(index: Index) -> Expr:
        own = tuple(ir.shift(i, -by) for i, by in zip(index, before, strict=True))
        inside = [c for i, extent in zip(own, value.shape, strict=True) for c in ir.in_range(i, 0, extent)]
        return ir.guard(inside, value.load(own), ir.constant(fill, value.kind))

    return Value(tuple(shape), value.dtype, load)


@lowers("constant_pad_nd")
def constant_pad(cx: LoweringContext, x: Lowered, pad: Lowered, value: Lowered = 0) -> Lowered:
    source, amounts = tensor(x), integers(pad)
    before = [0] * len(source.shape)
    for pair in range(len(amounts) // 2):
        before[len(before) - 1 - pair] = amounts[2 * pair]
    return pad_value(cx, source, before, cx.result.shape, number(value))


@lowers("cat", "concatenate")
def cat(cx: LoweringContext, tensors: Lowered, dim: Lowered = 0) -> Lowered:
    if not isinstance(tensors, tuple):
        raise NotLowered("aten.cat of no tensors")
    parts = [cx.store_if_loop(tensor(t)) for t in tensors if tensor(t).numel]
    return _cat(cx, parts, positive_dim(int(number(dim)), len(cx.result.shape)))


def _cat(cx: LoweringContext, parts: Sequence[Value], axis: int) -> Value:
    shape, dtype = cx.result.shape, cx.result.dtype

    def load(index: Index) -> Expr:
        starts = [sum(p.shape[axis] for p in parts[:k]) for k in range(len(parts))]
        selected: Expr | None = None
        for value, start in reversed(list(zip(parts, starts, strict=True))):
            own = ir.shift(index[axis], -start)
            element = ir.cast(value.load(with_position(index, axis, own)), ir.KINDS[dtype])
            inside = Kind.BOOL
            below = ir.Apply("lt", (own, ir.constant_index(value.shape[axis])), inside)
            selected = element if selected is None else ir.Guard((below,), element, selected, element.kind)
        if selected is None:
            raise NotLowered("aten.cat of tensors without elements")
        return selected

    return Value(shape, dtype, load)


@lowers("stack")
def stack(cx: LoweringContext, tensors: Lowered, dim: Lowered = 0) -> Lowered:
    if not isinstance(tensors, tuple):
        raise NotLowered("aten.stack of no tensors")
    axis = positive_dim(int(number(dim)), len(cx.result.shape))
    parts = [cx.store_if_loop(tensor(t)) for t in tensors]
    return _cat(cx, [reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts], axis)


@lowers("slice_scatter")
def slice_scatter(
    cx: LoweringContext, x: Lowered, src: Lowered, dim: Lowered = 0, start: Lowered = None, step: Lowered = 1, **_: Lowered
) -> Lowered:
    base, inner = cx.store_if_loop(tensor(x)), cx.store_if_loop(tensor(src))
    axis, by = positive_dim(int(number(dim)), len(base.shape)), int(number(step))
    extent = base.shape[axis]
    first = 0 if start is None else int(number(start))
    first = min(max(first + extent if first < 0 else first, 0), extent)

    def load(index: Index) -> Expr:
        moved = ir.shift(index[axis], -first)
        inside = list(ir.in_range(moved, 0, by * (inner.shape[axis] - 1) + 1))
        if by > 1:
            inside.append(ir.Apply("eq", (ir.remainder(moved, by), ir.constant_index(0)), Kind.BOOL))
        element = ir.cast(inner.load(with_position(index, axis, ir.divide(moved, by))), base.kind)
        return ir.guard(inside, element, base.load(index))

    return Value(base.shape, base.dtype, load)


@lowers("select_scatter")
def select_scatter(cx: LoweringContext, x: Lowered, src: Lowered, dim: Lowered, index: Lowered) -> Lowered:
    base, inner = cx.store_if_loop(tensor(x)), cx.store_if_loop(tensor(src))
    axis = positive_dim(int(number(dim)), len(base.shape))
    chosen = positive_dim(int(number(index)), base.shape[axis])

    def load(i: Index) -> Expr:
        inside = (ir.Apply("eq", (i[axis], ir.constant_index(chosen)), Kind.BOOL),)
        return ir.guard(inside, ir.cast(inner.load((*i[:axis], *i[axis + 1 :])), base.kind), base.load(i))

    return Value(base.shape, base.dtype, load)


def lookup(value: Value, index: Index, extent: int) -> Linear:
    """An element of an index tensor as an index; negative values count from the end."""
    raw = value.load(index)
    if isinstance(raw, ir.Apply) and raw.function == "cast" and isinstance(raw.arguments[0], Linear):
        span = ir.bounds(raw.arguments[0])
        if span and span[0] >= 0:
            return raw.arguments[0]
    count = ir.constant(extent, Kind.LONG)
    below = call("lt", raw, ir.constant(0, Kind.LONG), kind=Kind.BOOL)
    return ir.as_index(ir.cast(call("where", below, call("add", raw, count), raw, kind=Kind.LONG), Kind.INDEX))


@lowers("embedding")
def embedding(cx: LoweringContext, weight: Lowered, indices: Lowered, **_: Lowered) -> Lowered:
    table, chosen = cx.store_if_loop(tensor(weight)), cx.store_if_loop(tensor(indices))
    rows = table.shape[0]
    return Value(cx.result.shape, table.dtype, lambda index: table.load((lookup(chosen, index[:-1], rows), index[-1])))


@lowers("index_select")
def index_select(cx: LoweringContext, x: Lowered, dim: Lowered, index: Lowered) -> Lowered:
    source, chosen = cx.store_if_loop(tensor(x)), cx.store_if_loop(tensor(index))
    axis = positive_dim(int(number(dim)), len(source.shape))
    extent = source.shape[axis]
    flat = reshape(chosen, (chosen.numel,))
    return view_of(source, cx.result.shape, lambda i: with_position(i, axis, lookup(flat, (i[axis],), extent)))


@lowers("gather", "take_along_dim")
def gather(cx: LoweringContext, x: Lowered, dim: Lowered, index: Lowered, **_: Lowered) -> Lowered:
    source, chosen = cx.store_if_loop(tensor(x)), cx.store_if_loop(tensor(index))
    axis = positive_dim(int(number(dim)), len(source.shape))
    extent = source.shape[axis]
    return view_of(source, chosen.shape, lambda i: with_position(i, axis, lookup(chosen, i, extent)))


@lowers("index", "_unsafe_index")
def index(cx: LoweringContext, x: Lowered, indices: Lowered) -> Lowered:
    """Indexing by integer tensors, broadcast together. Not by masks: the result's shape would depend on the data."""
    source = cx.store_if_loop(tensor(x))
    given = [cx.store_if_loop(tensor(v)) if v is not None else None for v in (indices if isinstance(indices, tuple) else ())]
    given += [None] * (len(source.shape) - len(given))
    used = [d for d, v in enumerate(given) if v is not None]
    if any(v.dtype in ("bool", "uint8") for v in given if v is not None):
        raise NotLowered("aten.index with a mask")
    rank = max(len(v.shape) for v in given if v is not None)
    together = used == list(range(used[0], used[-1] + 1))
    front = used[0] if together else 0

    def where(index: Index) -> Index:
        chosen, rest = index[front : front + rank], iter((*index[:front], *index[front + rank :]))
        positions: list[Linear] = []
        for dim, value in enumerate(given):
            if value is None:
                positions.append(next(rest))
            else:
                whole = Value(value.shape, value.dtype, lambda i, v=value: at(v, i))  # type: ignore[misc]
                positions.append(lookup(whole, chosen, source.shape[dim]))
        return tuple(positions)

    return view_of(source, cx.result.shape, where)
