"""The error allowed for an output (``comparison``) by precision class, and what a policy asks and answers. Imports torch.

Policies are in ``class_policy`` and ``policies``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.domain.mismatch import Mismatch
from engine.domain.model import PrecisionClass
from engine.trial.judge.outputs.comparison import Errors
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.outputs.undecided import SeenRange

HOPELESS = 0.25
"""Limits above this do not discriminate: such inputs are not judged, and no limit on the problem's own is widened that far."""
FACTORS: Mapping[PrecisionClass, float] = {PrecisionClass.FP32: 10.0, PrecisionClass.TF32: 3.0, PrecisionClass.HALF: 3.0}
"""The allowed multiple of the reference error of a class. TF32 and bf16 are a factor of 8 apart: 3 separates them. fp32 and
TF32 are about 1000 apart: 10 leaves room for another order of summation."""
ORDER = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)

_EPSILON = {
    torch.float64: 2.0**-50, torch.float32: 2.0**-21, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7,
    torch.float8_e4m3fn: 2.0**-5, torch.float8_e5m2: 2.0**-4,
}  # fmt: skip
"""Lower bounds on limits, a few units in the last place, of eight-bit floats half of one: an eager reference can be exact by
luck."""

HALVES = (torch.float16, torch.bfloat16)
"""Rounding to these types dominates every error: fp32 arithmetic gets no larger factor than half."""
_LEAST_OF_HALF = 1e-4
"""Half precision errs 2e-4 (fp16) or 2e-3 (bf16) of the spread, fp32 a hundredth of that. A limit up to this is one of fp32."""
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
EIGHT_BITS_FACTOR = 1.25
"""The factor for outputs of eight-bit floats, in every class. Rounding to them errs 3 or 5% of the spread, and honest
arithmetic adds next to nothing: with a factor of 3, results that are 7% too large would pass."""


def factor_of(precision: PrecisionClass, dtype: torch.dtype, *, from_half: bool = False) -> float:
    """The allowed multiple of the reference error of a class, for outputs of a type.

    ``from_half``: whether the reference rounds to half precision on its way to a wide output.
    """
    if dtype in _EIGHT_BITS:
        return EIGHT_BITS_FACTOR
    return min(FACTORS[precision], FACTORS[PrecisionClass.HALF]) if from_half or dtype in HALVES else FACTORS[precision]


def error_limit(
    allowed: PrecisionClass, classes: Mapping[str, RelativeErrors], dtype: torch.dtype, *, from_half: bool = False
) -> RelativeErrors:
    """The limits of class ``allowed``: the largest of its own and each stricter class's.

    ``from_half``: errors of half precision get its factor, smaller ones that of their class.
    """
    floor = _EPSILON.get(dtype, 0.0)
    rel_fro = max_scaled = floor
    for name in ORDER[: ORDER.index(allowed) + 1]:
        found = classes.get(name.value)
        if found is not None:
            factors = factor_of(name, dtype), factor_of(name, dtype, from_half=from_half)
            rel_fro = max(rel_fro, _multiple(found.rel_fro, *factors))
            max_scaled = max(max_scaled, _multiple(found.max_scaled, *factors))
    return RelativeErrors(rel_fro, max_scaled)


def errs_as_half(errors: RelativeErrors) -> bool:
    """Whether these errors on the problem's own inputs are those of half precision: an exact constant makes none."""
    return FACTORS[PrecisionClass.HALF] * errors.rel_fro > _LEAST_OF_HALF


def _multiple(error: float, factor: float, of_half: float) -> float:
    """The limit for an error of the reference, which a smaller factor allows where it is one of half precision."""
    return max(of_half * error, min(factor * error, _LEAST_OF_HALF)) if of_half < factor else factor * error


def strictest_class(errors: Errors, classes: Mapping[str, RelativeErrors], dtype: torch.dtype) -> PrecisionClass:
    """The strictest class whose limits these errors meet."""
    for name in ORDER:
        limit = error_limit(name, classes, dtype)
        if name.value in classes and errors.rel_fro <= limit.rel_fro and errors.max_scaled <= limit.max_scaled:
            return name
    return PrecisionClass.NONE


def within(errors: Errors, limit: RelativeErrors) -> bool:
    """Whether ``errors`` meet ``limit``, those of each output its own. NaN never does."""
    if errors.by_output:
        return all(within(one, limit.for_output(index)) for index, one in enumerate(errors.by_output))
    return not errors.flaw and errors.rel_fro <= limit.rel_fro and errors.max_scaled <= limit.max_scaled


class CaseReference(Protocol):
    """The reference on the judged case. Its methods call the reference."""

    def errors(self, wanted: Sequence[PrecisionClass]) -> Mapping[str, RelativeErrors]:
        """The reference error in these precision classes."""

    def plain_sums(self) -> Iterator[RelativeErrors]:
        """The reference errors with sums in plain loops, one order after the other."""

    def tf32_sums(self) -> RelativeErrors | None:
        """The reference error in fp32 with sums of terms that are rounded to TF32; ``None`` where it has none."""

    def rounded_inputs(self) -> RelativeErrors:
        """How far the output moves where the inputs move in their last places."""

    def rounded_results(self) -> RelativeErrors:
        """How far it moves where the inputs and the results of all arithmetic do; of half precision, where operands of products
        do."""

    def rounded_functions(self) -> RelativeErrors:
        """How far it moves where functions of exponentials err as their usual formulas do; not at all without any."""

    @property
    def convolves(self) -> bool:
        """Whether the reference has a convolution."""

    def undecided(self, most: float) -> Sequence[SeenRange | None]:
        """For each output, the values of its integers in runs close by, up to this undecided share; ``None`` if it has none."""

    def own_outputs(self) -> Sequence[torch.Tensor]:
        """The outputs of the reference's own arithmetic."""

    @property
    def selects(self) -> bool:
        """Whether the reference has operators that return indices."""

    def ties_decide(self) -> Sequence[bool]:
        """For each output, whether it follows from an index of equal scores with which the reference computes."""

    def nearest_seen(self, outputs: Sequence[torch.Tensor], limit: float, most: float) -> Sequence[torch.Tensor] | None:
        """The expected outputs, with values seen close by where elements jump; ``None`` where that cannot help."""

    def equivalent(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """For each output, a mask of the indices that select what the reference's select; ``None`` if it holds no indices."""

    def defined(self, masks: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether arithmetic on special inputs decides any of the masked elements of these outputs."""

    def replaces(self, distribution: str) -> bool:
        """Whether the reference says what NaN, or infinities, among its inputs mean."""


class WholeCase(CaseReference, Protocol):
    """The reference on the judged case, for all outputs."""

    def by_output(self, outputs: Sequence[torch.Tensor]) -> Sequence[CaseReference]:
        """The reference on this case for each output by itself."""

    def in_order_of(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """The expected outputs with elements whose order is open in that of ``outputs``; ``None`` if there are none."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A policy's decision on one set of outputs."""

    errors: Errors
    passed: bool
    caveat: str = ""
    """A difference that is reported and does not fail the kernel."""
    limit: RelativeErrors | None = None
    """The limits that were applied."""
    own_errors: RelativeErrors | None = None
    """The reference's own errors on this case, if they are as large, and larger than any limit may be: nothing is known of the
    kernel then."""
    unmeasured: bool = False
    """Whether nothing is decided: the errors exceed the least that the limits can be, and those have not been measured."""
    undefined: str = ""
    """Why nothing is known of the kernel: the reference's outputs on this case are undefined."""
    evidence: tuple[Mismatch, ...] = ()
    """Where the outputs are wrong."""
    output: str = ""
    """The name of the first wrong output, where there are several."""


def joined(alone: Sequence[CheckResult], names: Sequence[str]) -> CheckResult:
    """The decision on all outputs: the first wrong one is named, before one of which nothing is known."""
    limits = [one.limit for one in alone if one.limit is not None]
    wrong = [index for index, one in enumerate(alone) if not one.passed]
    first = min(wrong, key=lambda index: alone[index].own_errors is not None, default=None)
    return CheckResult(
        Errors.of_outputs([one.errors for one in alone]),
        passed=first is None,
        caveat="; ".join(dict.fromkeys(one.caveat for one in alone if one.caveat)),
        limit=RelativeErrors.of_outputs(limits) if len(limits) == len(alone) else None,
        own_errors=None if first is None else alone[first].own_errors,
        unmeasured=any(one.unmeasured for one in alone),
        output="" if first is None else names[first],
    )
