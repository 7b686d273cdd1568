"""Lowerings of ATen window operators: convolutions, forward and transposed, and pooling, in one to three dimensions.

Registers itself with ``lowering``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.codegen import ir
from engine.codegen.ir import Expr, Index, Kind, Linear, Var
from engine.codegen.lowering import Lowered, LoweringContext, Value, kind_of, lowers
from engine.codegen.pointwise import call, integers, number, tensor
from engine.codegen.reductions import HALVES, MAX_FLOAT_PRODUCTS

WindowAt = Callable[[Index], "Window"]
AXES = ("kz", "ky", "kx")


@dataclass(frozen=True, slots=True)
class Window:
    """The input elements of one output: loops over them, their positions, and the conditions for being inside the input."""

    loops: tuple[Var, ...]
    places: tuple[Linear, ...]
    inside: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Kernel size, stride, padding and dilation, one number per spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def from_arguments(cls, kernel: Lowered, stride: Lowered, padding: Lowered, dilation: Lowered, rank: int) -> WindowShape:
        """From a schema's arguments: one number applies to all dimensions, and the stride defaults to the kernel's size."""
        size = _per_dim(kernel, rank)
        step = size if stride in ((), None) else _per_dim(stride, rank)
        return cls(size, step, _per_dim(padding, rank), _per_dim(dilation, rank))


def _per_dim(value: Lowered, rank: int) -> tuple[int, ...]:
    given = integers(value)
    return given * rank if len(given) == 1 else given


def _loop_hints(rank: int) -> tuple[str, ...]:
    return AXES[len(AXES) - rank :]


def _window(cx: LoweringContext, pool: WindowShape, index: Sequence[Linear], extents: Sequence[int]) -> Window:
    loops = tuple(cx.loop(hint, size) for hint, size in zip(_loop_hints(len(extents)), pool.kernel, strict=True))
    places = tuple(
        ir.shift(ir.add(ir.scale(i, step), ir.scale(ir.as_index(loop), apart)), -pad)
        for i, loop, step, pad, apart in zip(index, loops, pool.stride, pool.padding, pool.dilation, strict=True)
    )
    inside = tuple(c for at, extent in zip(places, extents, strict=True) for c in ir.in_range(at, 0, extent))
    return Window(loops, places, inside)


@lowers("convolution", "_convolution", "conv1d", "conv2d", "conv3d", "cudnn_convolution", "mkldnn_convolution")
def convolution(
    cx: LoweringContext,
    x: Lowered,
    weight: Lowered,
    bias: Lowered,
    stride: Lowered,
    padding: Lowered,
    dilation: Lowered,
    transposed: Lowered = False,
    groups: Lowered = 1,
    **_: Lowered,
) -> Lowered:
    source, filters = cx.store_unless_cheap(tensor(x)), cx.store_unless_cheap(tensor(weight))
    offset = None if bias is None else cx.store_unless_cheap(tensor(bias))
    rank = len(source.shape) - 2
    pool = WindowShape.from_arguments(filters.shape[2:], stride, padding, dilation, rank)
    apply = _transposed if transposed else _forward
    count = int(number(groups))

    def load(index: Index) -> Expr:
        total = apply(cx, source, filters, pool, count, index)
        return total if offset is None else call("add", total, ir.cast(offset.load((index[1],)), total.kind))

    return Value(cx.result.shape, cx.result.dtype, load)


def _sum_window(cx: LoweringContext, dtype: str, loops: tuple[Var, ...], inside: Sequence[Expr], term: Expr) -> Expr:
    terms = math.prod(loop.extent for loop in loops)
    wide = term.kind is Kind.FLOAT and terms > MAX_FLOAT_PRODUCTS and dtype not in HALVES
    return ir.Reduce("sum", loops, ir.guard(inside, term, ir.constant(0, term.kind)), term.kind, wide)


def _forward(cx: LoweringContext, x: Value, weight: Value, pool: WindowShape, groups: int, index: Index) -> Expr:
    channel = cx.loop("c", weight.shape[1])
    window = _window(cx, pool, index[2:], x.shape[2:])
    group = ir.divide(index[1], weight.shape[0] // groups)
    own = ir.add(ir.scale(group, weight.shape[1]), ir.as_index(channel))
    element = x.load((index[0], own, *window.places))
    factor = weight.load((index[1], ir.as_index(channel), *(ir.as_index(loop) for loop in window.loops)))
    return _sum_window(cx, x.dtype, (channel, *window.loops), window.inside, call("mul", element, factor))


def _transposed(cx: LoweringContext, x: Value, weight: Value, pool: WindowShape, groups: int, index: Index) -> Expr:
    """Gather form: the sum over the inputs and filter elements that contribute to this output."""
    inputs, outputs = x.shape[1] // groups, weight.shape[1]
    channel = cx.loop("c", inputs)
    loops = tuple(cx.loop(hint, size) for hint, size in zip(_loop_hints(len(pool.kernel)), pool.kernel, strict=True))
    own = ir.add(ir.scale(ir.divide(index[1], outputs), inputs), ir.as_index(channel))
    inside: list[Expr] = []
    places: list[Linear] = []
    for axis, loop in enumerate(loops):
        reach = ir.shift(ir.add(index[2 + axis], ir.scale(ir.as_index(loop), -pool.dilation[axis])), pool.padding[axis])
        step = pool.stride[axis]
        inside.extend(ir.in_range(reach, 0, x.shape[2 + axis] * step))
        if step > 1:
            inside.append(ir.Apply("eq", (ir.remainder(reach, step), ir.constant_index(0)), Kind.BOOL))
        places.append(ir.divide(reach, step))
    element = x.load((index[0], own, *places))
    factor = weight.load((own, ir.remainder(index[1], outputs), *(ir.as_index(loop) for loop in loops)))
    return _sum_window(cx, x.dtype, (channel, *loops), inside, call("mul", element, factor))


@lowers(
    "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d"
)
def max_pool(
    cx: LoweringContext,
    x: Lowered,
    kernel_size: Lowered,
    stride: Lowered = (),
    padding: Lowered = 0,
    dilation: Lowered = 1,
    **_: Lowered,
) -> Lowered:
    source = cx.store_unless_cheap(tensor(x))
    rank = int(cx.operator[len("max_pool")])
    pool = WindowShape.from_arguments(kernel_size, stride, padding, dilation, rank)
    extents = source.shape[-rank:]
    value, place = _max_and_position(cx, source, rank, lambda index: _window(cx, pool, index[-rank:], extents))
    return (value, place) if cx.operator.endswith("with_indices") else value


def _max_and_position(cx: LoweringContext, source: Value, rank: int, window_at: WindowAt) -> tuple[Value, Value]:
    """The largest element of each window, and its flat position in the input plane."""
    lowest = ir.constant(ir.identity("max", source.kind), source.kind)
    plane = source.shape[-rank:]

    def element(index: Index, window: Window) -> Expr:
        return ir.guard(window.inside, source.load((*index[:-rank], *window.places)), lowest)

    def largest(index: Index) -> Expr:
        window = window_at(index)
        return ir.Reduce("max", window.loops, element(index, window), source.kind)

    def where(index: Index) -> Expr:
        window = window_at(index)
        first = ir.Reduce("argmax", window.loops, element(index, window), Kind.LONG)
        chosen = ir.unflatten(ir.as_index(ir.cast(first, Kind.INDEX)), [loop.extent for loop in window.loops])
        swap: dict[Expr, Linear] = dict(zip(window.loops, chosen, strict=True))
        return ir.cast(ir.flatten([_substitute(at, swap) for at in window.places], plane), Kind.LONG)

    shape = cx.result.shape
    return Value(shape, source.dtype, largest), Value(shape, "int64", where)


def _substitute(index: Linear, swap: dict[Expr, Linear]) -> Linear:
    """The index with loop variables substituted."""
    parts = [ir.scale(swap.get(part, ir.as_index(part)), factor) for part, factor in index.terms]
    return ir.shift(ir.add(*parts), index.constant)


@lowers("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    cx: LoweringContext,
    x: Lowered,
    kernel_size: Lowered,
    stride: Lowered = (),
    padding: Lowered = 0,
    ceil_mode: Lowered = False,
    count_include_pad: Lowered = True,
    divisor_override: Lowered = None,
) -> Lowered:
    source = cx.store_unless_cheap(tensor(x))
    rank = int(cx.operator[len("avg_pool")])
    pool = WindowShape.from_arguments(kernel_size, stride, padding, 1, rank)
    extents = source.shape[-rank:]
    kind = kind_of(cx.result.dtype)
    certain = not ceil_mode and (bool(count_include_pad) or not any(pool.padding))

    def load(index: Index) -> Expr:
        window = _window(cx, pool, index[-rank:], extents)
        total = _sum_window(cx, source.dtype, window.loops, window.inside, source.load((*index[:-rank], *window.places)))
        if divisor_override is not None or certain:
            by = math.prod(pool.kernel) if divisor_override is None else number(divisor_override)
            return call("div", total, ir.constant(by, kind))
        again = _window(cx, pool, index[-rank:], extents)
        margins = pool.padding if count_include_pad else (0,) * rank
        counted = [
            c
            for at, extent, margin in zip(again.places, extents, margins, strict=True)
            for c in ir.in_range(at, -margin, extent + margin)
        ]
        return call("div", total, _sum_window(cx, "float32", again.loops, counted, ir.constant(1, kind)))

    return Value(cx.result.shape, cx.result.dtype, load)


def _adaptive_window(cx: LoweringContext, index: Sequence[Linear], extents: Sequence[int], results: Sequence[int]) -> Window:
    """Adaptive windows, which cover the input evenly; of unequal length where the sizes do not divide."""
    loops: list[Var] = []
    places: list[Linear] = []
    inside: list[Expr] = []
    for hint, at, extent, result in zip(_loop_hints(len(extents)), index, extents, results, strict=True):
        even = extent % result == 0
        longest = max(_end(i, extent, result) - i * extent // result for i in range(result))
        loop = cx.loop(hint, longest)
        place = ir.add(ir.divide(ir.scale(at, extent), result), ir.as_index(loop))
        if not even:
            end = ir.divide(ir.shift(ir.scale(at, extent), extent + result - 1), result)
            inside.append(ir.Apply("lt", (place, end), Kind.BOOL))
        loops.append(loop)
        places.append(place)
    return Window(tuple(loops), tuple(places), tuple(inside))


def _end(at: int, extent: int, result: int) -> int:
    return -(-(at + 1) * extent // result)


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(cx: LoweringContext, x: Lowered, output_size: Lowered) -> Lowered:
    source = cx.store_unless_cheap(tensor(x))
    rank = len(integers(output_size))
    extents, results = source.shape[-rank:], cx.result.shape[-rank:]
    kind = kind_of(cx.result.dtype)

    def load(index: Index) -> Expr:
        window = _adaptive_window(cx, index[-rank:], extents, results)
        total = _sum_window(cx, source.dtype, window.loops, window.inside, source.load((*index[:-rank], *window.places)))
        if not window.inside:
            return call("div", total, ir.constant(math.prod(loop.extent for loop in window.loops), kind))
        again = _adaptive_window(cx, index[-rank:], extents, results)
        return call("div", total, _sum_window(cx, "float32", again.loops, again.inside, ir.constant(1, kind)))

    return Value(cx.result.shape, cx.result.dtype, load)


@lowers("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(cx: LoweringContext, x: Lowered, output_size: Lowered) -> Lowered:
    source = cx.store_unless_cheap(tensor(x))
    rank = len(integers(output_size))
    extents, results = source.shape[-rank:], cx.result.shape[-rank:]
    return _max_and_position(cx, source, rank, lambda index: _adaptive_window(cx, index[-rank:], extents, results))
