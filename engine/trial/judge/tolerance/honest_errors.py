"""What honest arithmetic may err on one case, as the reference shows it, widens or narrows a limit. Imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from engine.domain.model import PrecisionClass
from engine.trial.judge.inputs.perturbations import OWN, TYING
from engine.trial.judge.outputs.comparison import Errors
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.policy import HALVES, HOPELESS, CaseReference, error_limit, factor_of, within

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
_FAR_OFF = 10.0
"""No draw of rounded results was seen to err a tenth of the median."""


@dataclass(frozen=True, slots=True)
class HonestErrors:
    """The errors of honest arithmetic on a case with inputs in ``distribution``, for outputs of ``dtype``."""

    allowed: PrecisionClass
    dtype: torch.dtype
    distribution: str
    reference: CaseReference

    @property
    def _rounds_to_half(self) -> bool:
        """Whether a kernel may round what it multiplies to the half precision of its output."""
        return self.allowed is PrecisionClass.HALF and self.dtype in HALVES

    def widened(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit``, widened step by step until ``errors`` are within it, or nothing is left that could explain them."""
        limit = self._with_worst_element(errors, limit)
        limit = self._with_plain_sums(errors, limit)
        if self.distribution != OWN:
            limit = self._with_rounded_inputs(errors, limit)
        if self.distribution not in (OWN, *TYING):
            limit = self._with_rounded_results(errors, limit)
            limit = self._with_rounded_functions(errors, limit)
        return self._with_rounded_operands(errors, limit)

    def _with_worst_element(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit``, widened for the worst element."""
        factor = 1.0
        if self.allowed is PrecisionClass.FP32 and self.dtype in _SUMMED and errors.rel_fro <= limit.rel_fro:
            factor = WORST_ELEMENT_FACTOR
        elif self._rounds_to_half and not within(errors, limit):
            share, factor = WORST_IN_HALF[self.dtype is torch.float16 and self.reference.convolves]
            factor = factor if errors.rel_fro <= share * limit.rel_fro else 1.0
        return replace(limit, max_scaled=factor * limit.max_scaled)

    def _with_plain_sums(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit``, widened by plain loops where they could explain the errors.

        Perturbed inputs on which plain loops are hopeless tell nothing of a kernel that errs as much as they do.
        """
        most = HOPELESS if self.distribution == OWN else 1.0
        if self.dtype not in _SUMMED or within(errors, limit) or not errors.rel_fro <= most:
            return limit
        for plain in (found.times(PLAIN_SUMS_FACTOR) for found in self.reference.plain_sums()):
            if plain.rel_fro <= HOPELESS or self.distribution != OWN:
                limit = limit.wider(plain)
            if within(errors, limit):
                break
        return limit

    def _with_rounded_inputs(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit``, widened by the error of rounding the inputs: the median of five, of which two may cross a step."""
        if self.dtype not in _SUMMED or within(errors, limit) or not errors.rel_fro <= MOST_FROM_ROUNDING:
            return limit
        drawn = sorted((self.reference.rounded_inputs() for _ in range(5)), key=lambda rounded: rounded.rel_fro)
        return limit.wider(drawn[2].times(ROUNDED_INPUTS_FACTOR))

    def _with_rounded_results(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit``, widened by the error of rounding all results: again the median of five; of one, where that is far off.

        Errors of sums of lower precision do not pass for it.
        """
        if self.dtype not in _SUMMED or errors.flaw or within(errors, limit):
            return limit
        drawn = self._five_rounded(errors, ROUNDED_RESULTS_FACTOR)
        if drawn is None:
            return limit
        wider = limit.wider(drawn[2].times(ROUNDED_RESULTS_FACTOR))
        return self.below_tf32_sums(errors, wider) if within(errors, wider) else wider

    def _with_rounded_functions(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit``, widened by what the usual formulas of functions of exponentials err, whatever the precision."""
        if errors.flaw or within(errors, limit):
            return limit
        rounded = self.reference.rounded_functions()
        wider = rounded.times(ROUNDED_FUNCTIONS_FACTOR)
        most = max(1.0, LOST_RESULTS_FACTOR * rounded.rel_fro)
        return limit.wider(replace(wider, rel_fro=min(wider.rel_fro, most)))

    def _with_rounded_operands(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """``limit`` of an output of half precision, widened by the error of rounding what the reference multiplies.

        A single element of many is the worst, and another one in each draw: the second largest of five counts. On the problem's
        own inputs, and where inputs tie, nothing but the limit of a single element is widened, and only where the whole output
        errs no more than rounding the operands and the output once explains.
        """
        worst_only = self.distribution in (OWN, *TYING)
        if not self._rounds_to_half or errors.flaw or within(errors, limit):
            return limit
        if worst_only and not errors.rel_fro <= limit.rel_fro:
            return limit
        factor = OWN_OPERANDS_FACTOR if self.distribution == OWN else ROUNDED_OPERANDS_FACTOR
        drawn = self._five_rounded(errors, factor)
        if drawn is None:
            return limit
        rounding = limit.rel_fro / factor_of(self.allowed, self.dtype)
        if worst_only and errors.rel_fro > math.hypot(ROUNDED_OPERANDS_SHARE * drawn[2].rel_fro, rounding):
            return limit
        worst = sorted(rounded.max_scaled for rounded in drawn)[3]
        wider = limit.wider(replace(drawn[2], max_scaled=worst).times(factor))
        return replace(wider, rel_fro=limit.rel_fro) if worst_only else wider

    def below_tf32_sums(self, errors: Errors, limit: RelativeErrors) -> RelativeErrors:
        """The distribution's ``limit``, narrowed where errors within it are those of sums of lower precision and fp32 errs less
        here.

        Inputs on which sums of TF32 terms err little tell nothing of lower precision: where one term is all of a sum, rounding
        it is lost in the quotient, and a fused multiply-add errs more. A kernel that scales its inputs rounds them: errors that
        this explains are fp32's (the exponential of inputs of 1000).
        """
        single = self.allowed is PrecisionClass.FP32 and self.dtype is torch.float32
        if not single or errors.rel_fro <= _PLAINLY_FP32:
            return limit
        fp32 = error_limit(self.allowed, self.reference.errors((self.allowed,)), self.dtype)
        if errors.rel_fro <= fp32.rel_fro or (rounded := self.reference.tf32_sums()) is None:
            return limit
        most = TF32_SUMS_SHARE * rounded.rel_fro
        if errors.rel_fro <= most or most <= max(_PLAINLY_FP32, fp32.rel_fro):
            return limit
        if any(most <= PLAIN_SUMS_FACTOR * plain.rel_fro for plain in self.reference.plain_sums()):
            return limit
        if errors.rel_fro <= self.reference.rounded_inputs().rel_fro:
            return limit
        return replace(limit, rel_fro=most)

    def _five_rounded(self, errors: Errors, factor: float) -> list[RelativeErrors] | None:
        """Five draws of rounded results, from the least; ``None`` after a first one that the errors exceed by far."""
        first = self.reference.rounded_results()
        if errors.rel_fro > _FAR_OFF * factor * first.rel_fro:
            return None
        return sorted((first, *(self.reference.rounded_results() for _ in range(4))), key=lambda drawn: drawn.rel_fro)
