"""Finds arguments of a reference whose rows do not depend on each other, and takes slices of them. Imports torch.

In float64 a forward takes twice the memory of float32 and more. Where a device has no room for that, such a reference is called
on some rows at a time. A row is an index of the first dimension, of an argument and of every output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.domain.errors import ProblemError
from engine.problem.arguments.values import equal_values

Call = Callable[[tuple[object, ...], int | None], Sequence[Tensor]]
"""A forward, of inputs with so many rows if they have not all."""

_DIFFERENCE = 1e-2
"""Largest difference of a call on some rows, relative to the output's norm: other shapes take other algorithms."""
_OTHER = -1.5
"""What the rows outside the slice are multiplied with."""


@dataclass(frozen=True, slots=True)
class IndependentRows:
    """Arguments of ``forward`` whose rows are independent."""

    arguments: tuple[int, ...]
    """Their positions."""
    count: int
    """Rows of each of them, and of every output."""

    def slices(self, most: int) -> Iterator[slice]:
        """At most ``most`` slices of about equal size, in order."""
        step = -(-self.count // most)
        for start in range(0, self.count, step):
            yield slice(start, min(start + step, self.count))

    def select(self, inputs: tuple[object, ...], rows: slice) -> tuple[object, ...]:
        """``inputs`` with these rows only, without copies."""
        return tuple(
            value[rows] if index in self.arguments and isinstance(value, Tensor) else value
            for index, value in enumerate(inputs)
        )

    def joined(
        self, most: int, inputs: tuple[object, ...], call: Callable[[tuple[object, ...], int], Sequence[Tensor]]
    ) -> tuple[Tensor, ...]:
        """The outputs of all rows, of which ``call`` is given a slice at a time and their number."""
        whole: tuple[Tensor, ...] = ()
        for rows in self.slices(most):
            outputs = call(self.select(inputs, rows), rows.stop - rows.start)
            whole = whole or tuple(o.new_empty((self.count, *o.shape[1:])) for o in outputs)
            for all_rows, these in zip(whole, outputs, strict=True):
                all_rows[rows] = these
        return whole


def find(call: Call, inputs: tuple[object, ...], outputs: Sequence[tuple[int, ...]], most: int) -> IndependentRows | None:
    """The arguments whose rows ``call`` treats independently; ``None`` where there are none, or rows cannot be told apart.

    ``outputs``: the shapes of the outputs. Calls decide: the outputs of a slice's rows must not change by one bit when all
    other rows do, and a call on the slice alone must give the same. All arguments with as many rows as the outputs are
    tried, then the first of them alone.
    """
    counts = {shape[0] if shape else 0 for shape in outputs}
    count = counts.pop() if len(counts) == 1 else 0
    fitting = [i for i, v in enumerate(inputs) if isinstance(v, Tensor) and v.dim() and v.shape[0] == count]
    if count < 2 or most < 2 or not fitting:
        return None
    for chosen in dict.fromkeys((tuple(fitting), (fitting[0],))):
        rows = IndependentRows(chosen, count)
        try:
            if _holds(call, inputs, rows, most):
                return rows
        except ProblemError:
            continue
    return None


def _holds(call: Call, inputs: tuple[object, ...], rows: IndependentRows, most: int) -> bool:
    every = list(rows.slices(most))
    kept = every[len(every) // 2]
    before = [output[kept].clone() for output in call(inputs, None)]
    alone = call(rows.select(inputs, kept), kept.stop - kept.start)
    if not all(a.shape == b.shape and _close(a, b) for a, b in zip(alone, before, strict=True)):
        return False
    changed = tuple(_with_others(value, kept) if index in rows.arguments else value for index, value in enumerate(inputs))
    after = [output[kept].clone() for output in call(changed, None)]
    return all(map(equal_values, before, after))


def _with_others(tensor: object, kept: slice) -> Tensor:
    """A copy with other values in all rows but those of ``kept``: integers that occur there, which may be indices."""
    assert isinstance(tensor, Tensor)
    copy = tensor.clone()
    for others in (copy[: kept.start], copy[kept.stop :]):
        if others.is_floating_point() or others.is_complex():
            others.mul_(_OTHER)
        elif len(others):
            others.copy_(others.flip(0))
    return copy


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal but for rounding, and finite."""
    norm = float(torch.linalg.vector_norm(other, dtype=torch.float64)) if other.is_floating_point() else float("nan")
    apart = float(torch.linalg.vector_norm(one - other, dtype=torch.float64)) if other.is_floating_point() else float("nan")
    return apart <= _DIFFERENCE * norm
