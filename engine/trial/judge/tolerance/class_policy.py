"""The policy ``class`` (the default): errors against float64, up to a multiple of those of a precision class. Imports torch.

Of integers, which are compared exactly, those may differ that ties or rounding decide (``judged_outputs``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.domain.model import PrecisionClass
from engine.trial.judge.inputs.perturbations import OWN, SPECIAL, ZERO_SLICES
from engine.trial.judge.outputs.blocks import in_blocks, read_numbers
from engine.trial.judge.outputs.comparison import (
    NO_ERROR,
    Errors,
    compared_exactly,
    finite_errors,
    finite_rounding,
    real_parts,
    rounding_errors,
    worst_of,
)
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.rounding import jumps
from engine.trial.judge.tolerance import special_values
from engine.trial.judge.tolerance.honest_errors import HonestErrors
from engine.trial.judge.tolerance.judged_outputs import Judged, compare_with_ties
from engine.trial.judge.tolerance.policy import (
    HOPELESS,
    ORDER,
    CaseReference,
    CheckResult,
    WholeCase,
    error_limit,
    factor_of,
    joined,
    strictest_class,
    within,
)


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """Errors against float64, up to a multiple of the reference error of the allowed class, per input distribution."""

    allowed: PrecisionClass
    classes: Mapping[str, Mapping[str, RelativeErrors]]
    """Distribution → class → errors."""
    dtype: torch.dtype
    """The floating type of the outputs, the narrowest if several; or their integer type."""
    dtypes: tuple[torch.dtype, ...] = ()
    """The type of each output where there are several: each has limits of its own."""
    unmeasured: frozenset[str] = frozenset()
    """Distributions whose errors in ``classes`` are the least that they can be: no kernel is rejected on them before the
    reference's own have been measured."""
    from_half: bool = False
    """Whether the reference rounds to half precision between its wide inputs and outputs. On the problem's own inputs its
    errors get the factor of half precision then: within that of fp32, weights of eight bits pass."""

    @property
    def name(self) -> str:
        return f"class:{self.allowed.value} ({self.factor:g}x)"

    @property
    def factor(self) -> float:
        """The allowed multiple of the reference error on the problem's own inputs."""
        return factor_of(self.allowed, self.dtype, from_half=self.from_half)

    def limit(self, distribution: str) -> RelativeErrors:
        """Of all outputs, and of each."""
        if self.dtypes:
            return RelativeErrors.of_outputs([self.of_output(i).limit(distribution) for i in range(len(self.dtypes))])
        return self._limit_on(distribution, self.classes[distribution])

    def _limit_on(self, distribution: str, classes: Mapping[str, RelativeErrors]) -> RelativeErrors:
        return error_limit(self.allowed, classes, self.dtype, from_half=self.from_half and distribution == OWN)

    def of_output(self, index: int) -> ClassPolicy:
        """The policy for one of several outputs."""
        alone = {
            distribution: {name: errors.for_output(index) for name, errors in classes.items()}
            for distribution, classes in self.classes.items()
        }
        return ClassPolicy(self.allowed, alone, self.dtypes[index], unmeasured=self.unmeasured, from_half=self.from_half)

    def rule(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        case_reference: WholeCase | None = None,
    ) -> CheckResult:
        """Whether the outputs are within tolerance, each by itself. ``case_reference`` is consulted before a rejection.

        Perturbed inputs on which the reference itself fails are not judged, such as a division by the norm of zeros.
        """
        if distribution == ZERO_SLICES and not all(map(_is_finite, expected)):
            return CheckResult(NO_ERROR, passed=True)
        judged = Judged(outputs, expected, names, distribution, case_reference)
        found = self._rule_each(judged, case_reference)
        if (
            found.passed
            or found.unmeasured
            or case_reference is None
            or (ordered := case_reference.in_order_of(outputs)) is None
        ):
            return found
        return self._rule_each(replace(judged, expected=ordered), case_reference)

    def _rule_each(self, judged: Judged, case_reference: WholeCase | None) -> CheckResult:
        """``rule`` where the order of the elements is given."""
        if not self.dtypes:
            return self._rule(judged)
        each = range(len(judged.outputs))
        on_case = [None for _ in each] if case_reference is None else case_reference.by_output(judged.outputs)
        alone = [self.of_output(i)._rule(judged.alone(i, on_case[i])) for i in each]
        return joined(alone, judged.names)

    def _rule(self, judged: Judged) -> CheckResult:
        """``rule`` with the same limits for all outputs.

        Calibration measures the reference error on a few cases, but it varies by orders of magnitude between cases (nearly tied
        scores, a floor() next to its step). The same multiple of the error on exactly this case is therefore allowed too, and
        the error of plain loops on it. It is consulted too before errors pass that lower precision would explain.
        Where it returns NaN on perturbed inputs, as for the logarithm of a negative number, the output is open.
        """
        reference = judged.reference
        if judged.distribution in SPECIAL and reference is not None:
            return self._special(judged, reference)
        errors = judged.compared()
        if errors.flaw and not judged.own:
            judged = judged.with_undefined()
            errors = judged.compared()
        if errors.flaw and reference is not None and any(map(compared_exactly, judged.outputs)):
            errors = compare_with_ties(judged, reference)
        limit = self.limit(judged.distribution)
        if not within(errors, limit) and not judged.own:
            limit = self._at_least(limit, rounding_errors(judged.outputs, judged.expected))
        if reference is None or (errors.flaw and judged.own):
            passed = within(errors, limit)
            return CheckResult(errors, passed, limit=limit, unmeasured=not passed and judged.distribution in self.unmeasured)
        if not within(errors, limit):
            found = self._explained(errors, limit, judged.distribution, reference)
            return found if found.passed or found.unmeasured else self._with_jumps(found, judged, reference)
        limit = HonestErrors(self.allowed, self.dtype, judged.distribution, reference).below_tf32_sums(errors, limit)
        passed = within(errors, limit)
        return CheckResult(errors, passed, limit=limit, unmeasured=not passed and judged.distribution in self.unmeasured)

    def _at_least(self, limit: RelativeErrors, rounding: Errors) -> RelativeErrors:
        """``limit``, widened to a few times the error of rounding this case's exact outputs to the output's type.

        On perturbed inputs the spread of an output differs from case to case.
        """
        factor = factor_of(PrecisionClass.HALF, self.dtype)
        return limit.wider(RelativeErrors(factor * rounding.rel_fro, factor * rounding.max_scaled))

    def _explained(
        self, errors: Errors, limit: RelativeErrors, distribution: str, case_reference: CaseReference
    ) -> CheckResult:
        """Whether errors beyond ``limit`` are those of honest arithmetic on this case, as the reference shows it.

        On an unmeasured distribution they pass only within those of the reference on this case: errors beyond may be within
        measured limits, which sums of lower precision narrow (``below_tf32_sums``).
        """
        own = case_reference.errors(ORDER[: ORDER.index(self.allowed) + 1])
        here = self._limit_on(distribution, own)
        tells_nothing = distribution != OWN and (self.allowed.value not in own or here.rel_fro > HOPELESS)
        limit = limit.wider(here) if here.rel_fro <= HOPELESS else limit
        if distribution in self.unmeasured and (tells_nothing or not within(errors, here)):
            return CheckResult(errors, passed=False, limit=limit, unmeasured=True)
        if tells_nothing:
            return CheckResult(NO_ERROR, passed=True)
        limit = HonestErrors(self.allowed, self.dtype, distribution, case_reference).widened(errors, limit)
        if not within(errors, limit) and within(errors, limit.wider(here)):
            return CheckResult(errors, passed=False, limit=limit, own_errors=own.get(self.allowed.value))
        return CheckResult(errors, within(errors, limit), limit=limit)

    def _with_jumps(self, found: CheckResult, judged: Judged, reference: CaseReference) -> CheckResult:
        """``found``, or that the outputs pass where a few of their elements jump (``jumps``)."""
        limit = found.limit
        if limit is None or found.errors.flaw:
            return found
        most, jump = jumps.MOST if judged.own else jumps.MOST_AT_ODDS, limit.max_scaled
        if judged.own and self.allowed is PrecisionClass.HALF:
            most, jump = jumps.MOST_AT_ODDS, min(jump, jumps.FAR_IN_HALF * limit.rel_fro)
        nearest = reference.nearest_seen(judged.outputs, jump, most)
        if nearest is None:
            return found
        errors = replace(judged, expected=nearest).compared()
        return CheckResult(errors, passed=True, limit=limit) if within(errors, limit) else found

    def _special(self, judged: Judged, reference: CaseReference) -> CheckResult:
        """Outputs on infinite or NaN inputs: a failure where the reference defines them, else a caveat."""
        outputs, distribution, name = judged.outputs, judged.distribution, judged.names[0]
        found = special_values.compare_special(outputs, judged.expected)
        real = [real_parts(*pair) for pair in zip(outputs, judged.expected, strict=True) if not compared_exactly(pair[0])]
        errors = worst_of(finite_errors(mine, right) for mine, right in real)
        limit = self.limit(distribution)
        if wrong := not within(errors, limit):
            rounding = worst_of(finite_rounding(mine, right, mine.dtype) for mine, right in real)
            wrong = not within(errors, self._at_least(limit, rounding))
        if not (wrong or found.different):
            return CheckResult(errors, passed=True)
        if distribution in self.unmeasured:
            return CheckResult(errors, passed=False, limit=limit, unmeasured=True)
        if reference.defined(found.hidden, outputs):
            count = sum(int(mask.sum()) for mask in found.hidden)
            how = "differ from the reference's" if outputs[0].dtype == torch.bool else "are finite where the reference is not"
            flaw = f"{name}: {count} of {found.count} elements {how}"
            return CheckResult(Errors(math.inf, math.inf, math.inf, flaw), passed=False)
        if (found.exposed or wrong) and reference.replaces(distribution):
            how = f"{found.exposed} of {found.count} elements are not finite" if found.exposed else "finite elements are wrong"
            flaw = f"{name}: {how} where the reference replaces {distribution}"
            return CheckResult(Errors(math.inf, math.inf, math.inf, flaw), passed=False)
        what = f"{found.different} of {found.count}" if found.different else "finite"
        return CheckResult(
            NO_ERROR, passed=True, caveat=f"inputs with {distribution}: {what} elements differ from the reference's"
        )

    def label(self, errors: Errors, distribution: str) -> PrecisionClass:
        """The precision class of errors that passed, the lowest of all outputs; the allowed class if only the error on the same
        case covered them."""
        if self.dtypes and errors.by_output:
            alone = [self.of_output(index).label(one, distribution) for index, one in enumerate(errors.by_output)]
            return max((one for one in alone if one in ORDER), key=ORDER.index, default=PrecisionClass.EXACT)
        if not self.dtype.is_floating_point:
            return PrecisionClass.EXACT
        found = strictest_class(errors, self.classes[distribution], self.dtype)
        return found if found in ORDER[: ORDER.index(self.allowed)] else self.allowed


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is."""
    return all(read_numbers([torch.isfinite(block).all() for (block,) in in_blocks(tensor, own_type=True)]))
