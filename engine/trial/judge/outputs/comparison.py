"""The error of an output: compared with the expected one, block by block or, if large, in one pass on a GPU. Imports torch.

With output o and expected r:

- ``rel_fro``, the *centred error*: ‖o−r‖ ÷ ‖r−mean(r)‖ (Frobenius norms). A plain relative error, ÷ ‖r‖, hides a
  half-precision result on KernelBench's uniform inputs, because a product of non-negative matrices is almost constant.
- ``max_scaled``, the largest error of one element relative to its scale: |o−r| ÷ (|r| + rms(r−mean(r))). It detects a skipped
  tile.

For an output without spread, such as a single number, rms(r) replaces rms(r−mean(r)). Finite elements of o and r must coincide.
Integers and booleans are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils.weak import WeakIdKeyDictionary

from engine.problem.arguments.values import comparable
from engine.trial.judge.outputs.blocks import Blocks, Moments, as_numbers, in_blocks, moments, read_numbers, read_rows
from engine.trial.judge.outputs.fused_comparison import FusedPair, fused_pair


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one set of outputs; ``flaw`` describes what no tolerance covers (empty: nothing)."""

    rel_fro: float
    max_scaled: float
    max_abs: float
    flaw: str = ""
    by_output: tuple[Errors, ...] = ()
    """The errors of each output where there are several; then the others are the largest of them."""

    @staticmethod
    def of_outputs(found: Sequence[Errors]) -> Errors:
        """From the errors of each output."""
        return replace(worst_of(found), by_output=tuple(found)) if len(found) > 1 else worst_of(found)

    def for_output(self, output: int) -> Errors:
        """The errors of one output."""
        return self.by_output[output] if self.by_output else self

    @property
    def finite(self) -> bool:
        """Whether every number is finite: then so was every element."""
        return all(map(math.isfinite, (self.rel_fro, self.max_scaled, self.max_abs)))

    @property
    def of_zeros(self) -> bool:
        """Whether every expected element is zero and an output is not: the error is relative to nothing."""
        return min(self.rel_fro, self.max_scaled) >= _OF_NOTHING

    def worst(self, other: Errors) -> Errors:
        """The largest error of each kind; NaN if either is, because an undefined error must not pass."""
        return Errors(
            larger(self.rel_fro, other.rel_fro),
            larger(self.max_scaled, other.max_scaled),
            larger(self.max_abs, other.max_abs),
            self.flaw or other.flaw,
            tuple(self.for_output(i).worst(other.for_output(i)) for i in range(max(len(self.by_output), len(other.by_output)))),
        )


NO_ERROR = Errors(0.0, 0.0, 0.0)
_TINY = 1e-300
_OF_NOTHING = 1e250
"""Relative errors above this are those of a number from zero, divided by ``_TINY``."""
_NEGLIGIBLE = 4e-6
"""A deviation up to this share of rms(r) does not count as spread: one unit in the last place of fp32 would be 3% of it, and
ten times that would exceed ``HOPELESS``. A single number has no spread."""
_norm = torch.linalg.vector_norm


def compare(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    undecided: Sequence[torch.Tensor | None] = (),
) -> Errors:
    """Errors of all outputs against all expected ones, the worst of each kind.

    ``undecided`` masks, for each output, the integers that rounding alone decides: they may differ.
    """
    masks = undecided or [None] * len(outputs)
    return worst_of(_compare_one(*one) for one in zip(outputs, expected, names, masks, strict=True))


def compare_inexact(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], names: Sequence[str]) -> Errors:
    """Errors of the outputs that are not compared exactly, of each; of all where all are compared exactly."""
    skips = not all(map(compared_exactly, outputs))
    return Errors.of_outputs(
        [
            NO_ERROR if skips and compared_exactly(output) else _compare_one(output, reference, name)
            for output, reference, name in zip(outputs, expected, names, strict=True)
        ]
    )


def compared_exactly(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are compared exactly."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def _compare_one(output: torch.Tensor, reference: torch.Tensor, name: str, undecided: torch.Tensor | None = None) -> Errors:
    if output.numel() == 0:
        return NO_ERROR
    if compared_exactly(output):
        wrong = _differing(output, reference, undecided)
        flaw = f"{name}: {wrong} of {output.numel()} elements differ (integers are compared exactly)" if wrong else ""
        return Errors(0.0, 0.0, float(wrong > 0), flaw)
    if output.dtype.is_complex:
        return _compare_one(*real_parts(output, reference), name)
    output = comparable(output)
    errors = _errors_of_all(output, reference)
    if errors.finite or (has_finite_sum(output) and has_finite_sum(reference)):
        return errors
    if flaw := _mask_flaw(output, reference, name):
        return Errors(math.inf, math.inf, math.inf, flaw)
    return finite_errors(output, reference)


def real_parts(output: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A floating-point output and the expected one; of complex ones the parts."""
    if not output.dtype.is_complex:
        return output, reference
    return torch.view_as_real(output), torch.view_as_real(reference.to(torch.complex128))


def _errors_of_all(output: torch.Tensor, reference: torch.Tensor) -> Errors:
    pairs: Pairs = lambda: in_blocks(output, reference)  # type: ignore[assignment, return-value]  # noqa: E731
    known = remembered_moments(reference, lambda: (right for _, right in pairs()))
    fused = fused_pair(output, reference, "errors")
    if fused is None or not known.in_range or known.scale != 1:
        return errors_of(pairs, known)
    return _from_rows(known, fused.errors)


def finite_errors(output: torch.Tensor, reference: torch.Tensor) -> Errors:
    """Errors of the elements that are finite in both."""
    fused = fused_pair(output, reference, "moments", "errors", finite=True)
    return _of_fused(fused) or errors_of(partial(finite_pairs, output, reference))


def finite_rounding(output: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> Errors:
    """Errors of the expected elements, rounded to a type, where they are finite in both and in that type."""
    fused = fused_pair(output, reference, "moments", "errors", finite=True, rounded=dtype)
    blocks: Pairs = partial(rounded_pairs, partial(finite_pairs, output, reference), dtype)
    return _of_fused(fused) or errors_of(blocks)


def _of_fused(fused: FusedPair | None) -> Errors | None:
    """The errors, by the kernels of ``fused_comparison``; ``None`` where ``_fused_moments`` finds none."""
    found = _fused_moments(fused)
    return None if fused is None or found is None else _from_rows(found, fused.errors)


def _fused_moments(fused: FusedPair | None) -> Moments | None:
    """Moments of the expected elements, by the kernels of ``fused_comparison``.

    ``None`` where the kernels cannot read the pair, and where squares leave the range of float64, because the kernels do not
    scale. A sum of squares of 0 is right where all elements are zero, as of a ReLU of negative inputs; else they underflowed.
    """
    if fused is None:
        return None
    found = fused.moments()
    found = replace(found, zero=found.count > 0 and not found.square and not bool(fused.expected.any()))
    return found if found.in_range else None


Pairs = Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]
"""Blocks of an output with those of the expected one."""


def finite_pairs(output: torch.Tensor, reference: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The elements that are finite in both."""
    for mine, right in in_blocks(comparable(output), reference):
        both = torch.isfinite(mine) & torch.isfinite(right)
        yield mine[both], right[both]


_remembered: MutableMapping[torch.Tensor, tuple[int, Moments]] = WeakIdKeyDictionary()
"""Tensor → its version and its moments: one expected output is compared with several others."""


def remembered_moments(tensor: torch.Tensor, blocks: Blocks) -> Moments:
    """The moments of a tensor with these ``blocks``. They are computed once, as long as nothing is written to it."""
    if tensor.is_inference():  # its version is not counted
        return _moments(tensor, blocks)
    version, found = _remembered.get(tensor, (-1, Moments()))
    if version != tensor._version:
        found = _moments(tensor, blocks)
        _remembered[tensor] = tensor._version, found
    return found


def _moments(tensor: torch.Tensor, blocks: Blocks) -> Moments:
    found = _fused_moments(fused_pair(tensor, tensor, "moments"))
    return found if found is not None else moments(blocks)


def finite_moments(tensor: torch.Tensor) -> Moments:
    """The moments of a tensor's finite elements."""
    found = remembered_moments(tensor, lambda: (block for (block,) in in_blocks(tensor)))
    if math.isfinite(found.square):
        return found
    among = _fused_moments(fused_pair(tensor, tensor, "moments", finite=True))
    if among is not None:
        return among
    return moments(lambda: (block[torch.isfinite(block)] for (block,) in in_blocks(tensor)))


def errors_of(pairs: Pairs, known: Moments | None = None) -> Errors:
    """Errors of finite elements, block by block; ``known``: the moments of the expected ones."""
    found = known or moments(lambda: (right for _, right in pairs()))
    return _from_rows(found, partial(_rows_of_blocks, pairs, found.scale))


def _rows_of_blocks(pairs: Pairs, scale: float, unit: float) -> torch.Tensor:
    """For each block the sum of squared errors, the largest error, and the largest error ÷ (|expected| + ``unit``); of all
    numbers ÷ ``scale``."""
    rows: list[torch.Tensor] = []
    for output, right in pairs():
        if not output.numel():
            continue
        reference = right.to(torch.float64)
        difference = output - reference
        if scale != 1:
            difference, reference = difference / scale, reference / scale
        norm, largest = _norm(difference), _largest(difference)
        rows.append(torch.stack((norm * norm, largest, _largest(difference.div_(reference.abs().add_(unit))))))
    return torch.stack(rows).cpu()


def _largest(numbers: torch.Tensor) -> torch.Tensor:
    """The largest absolute value; NaN if one is."""
    return torch.stack(torch.aminmax(numbers)).abs().amax()


def _from_rows(found: Moments, rows: Callable[[float], torch.Tensor]) -> Errors:
    if not found.count:
        return NO_ERROR
    unit = (spread_of(found) or found.rms) / found.scale
    each = rows(unit + _TINY)
    squares, max_abs, max_scaled = float(each[:, 0].sum()), float(each[:, 1].amax()), float(each[:, 2].amax())
    return Errors(math.sqrt(squares) / max(unit * math.sqrt(found.count), _TINY), max_scaled, max_abs * found.scale)


def larger(one: float, other: float) -> float:
    """The maximum; NaN if either is."""
    return other if other > one or math.isnan(other) else one


def _differing(output: torch.Tensor, reference: torch.Tensor, undecided: torch.Tensor | None) -> int:
    """How many integers or booleans differ, apart from the undecided ones."""
    counts: list[torch.Tensor] = []
    for mine, right, *open_ones in in_blocks(*([output, reference] if undecided is None else [output, reference, undecided])):
        differ = as_numbers(mine) != as_numbers(right.to(mine.dtype))
        counts.append((differ & ~open_ones[0] if open_ones else differ).sum())
    return int(sum(read_numbers(counts)))


def spread(reference: torch.Tensor) -> float:
    """rms(r−mean(r)) of finite numbers; 0 if negligible relative to rms(r)."""
    return spread_of(remembered_moments(reference, lambda: (block for (block,) in in_blocks(reference))))


def spread_of(found: Moments) -> float:
    """``spread`` of a tensor with these moments."""
    return found.deviation if found.deviation > _NEGLIGIBLE * found.rms else 0.0


def has_finite_sum(tensor: torch.Tensor) -> bool:
    """True only if every element is finite (the sum of a finite tensor may overflow). Reads once; a mask would write too."""
    return math.isfinite(float(tensor.sum(dtype=torch.float64)))


def _mask_flaw(output: torch.Tensor, reference: torch.Tensor, name: str) -> str:
    """A message on elements that are finite in one only, or not finite in another way; empty if there are none."""
    fused = fused_pair(output, reference, "unlike")
    if fused is not None and not any(fused.unlike()):
        return ""
    sizes: list[int] = []
    rows: list[torch.Tensor] = []
    for mine, right in in_blocks(output, reference):
        there = torch.isfinite(right)
        apart = torch.isfinite(mine) != there
        place = apart.to(torch.uint8).argmax()  # the first
        same = there | (torch.isnan(mine) & torch.isnan(right)) | (mine.to(torch.float64) == right)
        rows.append(torch.stack((apart.sum(), place, there.take(place).to(torch.int64), (~same).sum())))
        sizes.append(mine.numel())
    wrong, first, done, differ = 0, "", 0, False
    for size, (count, place_here, should_be_finite, others) in zip(sizes, read_rows(rows), strict=True):
        if count:
            what = "is not finite" if should_be_finite else "is finite where the reference is not"
            first = first or f"the first at {done + int(place_here)} {what} (unwritten or overflowed?)"
        wrong, differ, done = wrong + int(count), differ or others > 0, done + size
    if wrong:
        return f"{name}: {wrong} of {output.numel()} elements wrong, {first}"
    return f"{name}: infinities or NaNs differ from the reference's" if differ else ""


def rounding_errors(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Errors:
    """The error of the expected outputs, rounded to the types of the outputs."""
    inexact = [(o, e) for o, e in zip(outputs, expected, strict=True) if not compared_exactly(o) and o.numel()]
    real = [real_parts(o, e) for o, e in inexact]
    return worst_of(finite_rounding(e, e, o.dtype) for o, e in real)


def rounded_pairs(pairs: Pairs, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The expected elements of the pairs in a type, with themselves; without those that overflow in it."""
    for _, right in pairs():
        rounded = comparable(right.to(dtype))
        kept = torch.isfinite(rounded)
        yield rounded[kept], right[kept]


def worst_of(found: Iterable[Errors]) -> Errors:
    worst = NO_ERROR
    for errors in found:
        worst = worst.worst(errors)
    return worst
