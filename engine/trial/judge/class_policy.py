"""The policy ``class`` (the default): errors against float64, up to a multiple of those of a precision class. Imports torch.

Of integers, which are compared exactly, those may differ that ties or rounding decide (``judged_outputs``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.domain.model import PrecisionClass
from engine.trial.judge import jumps, special_values
from engine.trial.judge.blocks import in_blocks, read_numbers
from engine.trial.judge.comparison import (
    NO_ERROR,
    Errors,
    compared_exactly,
    finite_errors,
    finite_rounding,
    real_parts,
    rounding_errors,
    worst_of,
)
from engine.trial.judge.judged_outputs import Judged, compare_with_ties
from engine.trial.judge.perturbations import OWN, SPECIAL, TYING, ZERO_SLICES
from engine.trial.judge.relative_errors import RelativeErrors
from engine.trial.judge.tolerance import (
    HALVES,
    HOPELESS,
    ORDER,
    CaseReference,
    CheckResult,
    WholeCase,
    error_limit,
    factor_of,
    five_drawn,
    strictest_class,
    within,
)

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
ROUNDED_RESULTS_FACTOR = 3.0
"""The same of rounding all results, of which each is moved by up to four units: no honest kernel was seen to need more.
With ten, the error allowed for scores of thousands that nearly tie is that of rounding the inputs to TF32."""
ROUNDED_FUNCTIONS_FACTOR = 3.0
"""The same of rounding functions of exponentials to two units of one. A tanh by an exponential errs 0.7 times as much."""
LOST_RESULTS_FACTOR = 1.25
"""The same where that errs as much as the output is large: where results are rounded to zero, a formula errs by their size, and
results of the other sign twice as much."""
ROUNDED_OPERANDS_FACTOR, OWN_OPERANDS_FACTOR = 4.0, 2.0
"""The same in half precision of rounding operands, and on the problem's own inputs. The backward pass of FlashAttention-2 needs
up to three, and 1.5; one that leaves a term out errs 40 times as much or more on all inputs. With three on the problem's own
inputs, sums of products of int8 weights may be rounded to fp16 32 times."""
ROUNDED_OPERANDS_SHARE = 0.75
"""What rounding to nearest errs of random moves by up to half a unit. On the problem's own inputs the backward pass of
FlashAttention-2 errs 2.4e-3 in bf16, where 3.1e-3 may come from rounding; sums that are rounded to bf16 8 times 3.8e-3."""
WORST_ELEMENT_FACTOR = 4.0
"""By how much the worst element may exceed its limit in fp32, if the error of the whole output does not exceed its own. The
worst element of Winograd's F(4×4, 3×3) was seen to err 26 times as much as eager's, and the whole output 5 times."""
WORST_IN_HALF = ((0.4, 2.0), (2 / 3, 2.5))
"""The same in half precision where the error of the whole output is at most a share of its limit; the second pair in fp16 where
the reference convolves. The worst element of two partial sums in fp16 erred 1.1 times its limit, the whole output 0.33 times;
of Winograd's F(2×2, 3×3) with transforms in fp16 2.3 and 0.57 times; of sums that are rounded to fp16 32 times 3.3 and 0.9
times. Sums of a convolution that are rounded 9 times err as much as the transforms, and pass (1.7 and 0.53 times). In bf16
weights of eight bits would, too."""
MOST_FROM_ROUNDING = 1e-3
"""Errors above this are not put down to rounding, and the reference is not asked."""
_PLAINLY_FP32 = 1e-5
"""An error up to this is not taken for one of lower precision, whatever the inputs: the reference is not asked."""
_SUMMED = (torch.float32, torch.float64)
"""Types of which plain loops are tried."""


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

    @property
    def name(self) -> str:
        return f"class:{self.allowed.value} ({factor_of(self.allowed, self.dtype):g}x)"

    @property
    def _rounds_to_half(self) -> bool:
        """Whether a kernel may round what it multiplies to the half precision of its output."""
        return self.allowed is PrecisionClass.HALF and self.dtype in HALVES

    def limit(self, distribution: str) -> RelativeErrors:
        """Of all outputs, and of each."""
        if self.dtypes:
            return RelativeErrors.of_outputs([self.of_output(i).limit(distribution) for i in range(len(self.dtypes))])
        return error_limit(self.allowed, self.classes[distribution], self.dtype)

    def of_output(self, index: int) -> ClassPolicy:
        """The policy for one of several outputs."""
        alone = {
            distribution: {name: errors.for_output(index) for name, errors in classes.items()}
            for distribution, classes in self.classes.items()
        }
        return ClassPolicy(self.allowed, alone, self.dtypes[index], unmeasured=self.unmeasured)

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
        return _joined(alone, judged.names)

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
        limit = self._below_tf32_sums(errors, limit, reference)
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
        measured limits, which sums of lower precision narrow (``_below_tf32_sums``).
        """
        own = case_reference.errors(ORDER[: ORDER.index(self.allowed) + 1])
        here = error_limit(self.allowed, own, self.dtype)
        tells_nothing = distribution != OWN and (self.allowed.value not in own or here.rel_fro > HOPELESS)
        limit = limit.wider(here) if here.rel_fro <= HOPELESS else limit
        if distribution in self.unmeasured and (tells_nothing or not within(errors, here)):
            return CheckResult(errors, passed=False, limit=limit, unmeasured=True)
        if tells_nothing:
            return CheckResult(NO_ERROR, passed=True)
        limit = self._with_worst_element(errors, limit, case_reference)
        limit = self._with_plain_sums(errors, limit, distribution, case_reference)
        limit = limit if distribution == OWN else self._with_rounded_inputs(errors, limit, case_reference)
        limit = limit if distribution in (OWN, *TYING) else self._with_rounded_results(errors, limit, case_reference)
        limit = limit if distribution in (OWN, *TYING) else self._with_rounded_functions(errors, limit, case_reference)
        limit = self._with_rounded_operands(errors, limit, distribution, case_reference)
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

    def _with_worst_element(self, errors: Errors, limit: RelativeErrors, case_reference: CaseReference) -> RelativeErrors:
        """``limit``, widened for the worst element."""
        factor = 1.0
        if self.allowed is PrecisionClass.FP32 and self.dtype in _SUMMED and errors.rel_fro <= limit.rel_fro:
            factor = WORST_ELEMENT_FACTOR
        elif self._rounds_to_half and not within(errors, limit):
            share, factor = WORST_IN_HALF[self.dtype is torch.float16 and case_reference.convolves]
            factor = factor if errors.rel_fro <= share * limit.rel_fro else 1.0
        return replace(limit, max_scaled=factor * limit.max_scaled)

    def _with_plain_sums(
        self, errors: Errors, limit: RelativeErrors, distribution: str, case_reference: CaseReference
    ) -> RelativeErrors:
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

    def _with_rounded_inputs(self, errors: Errors, limit: RelativeErrors, case_reference: CaseReference) -> RelativeErrors:
        """``limit``, widened by the error of rounding the inputs: the median of five, of which two may cross a step."""
        if self.dtype not in _SUMMED or within(errors, limit) or not errors.rel_fro <= MOST_FROM_ROUNDING:
            return limit
        drawn = sorted((case_reference.rounded_inputs() for _ in range(5)), key=lambda rounded: rounded.rel_fro)
        return limit.wider(drawn[2].times(ROUNDED_INPUTS_FACTOR))

    def _with_rounded_results(self, errors: Errors, limit: RelativeErrors, case_reference: CaseReference) -> RelativeErrors:
        """``limit``, widened by the error of rounding all results: again the median of five; of one, where that is far off.

        Errors of sums of lower precision do not pass for it.
        """
        if self.dtype not in _SUMMED or errors.flaw or within(errors, limit):
            return limit
        drawn = five_drawn(errors, ROUNDED_RESULTS_FACTOR, case_reference.rounded_results)
        if drawn is None:
            return limit
        wider = limit.wider(drawn[2].times(ROUNDED_RESULTS_FACTOR))
        return self._below_tf32_sums(errors, wider, case_reference) if within(errors, wider) else wider

    def _with_rounded_functions(self, errors: Errors, limit: RelativeErrors, case_reference: CaseReference) -> RelativeErrors:
        """``limit``, widened by what the usual formulas of functions of exponentials err, whatever the precision."""
        if errors.flaw or within(errors, limit):
            return limit
        rounded = case_reference.rounded_functions()
        wider = rounded.times(ROUNDED_FUNCTIONS_FACTOR)
        most = max(1.0, LOST_RESULTS_FACTOR * rounded.rel_fro)
        return limit.wider(replace(wider, rel_fro=min(wider.rel_fro, most)))

    def _with_rounded_operands(
        self, errors: Errors, limit: RelativeErrors, distribution: str, case_reference: CaseReference
    ) -> RelativeErrors:
        """``limit`` of an output of half precision, widened by the error of rounding what the reference multiplies.

        A single element of many is the worst, and another one in each draw: the second largest of five counts. On the problem's
        own inputs, and where inputs tie, nothing but the limit of a single element is widened, and only where the whole output
        errs no more than rounding the operands and the output once explains.
        """
        worst_only = distribution in (OWN, *TYING)
        if not self._rounds_to_half or errors.flaw or within(errors, limit):
            return limit
        if worst_only and not errors.rel_fro <= limit.rel_fro:
            return limit
        factor = OWN_OPERANDS_FACTOR if distribution == OWN else ROUNDED_OPERANDS_FACTOR
        drawn = five_drawn(errors, factor, case_reference.rounded_results)
        if drawn is None:
            return limit
        rounding = limit.rel_fro / factor_of(self.allowed, self.dtype)
        if worst_only and errors.rel_fro > math.hypot(ROUNDED_OPERANDS_SHARE * drawn[2].rel_fro, rounding):
            return limit
        worst = sorted(rounded.max_scaled for rounded in drawn)[3]
        wider = limit.wider(replace(drawn[2], max_scaled=worst).times(factor))
        return replace(wider, rel_fro=limit.rel_fro) if worst_only else wider

    def _below_tf32_sums(self, errors: Errors, limit: RelativeErrors, case_reference: CaseReference) -> RelativeErrors:
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


def _joined(alone: Sequence[CheckResult], names: Sequence[str]) -> CheckResult:
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


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is."""
    return all(read_numbers([torch.isfinite(block).all() for (block,) in in_blocks(tensor, own_type=True)]))
