"""Counts where an output is wrong, block by block, and keeps a few wrong elements: the evidence of a mismatch. Imports torch.

The reference's values are read once, in blocks and in any order. Nothing is kept of them but sums and three elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from engine.domain.mismatch import Mismatch, WrongElement
from engine.domain.model import PrecisionClass
from engine.trial.judge.outputs.blocks import as_rows_of_bytes, in_blocks, moments
from engine.trial.judge.outputs.comparison import Errors, compared_exactly, spread_of
from engine.trial.judge.outputs.mismatch_patterns import PERIODS, Sums, WrongCounts, observations
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.policies import AllclosePolicy, Policy
from engine.trial.judge.tolerance.policy import ORDER, CheckResult, strictest_class, within

BLOCK = 1 << 21
"""Elements of the reference that are looked at together."""
_SAMPLED = 512
"""Wrong elements of a block that are compared with displaced elements of the reference."""
_MOST_SAMPLED = 4096
_SHIFTING = 8
"""Least extent of a dimension in which neighbours are compared."""


class MismatchTally:
    """The wrong elements of one output.

    An element is wrong if |o − r| > ``limit`` · (``unit`` + |r|), without |r| if ``flat``, or if only one of o and r is finite.
    Integers and booleans are wrong where they differ.
    """

    def __init__(
        self, name: str, output: torch.Tensor, limit: float, unit: float, poisons: Sequence[int], *, flat: bool = False
    ) -> None:
        """``poisons``: the bytes that may have filled the output before the call."""
        self._name, self._limit, self._unit, self._flat = name, limit, unit, flat
        self._output = torch.view_as_real(output) if output.dtype.is_complex else output
        self._shape = tuple(self._output.shape)
        self._values = self._output.contiguous().reshape(-1)
        self._bytes = self._values.view(torch.uint8).reshape(self._values.numel(), -1) if self._values.numel() else None
        self._poisons = poisons
        rank = len(self._shape)
        self._strides = [math.prod(self._shape[d + 1 :]) for d in range(rank)]
        self._low, self._high = [2**62] * rank, [-1] * rank
        self._residues = [torch.zeros(PERIODS, dtype=torch.int64) for _ in range(rank + 1)]
        self._first, self._last, self._worst = 2**62, -1, (-1.0, 2**62)
        self._examples: dict[int, WrongElement] = {}
        self._wrong = self._not_written = self._not_finite = self._finite = self._sampled = 0
        self._sums = Sums()
        self._swapped = {(a, b): 0 for a in range(rank) for b in range(a + 1, rank) if min(self._shape[a], self._shape[b]) > 1}
        self._shifted = {(d, by): 0 for d, n in enumerate(self._shape) if n >= _SHIFTING for by in (1, -1)}

    def add(self, start: int, expected: torch.Tensor) -> None:
        """Compare with the reference's elements from position ``start`` on."""
        right = torch.view_as_real(expected) if expected.dtype.is_complex else expected
        right = right.reshape(-1).to(self._values.device)
        got = self._values[start : start + right.numel()]
        if compared_exactly(got):
            wrong = got != right.to(got.dtype)
            error = wrong.double()
        else:
            right = right.double()
            error, wrong = self._errors(got.double(), right)
        if bool(wrong.any()):
            where = torch.nonzero(wrong).reshape(-1)
            self._count(start, where, got[where], right[where], error[where])

    def _errors(self, got: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        difference = (got - right).abs()
        scale = torch.full_like(right, self._unit) if self._flat else right.abs() + self._unit
        error = torch.where(difference == 0, 0.0, difference / scale).nan_to_num(math.inf, math.inf)
        same = torch.isnan(got) & torch.isnan(right) | (got == right)
        return error.masked_fill_(same, 0.0), ~same & (error > self._limit)

    def _count(self, start: int, where: torch.Tensor, got: torch.Tensor, right: torch.Tensor, error: torch.Tensor) -> None:
        at = where + start
        self._wrong += at.numel()
        self._first, self._last = min(self._first, int(at[0])), max(self._last, int(at[-1]))
        for dim, (extent, stride) in enumerate(zip(self._shape, self._strides, strict=True)):
            index = at.div(stride, rounding_mode="floor").remainder_(extent)
            self._low[dim] = min(self._low[dim], int(index.min()))
            self._high[dim] = max(self._high[dim], int(index.max()))
            self._residues[dim] += torch.bincount(index.remainder_(PERIODS), minlength=PERIODS).cpu()
        self._residues[-1] += torch.bincount(at.remainder(PERIODS), minlength=PERIODS).cpu()
        most = int(error.argmax())
        self._worst = max(self._worst, (float(error[most]), -int(at[most])))
        for place in {0, most, at.numel() - 1}:
            self._keep(int(at[place]), float(right[place]), float(got[place]), float(error[place]))
        self._kinds(at, got, right)
        self._displaced(at, got, right)

    def _keep(self, at: int, expected: float, got: float, error: float) -> None:
        index = tuple(at // stride % extent for stride, extent in zip(self._strides, self._shape, strict=True))
        assert self._bytes is not None
        written = not bool(hold_one_of(self._poisons, self._bytes[at : at + 1]))
        self._examples[at] = WrongElement(index, expected, got, error, written)
        wanted = {self._first, -self._worst[1], self._last}
        self._examples = {place: one for place, one in self._examples.items() if place in wanted or place == at}

    def _kinds(self, at: torch.Tensor, got: torch.Tensor, right: torch.Tensor) -> None:
        assert self._bytes is not None
        self._not_written += int(hold_one_of(self._poisons, self._bytes[at]).sum())
        o, e = got.double(), right.double()
        both = torch.isfinite(o) & torch.isfinite(e)
        self._not_finite += int((~torch.isfinite(o) & torch.isfinite(e)).sum())
        self._finite += int((torch.isfinite(o) & ~torch.isfinite(e)).sum())
        o, e = o[both], e[both]
        if not o.numel():
            return
        d, known = o - e, self._sums
        self._sums = Sums(
            known.count + o.numel(), known.e_squared + float(e.dot(e)), known.o_squared + float(o.dot(o)),
            known.product + float(o.dot(e)), known.d + float(d.sum()), known.d_squared + float(d.dot(d)),
            min(known.least, float(o.min())), max(known.largest, float(o.max())),
        )  # fmt: skip

    def _displaced(self, at: torch.Tensor, got: torch.Tensor, right: torch.Tensor) -> None:
        """Look for a few wrong elements' expected values where they would be in a transposed or shifted output."""
        if self._sampled >= _MOST_SAMPLED:
            return
        # Positions that share no period with the shape.
        chosen = torch.linspace(0, at.numel() - 1, min(at.numel(), _SAMPLED), device=at.device).long()
        at, right = at[chosen], right[chosen]
        self._sampled += at.numel()
        index = [at.div(s, rounding_mode="floor").remainder_(n) for s, n in zip(self._strides, self._shape, strict=True)]
        for (a, b), count in self._swapped.items():
            order = list(range(len(self._shape)))
            order[a], order[b] = b, a
            place = torch.zeros_like(at)
            for dim in order:
                place = place * self._shape[dim] + index[dim]
            self._swapped[a, b] = count + self._matching(place, right)
        for (dim, by), count in self._shifted.items():
            inside = (index[dim] - by >= 0) & (index[dim] - by < self._shape[dim])
            place = at - by * self._strides[dim]
            self._shifted[dim, by] = count + int((~inside).sum()) + self._matching(place[inside], right[inside])

    def _matching(self, place: torch.Tensor, right: torch.Tensor) -> int:
        got = self._values[place]
        if compared_exactly(got):
            return int((got == right.to(got.dtype)).sum())
        return int((~self._errors(got.double(), right)[1]).sum())

    def result(self, like: str = "") -> Mismatch | None:
        """The evidence; ``None`` if no element is wrong. ``like``: a precision class whose arithmetic errs as much."""
        if not self._wrong:
            return None
        chosen = [self._examples[place] for place in dict.fromkeys((self._first, -self._worst[1], self._last))]
        held = self._not_written
        if _happens(self._output.dtype, held, self._wrong):
            held, chosen = 0, [replace(one, written=True) for one in chosen]
        counts = WrongCounts(
            self._name, self._shape, self._wrong, tuple(self._low), tuple(self._high),
            tuple(r.tolist() for r in self._residues[:-1]), self._first, self._last, self._residues[-1].tolist(),
            held, self._not_finite, self._finite, self._sums, self._sampled, self._swapped, self._shifted, like,
        )  # fmt: skip
        return Mismatch(
            self._name, self._shape, self._wrong, self._values.numel(), self._limit, observations(counts), tuple(chosen)
        )


def with_evidence(
    ruling: CheckResult, policy: Policy, distribution: str, outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor],
    names: Sequence[str], poisons: Sequence[int],
) -> CheckResult:  # fmt: skip
    """The refusal of outputs, with where they are wrong, and whether they were written at all."""
    limit, classes = ruling.limit or policy.limit(distribution), policy.classes[distribution]
    found = evidence(policy, ruling.errors, limit, outputs, expected, names, classes, poisons)
    flaw = unwritten(outputs, expected, names, poisons) or ruling.errors.flaw
    return replace(ruling, evidence=found, errors=replace(ruling.errors, flaw=flaw))


def evidence(
    policy: Policy,
    errors: Errors,
    limit: RelativeErrors,
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    classes: Mapping[str, RelativeErrors],
    poisons: Sequence[int],
) -> tuple[Mismatch, ...]:
    """The wrong elements of outputs that failed the check with these errors and limits, most wrong first."""
    found: list[Mismatch] = []
    for index, (output, right, name) in enumerate(zip(outputs, expected, names, strict=True)):
        mine, own_limit = errors.for_output(index), limit.for_output(index)
        if errors.by_output and within(mine, own_limit):
            continue
        tally = _tally(policy, mine, own_limit, output, right, name, poisons)
        own_classes = {known: one.for_output(index) for known, one in classes.items()}
        flat = right.reshape(-1)
        for start in range(0, flat.numel(), BLOCK):
            tally.add(start, flat[start : start + BLOCK].to(output.device))
        if (one := tally.result(arithmetic_like(mine, own_classes, output.dtype))) is not None:
            found.append(one)
    return tuple(sorted(found, key=lambda one: -one.share))


def _tally(
    policy: Policy,
    errors: Errors,
    limit: RelativeErrors,
    output: torch.Tensor,
    right: torch.Tensor,
    name: str,
    poisons: Sequence[int],
) -> MismatchTally:
    if compared_exactly(output):
        return MismatchTally(name, output, 0.0, 1.0, poisons)
    if isinstance(policy, AllclosePolicy):
        return MismatchTally(name, output, policy.tolerance, 1.0, poisons)
    unit = _unit(right)
    if errors.flaw or errors.max_scaled > limit.max_scaled:
        return MismatchTally(name, output, limit.max_scaled, unit, poisons)
    return MismatchTally(name, output, limit.rel_fro, unit, poisons, flat=True)


def _unit(reference: torch.Tensor) -> float:
    """rms(r − mean(r)) of the finite elements, or rms(r) without a spread."""
    real = torch.view_as_real(reference) if reference.is_complex() else reference
    flat = real.reshape(-1)
    blocks = [flat[start : start + BLOCK] for start in range(0, flat.numel(), BLOCK)]
    found = moments(lambda: (block[torch.isfinite(block)] for block in blocks))
    return spread_of(found) or found.rms or 1.0


_WORDS = {PrecisionClass.TF32: "TF32", PrecisionClass.HALF: "half precision"}
_SINGLE = 2.0**-21
"""Errors of float64 outputs that single precision explains: a few units in its last place."""


def arithmetic_like(errors: Errors, classes: Mapping[str, RelativeErrors], dtype: torch.dtype) -> str:
    """The lower precision whose arithmetic errs as much; empty for none."""
    if errors.flaw or not dtype.is_floating_point or not any(name.value in classes for name in ORDER):
        return ""
    if dtype == torch.float64 and max(errors.rel_fro, errors.max_scaled) <= _SINGLE:
        return "single precision"
    return _WORDS.get(strictest_class(errors, classes, dtype), "")


def on_holdout(found: Sequence[Mismatch]) -> tuple[Mismatch, ...]:
    """The evidence, marked as a hold-out shape's."""
    return tuple(replace(one, holdout=True) for one in found)


def _happens(dtype: torch.dtype, held: int, wrong: int) -> bool:
    """Whether ``held`` of the ``wrong`` elements only happen to equal the poison, where others are wrong too: a byte may, and
    integers."""
    single_byte = dtype.itemsize == 1 and dtype != torch.bool
    return held < wrong and (single_byte or not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool))


def hold_one_of(poisons: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
    """Which rows of bytes repeat one of these bytes."""
    return torch.stack([(rows == poison).all(dim=1) for poison in poisons]).any(dim=0)


def unwritten(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], names: Sequence[str], poisons: Sequence[int]
) -> str:
    """A message on elements of a wrong output that still hold one of the poisons; empty if there are none.

    Right outputs can equal the poison (a byte of 0x5B, −1, NaN); they are not reported as unwritten. Nor are wrong integers
    that happen to equal it. One poison is a NaN, which a vectorised logarithm of a negative number returns too.
    """
    for output, reference, name in zip(outputs, expected, names, strict=True):
        if not output.numel():
            continue
        count, wrong, first, done, nans = 0, 0, -1, 0, 0
        for mine, wide in in_blocks(output, reference):
            right = wide.to(mine.dtype)
            differs = (as_rows_of_bytes(mine) != as_rows_of_bytes(right)).any(dim=1) & ~(mine.isnan() & right.isnan())
            untouched = hold_one_of(poisons, as_rows_of_bytes(mine)) & differs
            wrong += int(differs.sum())
            if here := int(untouched.sum()):
                first = done + int(torch.nonzero(untouched)[0]) if first < 0 else first
                count += here
                nans += int((untouched & mine.isnan()).sum())
            done += mine.numel()
        if count and not _happens(output.dtype, count, wrong):
            or_nan = " or NaN" if nans == count else ""
            return f"{name}: {count} of {output.numel()} elements not written{or_nan}, the first at {first}"
    return ""
