"""Errors and limits of outputs, by output where there are several. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RelativeErrors:
    """Errors of outputs relative to float64's: of the reference in one precision class, or the largest that are allowed."""

    rel_fro: float
    """Of a whole output (``comparison``)."""
    max_scaled: float
    """Of a single element, relative to its scale."""
    by_output: tuple[RelativeErrors, ...] = ()
    """The errors of each output where there are several; then the others are the largest of them."""

    @staticmethod
    def of_outputs(found: Sequence[RelativeErrors]) -> RelativeErrors:
        """From the errors of each output."""
        first, *others = found
        return replace(first.wider(*others), by_output=tuple(found)) if others else first

    def for_output(self, output: int) -> RelativeErrors:
        """The errors of one output."""
        return self.by_output[output] if self.by_output else self

    def each(self, change: Callable[[int, RelativeErrors], RelativeErrors]) -> RelativeErrors:
        """The errors of each output, changed."""
        return RelativeErrors.of_outputs(
            [change(index, self.for_output(index)) for index in range(max(1, len(self.by_output)))]
        )

    def wider(self, *others: RelativeErrors) -> RelativeErrors:
        """The largest error of each kind. NaN measures nothing and widens nothing; no error is within NaN alone."""
        every = (self, *others)
        if count := max(len(one.by_output) for one in every):
            alone = [[one.for_output(index) for one in every] for index in range(count)]
            return RelativeErrors.of_outputs([first.wider(*more) for first, *more in alone])
        return RelativeErrors(_largest(one.rel_fro for one in every), _largest(one.max_scaled for one in every))

    def times(self, factor: float) -> RelativeErrors:
        """A multiple of all errors."""
        return RelativeErrors(
            factor * self.rel_fro, factor * self.max_scaled, tuple(one.times(factor) for one in self.by_output)
        )


def _largest(errors: Iterable[float]) -> float:
    return max((error for error in errors if not math.isnan(error)), default=math.nan)
