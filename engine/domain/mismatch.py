"""Where and how an output was wrong: the evidence of a failed correctness check. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pattern(StrEnum):
    """What the wrong elements have in common."""

    EVERYTHING = "everything"
    ELEMENT = "element"
    """One element."""
    SLICE = "slice"
    """One index of one dimension: a row, a column, a plane."""
    SLICES = "slices"
    """A few indices of one dimension."""
    TAIL = "tail"
    """The end of one dimension, or of the output in memory."""
    HEAD = "head"
    """The beginning of one dimension, or of the output in memory."""
    RANGE = "range"
    """A part of one dimension, or of the output in memory."""
    TILE = "tile"
    """A box that is bounded in several dimensions."""
    STRIPE = "stripe"
    """A periodic part of one dimension, or of the output in memory."""
    SCATTERED = "scattered"
    NOT_WRITTEN = "not_written"
    NOT_FINITE = "not_finite"
    """NaN or infinite where the reference is finite."""
    FINITE = "finite"
    """Finite where the reference is not."""
    ZERO = "zero"
    CONSTANT = "constant"
    """The same number everywhere."""
    FACTOR = "factor"
    """The expected values times one number."""
    OFFSET = "offset"
    """The expected values plus one number."""
    TRANSPOSED = "transposed"
    """The expected values with two dimensions swapped in memory."""
    SHIFTED = "shifted"
    """The expected values of a neighbouring index."""
    PRECISION = "precision"
    """Errors as small as those of a precision class that is not allowed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One finding about the wrong elements of an output."""

    kind: Pattern
    text: str
    """With indices and numbers, in Python's index notation."""
    general: str
    """The same without the output's sizes: what a prompt may say of a hold-out shape."""


@dataclass(frozen=True, slots=True)
class WrongElement:
    """One wrong element."""

    index: tuple[int, ...]
    expected: float
    got: float
    error: float
    """|got − expected| in units of the element's scale |r| + rms(r − mean(r)); infinite where one of them is not finite."""
    written: bool = True
    """Whether the kernel wrote it: ``got`` is what the judge filled the output with, if not."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The wrong elements of one output in the call that failed."""

    output: str
    shape: tuple[int, ...]
    wrong: int
    """Elements whose error exceeds ``limit``, or that are finite in only one of output and reference."""
    elements: int
    limit: float
    """The error that an element may have, in units of its scale; 0 where elements are compared exactly."""
    observations: tuple[Observation, ...]
    """Where the wrong elements are, then what they have in common."""
    examples: tuple[WrongElement, ...]
    """The first, the worst and the last wrong element."""
    inputs: str = "own"
    """The distribution of the inputs: ``own``, or the name of a perturbation."""
    call: int = 0
    """The call that failed, from 1."""
    holdout: bool = False
    """Whether it was on a hold-out shape. Prompts then contain no figures of it."""

    @property
    def share(self) -> float:
        """The share of elements that are wrong."""
        return self.wrong / self.elements if self.elements else 0.0
