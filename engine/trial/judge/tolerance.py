"""Tolerance: the error allowed for an output (``comparison``), and the policies that decide. Imports torch.

Of integers, which are compared exactly, indices that select an equal element (``ties``) may differ, and those that a few units
in the last place of the inputs decide, within the range of what they make of them (``undecided``).

Policy ``class`` (the default) compares with float64 and allows a multiple of the reference error of the allowed precision
class. ``crfm`` and ``kernelbench`` compare with eager PyTorch by ``allclose``, as the published work does; they exist for
comparison, and pass outputs that ``class`` rejects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.domain.errors import ProblemError
from engine.domain.mismatch import Mismatch
from engine.domain.model import PrecisionClass
from engine.domain.preparation import ClassErrors
from engine.domain.settings import TOLERANCES
from engine.trial.judge import special_values
from engine.trial.judge.blocks import in_blocks, read_numbers
from engine.trial.judge.comparison import (
    NO_ERROR,
    Errors,
    compare,
    compared_exactly,
    finite_errors,
    finite_pairs,
    finite_rounding,
    larger,
    real_parts,
    rounding_errors,
    worst_of,
)
from engine.trial.judge.perturbations import OWN, SPECIAL, ZERO_SLICES
from engine.trial.judge.undecided import SeenRange

_CRFM = 1e-2
"""The absolute and relative tolerance of ``crfm``."""
_KERNELBENCH = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Those of ``kernelbench`` by type;"""
_KERNELBENCH_HALF = 1e-2
"""for all other types."""
HOPELESS = 0.25
"""Limits above this do not discriminate: such inputs are not judged, and no limit on the problem's own is widened that far."""
FACTORS: Mapping[PrecisionClass, float] = {PrecisionClass.FP32: 10.0, PrecisionClass.TF32: 3.0, PrecisionClass.HALF: 3.0}
"""The allowed multiple of the reference error of a class. TF32 and bf16 are a factor of 8 apart: 3 separates them. fp32 and
TF32 are about 1000 apart: 10 leaves room for another order of summation."""
PLAIN_SUMS_FACTOR = 2.0
"""The allowed multiple of the fp32 error of sums in plain loops. The error of n additions in a row grows with the root of n,
and libraries add in a tree: 8192 exponentials in a row err up to 60 times as much. The same loop backwards differs by a fifth.
Where 8192 terms are alike, rounding each to TF32 costs their sum no more than the loop does; where a few terms are most of the
sum it costs far more: see ``TF32_SUMS_SHARE``."""
TF32_SUMS_SHARE = 0.5
"""The share of the error of sums of TF32 terms that no limit of fp32 exceeds, on inputs on which fp32 errs less. Limits for a
distribution are at least those on the problem's own inputs, and may exceed what lower precision errs on this case."""
ROUNDED_INPUTS_FACTOR = 10.0
"""The allowed multiple of what rounding the inputs alone errs on perturbed inputs. Where scores of thousands nearly tie, the
order of a sum decides the softmax (attention, ``x64``): in 5 cases of 400 a right kernel erred over ten times as much as the
reference, up to three times what rounding the inputs did. TF32 errs hundreds of times as much there."""
MOST_FROM_ROUNDING = 1e-3
"""Errors above this are not put down to rounding, and the reference is not asked."""
MOST_UNDECIDED = 0.01
"""The share of the integers of an output on the problem's own inputs that rounding may decide. On perturbed inputs all may be:
sums near zero, or of numbers far from it, say little of a kernel, and its integers are checked on the problem's own too."""
_PLAINLY_FP32 = 1e-5
"""An error up to this is not taken for one of lower precision, whatever the inputs: the reference is not asked."""

ORDER = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)

_EPSILON = {torch.float64: 2.0**-50, torch.float32: 2.0**-21, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Lower bounds on limits, a few units in the last place: an eager reference can be exact by luck."""

_HALVES = (torch.float16, torch.bfloat16)
"""Rounding to these types dominates every error: fp32 arithmetic gets no larger factor than half."""
_SUMMED = (torch.float32, torch.float64)
"""Types of which plain loops are tried."""


def error_limit(allowed: PrecisionClass, classes: Mapping[str, ClassErrors], dtype: torch.dtype) -> ClassErrors:
    """The limits of class ``allowed``: the largest of its own and each stricter class's."""
    floor = _EPSILON.get(dtype, 0.0)
    rel_fro = max_scaled = floor
    for name in ORDER[: ORDER.index(allowed) + 1]:
        found = classes.get(name.value)
        if found is not None:
            factor = min(FACTORS[name], FACTORS[PrecisionClass.HALF]) if dtype in _HALVES else FACTORS[name]
            rel_fro = max(rel_fro, factor * found.rel_fro)
            max_scaled = max(max_scaled, factor * found.max_scaled)
    return ClassErrors(rel_fro, max_scaled)


def strictest_class(errors: Errors, classes: Mapping[str, ClassErrors], dtype: torch.dtype) -> PrecisionClass:
    """The strictest class whose limits these errors meet."""
    for name in ORDER:
        limit = error_limit(name, classes, dtype)
        if name.value in classes and errors.rel_fro <= limit.rel_fro and errors.max_scaled <= limit.max_scaled:
            return name
    return PrecisionClass.NONE


def within(errors: Errors, limit: ClassErrors) -> bool:
    """Whether ``errors`` meet ``limit``. NaN never does."""
    return not errors.flaw and errors.rel_fro <= limit.rel_fro and errors.max_scaled <= limit.max_scaled


class CaseReference(Protocol):
    """The reference on the judged case. Its methods call the reference."""

    def errors(self, wanted: Sequence[PrecisionClass]) -> Mapping[str, ClassErrors]:
        """The reference error in these precision classes."""

    def plain_sums(self) -> Iterator[ClassErrors]:
        """The reference errors with sums in plain loops, one order after the other."""

    def tf32_sums(self) -> ClassErrors | None:
        """The reference error in fp32 with sums of terms that are rounded to TF32; ``None`` where it has none."""

    def rounded_inputs(self) -> ClassErrors:
        """How far the output moves where the inputs move in their last places."""

    def undecided(self, most: float) -> Sequence[SeenRange | None]:
        """For each output, the values of its integers in runs close by, up to this undecided share; ``None`` if it has none."""

    def equivalent(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """For each output, a mask of the indices that select what the reference's select; ``None`` if it holds no indices."""

    def defined(self, masks: Sequence[torch.Tensor]) -> bool:
        """Whether arithmetic on special inputs decides any of the masked elements."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A policy's decision on one set of outputs."""

    errors: Errors
    passed: bool
    caveat: str = ""
    """A difference that is reported and does not fail the kernel."""
    limit: ClassErrors | None = None
    """The limits that were applied."""
    own_errors: ClassErrors | None = None
    """The reference's own errors on this case, if they are as large, and larger than any limit may be: nothing is known of the
    kernel then."""
    undefined: str = ""
    """Why nothing is known of the kernel: the reference's outputs on this case are undefined."""
    evidence: tuple[Mismatch, ...] = ()
    """Where the outputs are wrong."""


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """Errors against float64, up to a multiple of the reference error of the allowed class, per input distribution."""

    allowed: PrecisionClass
    classes: Mapping[str, Mapping[str, ClassErrors]]
    """Distribution → class → errors."""
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"class:{self.allowed.value} ({FACTORS[self.allowed]:g}x)"

    def limit(self, distribution: str) -> ClassErrors:
        return error_limit(self.allowed, self.classes[distribution], self.dtype)

    def rule(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        case_reference: CaseReference | None = None,
    ) -> CheckResult:
        """Whether the outputs are within tolerance. ``case_reference`` is consulted before a rejection.

        Calibration measures the reference error on a few cases, but it varies by orders of magnitude between cases (nearly tied
        scores, a floor() next to its step). The same multiple of the error on exactly this case is therefore allowed too, and
        the error of plain loops on it. It is consulted too before errors pass that lower precision would explain.
        Perturbed inputs on which the reference itself fails are not judged, such as a division by the norm of zeros. Where it
        returns NaN on them, as for the logarithm of a negative number, the output is open.
        """
        if distribution in SPECIAL and case_reference is not None:
            return self._special(outputs, expected, names, distribution, case_reference)
        if distribution == ZERO_SLICES and not all(map(_is_finite, expected)):
            return CheckResult(NO_ERROR, passed=True)
        errors = compare(outputs, expected, names)
        if errors.flaw and distribution != OWN:
            outputs = _with_undefined(outputs, expected)
            errors = compare(outputs, expected, names)
        if errors.flaw and case_reference is not None and any(map(compared_exactly, outputs)):
            most = MOST_UNDECIDED if distribution == OWN else 1.0
            errors = _compare_with_ties(outputs, expected, names, case_reference, most)
        limit = self.limit(distribution)
        if not within(errors, limit) and distribution != OWN:
            limit = _at_least(limit, rounding_errors(outputs, expected))
        if case_reference is None:
            pass
        elif within(errors, limit):
            limit = self._below_tf32_sums(errors, limit, case_reference)
        elif distribution != OWN or not errors.flaw:
            own = case_reference.errors(ORDER[: ORDER.index(self.allowed) + 1])
            here = error_limit(self.allowed, own, self.dtype)
            if distribution != OWN and (self.allowed.value not in own or here.rel_fro > HOPELESS):
                return CheckResult(NO_ERROR, passed=True)
            limit = limit.wider(here) if here.rel_fro <= HOPELESS else limit
            limit = self._with_plain_sums(errors, limit, distribution, case_reference)
            limit = limit if distribution == OWN else self._with_rounded_inputs(errors, limit, case_reference)
            if not within(errors, limit) and within(errors, limit.wider(here)):
                return CheckResult(errors, False, limit=limit, own_errors=own.get(self.allowed.value))
        return CheckResult(errors, within(errors, limit), limit=limit)

    def _with_plain_sums(
        self, errors: Errors, limit: ClassErrors, distribution: str, case_reference: CaseReference
    ) -> ClassErrors:
        """``limit``, widened by plain loops where they could explain the errors.

        Perturbed inputs on which plain loops are hopeless tell nothing of a kernel that errs as much as they do.
        """
        most = HOPELESS if distribution == OWN else 1.0
        if self.dtype not in _SUMMED or within(errors, limit) or not errors.rel_fro <= most:
            return limit
        for plain in (found.times(PLAIN_SUMS_FACTOR) for found in case_reference.plain_sums()):
            if plain.rel_fro <= HOPELESS or distribution != OWN:
                limit = limit.wider(plain)
            if within(errors, limit):
                break
        return limit

    def _with_rounded_inputs(self, errors: Errors, limit: ClassErrors, case_reference: CaseReference) -> ClassErrors:
        """``limit``, widened by the error of rounding the inputs: the median of five, of which two may cross a step."""
        if self.dtype not in _SUMMED or within(errors, limit) or not errors.rel_fro <= MOST_FROM_ROUNDING:
            return limit
        drawn = sorted((case_reference.rounded_inputs() for _ in range(5)), key=lambda rounded: rounded.rel_fro)
        return limit.wider(drawn[2].times(ROUNDED_INPUTS_FACTOR))

    def _below_tf32_sums(self, errors: Errors, limit: ClassErrors, case_reference: CaseReference) -> ClassErrors:
        """The distribution's ``limit``, narrowed where errors within it are those of sums of lower precision and fp32 errs less
        here.

        Inputs on which sums of TF32 terms err little tell nothing of lower precision: where one term is all of a sum, rounding
        it is lost in the quotient, and a fused multiply-add errs more. A kernel that scales its inputs rounds them: errors that
        this explains are fp32's (the exponential of inputs of 1000).
        """
        single = self.allowed is PrecisionClass.FP32 and self.dtype is torch.float32
        if not single or errors.rel_fro <= _PLAINLY_FP32:
            return limit
        fp32 = error_limit(self.allowed, case_reference.errors((self.allowed,)), self.dtype)
        if errors.rel_fro <= fp32.rel_fro or (rounded := case_reference.tf32_sums()) is None:
            return limit
        most = TF32_SUMS_SHARE * rounded.rel_fro
        if errors.rel_fro <= most or most <= max(_PLAINLY_FP32, fp32.rel_fro):
            return limit
        if any(most <= PLAIN_SUMS_FACTOR * plain.rel_fro for plain in case_reference.plain_sums()):
            return limit
        if errors.rel_fro <= case_reference.rounded_inputs().rel_fro:
            return limit
        return replace(limit, rel_fro=most)

    def _special(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        case_reference: CaseReference,
    ) -> CheckResult:
        """Outputs on infinite or NaN inputs: a failure where arithmetic defines them, else a caveat."""
        found = special_values.compare_special(outputs, expected)
        real = [real_parts(*pair) for pair in zip(outputs, expected, strict=True) if not compared_exactly(pair[0])]
        errors = worst_of(finite_errors(mine, right) for mine, right in real)
        rounding = worst_of(finite_rounding(mine, right, mine.dtype) for mine, right in real)
        wrong = not within(errors, _at_least(self.limit(distribution), rounding))
        if not (wrong or found.different):
            return CheckResult(errors, passed=True)
        if case_reference.defined(found.hidden):
            count = sum(int(mask.sum()) for mask in found.hidden)
            flaw = f"{names[0]}: {count} of {found.count} elements are finite where the reference is not"
            return CheckResult(Errors(math.inf, math.inf, math.inf, flaw), passed=False)
        what = f"{found.different} of {found.count}" if found.different else "finite"
        return CheckResult(NO_ERROR, True, f"inputs with {distribution}: {what} elements differ from the reference's")

    def label(self, errors: Errors, distribution: str) -> PrecisionClass:
        """The precision class of errors that passed; the allowed class if only the error on the same case covered them."""
        if not self.dtype.is_floating_point:
            return PrecisionClass.EXACT
        found = strictest_class(errors, self.classes[distribution], self.dtype)
        return found if found in ORDER[: ORDER.index(self.allowed)] else self.allowed


def _with_undefined(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The outputs with NaN wherever the reference's is NaN: perturbed inputs leave the domain of a logarithm or a root."""
    return [
        output if compared_exactly(output) else torch.where(right.isnan().to(output.device), math.nan, output)
        for output, right in zip(outputs, expected, strict=True)
    ]


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is."""
    return all(read_numbers([torch.isfinite(block).all() for (block,) in in_blocks(tensor, own_type=True)]))


def _at_least(limit: ClassErrors, rounding: Errors) -> ClassErrors:
    """``limit``, widened to a few times the error of rounding this case's exact outputs to the output's type.

    On perturbed inputs the spread of an output differs from case to case.
    """
    factor = FACTORS[PrecisionClass.HALF]
    return limit.wider(ClassErrors(factor * rounding.rel_fro, factor * rounding.max_scaled))


@dataclass(frozen=True, slots=True)
class AllclosePolicy:
    """|o−e| ≤ tolerance + tolerance·|e| for every element, where ``e`` is eager's output; ``max_scaled`` is the used share."""

    policy: str
    tolerance: float
    classes: Mapping[str, Mapping[str, ClassErrors]]
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"{self.policy} (allclose {self.tolerance:g} against eager)"

    def limit(self, distribution: str) -> ClassErrors:
        return ClassErrors(float("inf"), 1.0)

    def rule(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        case_reference: CaseReference | None = None,
    ) -> CheckResult:
        """Whether all elements are close; ``case_reference`` is not used."""
        plain = compare(outputs, expected, names)
        used = 0.0
        for output, reference in zip(outputs, expected, strict=True):
            if output.numel() and not compared_exactly(output) and not plain.flaw:
                for mine, right in finite_pairs(*real_parts(output, reference)):
                    wanted = right.to(torch.float64)
                    share = (mine.to(torch.float64) - wanted).abs_() / (self.tolerance + self.tolerance * wanted.abs())
                    used = larger(used, float(share.max()) if share.numel() else 0.0)
        errors = Errors(plain.rel_fro, used, plain.max_abs, plain.flaw)
        return CheckResult(errors, not errors.flaw and used <= 1.0)

    def label(self, errors: Errors, distribution: str) -> PrecisionClass:
        """The precision class by ``rel_fro`` alone: this policy does not limit ``max_scaled`` by class."""
        classes = self.classes[distribution]
        for name in (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF):
            if name.value in classes and errors.rel_fro <= error_limit(name, classes, self.dtype).rel_fro:
                return name
        return PrecisionClass.NONE


def _compare_with_ties(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    case_reference: CaseReference,
    most: float,
) -> Errors:
    """``compare``, where indices of equal elements, and up to ``most`` integers that rounding decides, may differ."""
    tied = case_reference.equivalent(outputs)
    errors = compare(outputs, expected, names, tied)
    if not errors.flaw:
        return errors
    masks: list[torch.Tensor | None] = []
    for output, same, seen in zip(outputs, tied, case_reference.undecided(most), strict=True):
        mask = None if seen is None else seen.holds(output, ends_only=same is not None)
        masks.append(mask if same is None or mask is None else same | mask)
    return compare(outputs, expected, names, masks)


Policy = ClassPolicy | AllclosePolicy


def allowed_class(policy: Policy, default: PrecisionClass) -> PrecisionClass:
    """The precision class that a policy allows: ``default``, that of eager, where outputs are compared with eager's."""
    return policy.allowed if isinstance(policy, ClassPolicy) else default


def make_policy(
    text: str, default: PrecisionClass, classes: Mapping[str, Mapping[str, ClassErrors]], dtype: torch.dtype
) -> Policy:
    """The policy named ``text``. Raises ProblemError for an unknown one. Of complex outputs the parts are compared."""
    dtype = dtype.to_real()
    match text.partition(":"):
        case ("class", "", ""):
            return ClassPolicy(default, classes, dtype)
        case ("class", ":", name) if name in ("fp32", "tf32", "half"):
            return ClassPolicy(PrecisionClass(name), classes, dtype)
        case ("crfm", "", ""):
            return AllclosePolicy("crfm", _CRFM, classes, dtype)
        case ("kernelbench", "", ""):
            return AllclosePolicy("kernelbench", _KERNELBENCH.get(dtype, _KERNELBENCH_HALF), classes, dtype)
    raise ProblemError(f"unknown tolerance {text!r}: use one of {', '.join(TOLERANCES)}")
