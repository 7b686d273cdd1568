"""Integers and booleans that rounding alone decides, with the values that they take in runs close by. Imports torch.

A code of a quantisation may be one more or less, and a sum of codes a few more. Such an element is right within the range that
the reference shows on inputs that differ in their last places, or with its sums in another order, and only there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.trial.judge.outputs.blocks import as_numbers, in_blocks, moments
from engine.trial.judge.outputs.comparison import compared_exactly, spread_of

_NARROW = 0.01
"""A range of at most this share of the output's spread says as little of a kernel as rounding: it counts for no limit."""

_OWN_FACTOR = 2
"""So many times as many elements as the reference's own arithmetic gets wrong may be wrong, each by no more than it errs."""
_LEAST_OF_OWN, _MOST_OF_OWN = 0.01, 0.25
"""The shares of wrong elements between which that arithmetic says something: few may be decided by rounding in any case."""


@dataclass(frozen=True, slots=True)
class SeenRange:
    """The least and the largest value of each element; booleans as bytes."""

    least: torch.Tensor
    largest: torch.Tensor

    def with_values(self, values: torch.Tensor) -> SeenRange:
        """The range that holds these values too."""
        same = as_numbers(values).to(self.least.dtype).to(self.least.device)
        return SeenRange(torch.minimum(self.least, same), torch.maximum(self.largest, same))

    def holds(self, output: torch.Tensor, *, ends_only: bool) -> torch.Tensor:
        """Which elements are within the range. ``ends_only``: one of its ends, because an index between two says nothing."""
        mine = as_numbers(output)
        least, largest = (one.to(mine.device) for one in (self.least, self.largest))
        return (mine == least) | (mine == largest) if ends_only else (mine >= least) & (mine <= largest)

    @property
    def share(self) -> float:
        """The share of the elements that vary."""
        return float((self.largest != self.least).double().mean()) if self.least.numel() else 0.0

    def undecided(self, unit: float) -> int:
        """How many elements vary by more than little in this unit."""
        return int(((self.largest.double() - self.least.double()) > _NARROW * unit).sum())


def seen_ranges(
    expected: Sequence[torch.Tensor], runs: Iterator[Sequence[torch.Tensor]], most: float
) -> list[SeenRange | None]:
    """The ranges of the expected integers and booleans over these runs; ``None`` for other outputs.

    A run counts for an output as long as no more than the share ``most`` of it, or one element, is undecided.
    """
    found = [SeenRange(as_numbers(e), as_numbers(e)) if compared_exactly(e) else None for e in expected]
    units = [_unit(e) if compared_exactly(e) else 0.0 for e in expected]
    for outputs in runs:
        for index, (known, values) in enumerate(zip(found, outputs, strict=True)):
            if known is None:
                continue
            wider = known.with_values(values)
            if wider.undecided(units[index]) <= max(1, int(most * values.numel())):
                found[index] = wider
    return found


def as_close_as(output: torch.Tensor, expected: torch.Tensor, own: torch.Tensor) -> torch.Tensor | None:
    """Where an output of integers is as close to the expected one as that of the reference's ``own`` arithmetic is.

    A reference that rounds to half precision before it quantises gets a tenth of its codes wrong by one. ``None`` where the
    output differs in more than twice as many elements, or the reference's own in so few or so many that it says nothing.
    """
    wrong = theirs = apart = 0
    for mine, right, eager in in_blocks(as_numbers(output), as_numbers(expected), as_numbers(own)):
        difference = (eager.to(torch.int64) - right.to(torch.int64)).abs()
        wrong += int((mine != right.to(mine.dtype)).sum())
        theirs += int((difference != 0).sum())
        apart = max(apart, int(difference.max()))
    share = theirs / max(1, output.numel())
    if not _LEAST_OF_OWN < share <= _MOST_OF_OWN or wrong > _OWN_FACTOR * theirs:
        return None
    close = torch.zeros(output.shape, dtype=torch.bool, device=output.device)
    for found, mine, right in in_blocks(close, as_numbers(output), as_numbers(expected)):
        found.copy_((mine.to(torch.int64) - right.to(torch.int64)).abs() <= apart)
    return close


def _unit(integers: torch.Tensor) -> float:
    known = moments(lambda: (block for (block,) in in_blocks(integers)))
    return spread_of(known) or known.rms
