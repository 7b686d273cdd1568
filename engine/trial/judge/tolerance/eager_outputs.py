"""Outputs with the very bits of the reference's own: they are right without a comparison with float64. Imports torch.

A kernel may err a multiple of what the reference errs in its own arithmetic. One whose outputs equal the reference's errs as
much, whatever float64 says. Kernels that move or choose numbers have such outputs, as do modules that call the same libraries.
Float64 reads and writes several times the memory that the reference does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from engine.domain.errors import ProblemError
from engine.domain.memory_plan import MemoryPlan
from engine.domain.model import PrecisionClass
from engine.problem.arguments.values import comparable
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import default_class
from engine.trial.judge.inputs.perturbations import INSTEAD_OF, OWN, SPECIAL
from engine.trial.judge.outputs.blocks import as_integers
from engine.trial.judge.outputs.comparison import NO_ERROR, has_finite_sum
from engine.trial.judge.rounding import arithmetic
from engine.trial.judge.tolerance.calibration import Calibration
from engine.trial.judge.tolerance.class_policy import ClassPolicy
from engine.trial.judge.tolerance.policy import CheckResult

Call = Callable[[], Sequence[torch.Tensor]]
"""Calls the reference on the inputs of one call of a kernel."""
_REPLACEABLE = frozenset(INSTEAD_OF.values())
"""Distributions of large numbers, instead of which smaller ones are used where the reference does not bear them."""


class EagerOutputs:
    """Compares the outputs of a kernel with the reference's, as long as they were equal in its last call."""

    def __init__(self, reference: Reference, calibration: Calibration, plan: MemoryPlan) -> None:
        """Nothing is compared where the policy allows another class than the reference's own arithmetic, where several outputs
        are right, or where memory is short; nor where the reference reads numbers, because a call of it may then change inputs
        or state that it left alone in its first call, and float64 works on copies."""
        self._default = default_class(reference)
        policy = calibration.policy
        as_precise = isinstance(policy, ClassPolicy) and policy.allowed is self._default
        short = plan.exact_on_host or plan.exact_slices > 1
        self._applies = as_precise and not (calibration.several or short or reference.must_run)
        self._were_equal = self._looked = False

    def look_again(self) -> None:
        """Compare the next outputs on the problem's own inputs, whatever the last ones were: another kernel's may come."""
        self._looked = False

    def ruling(
        self, outputs: Sequence[torch.Tensor], distribution: str, call: Call, *, timed: bool, unmeasured: Collection[str] = ()
    ) -> CheckResult | None:
        """That outputs are right because they equal the reference's; ``None``: float64 decides.

        It does on infinities and NaN, which have rules of their own, where an output on the problem's own inputs is not finite,
        and in calls on these that are not ``timed``: their errors are reported. The first of those tells whether to look at the
        next calls' outputs.
        ``unmeasured``: distributions of which nobody knows whether the reference bears them. Where smaller numbers are tried
        instead if it does not, float64 tells: a kernel can equal outputs that are all zeros or infinities.
        """
        if not self._applies or distribution in SPECIAL or (distribution in _REPLACEABLE and distribution in unmeasured):
            return None
        reported = distribution == OWN and not timed
        looks = not self._looked if reported else self._were_equal
        if looks:
            self._looked, self._were_equal = True, self._equal(outputs, call)
        if reported or not self._were_equal or (distribution == OWN and not all(map(_is_finite, outputs))):
            return None
        return CheckResult(NO_ERROR, passed=True)

    def _equal(self, outputs: Sequence[torch.Tensor], call: Call) -> bool:
        try:
            eager = arithmetic.in_fp32(call) if self._default is PrecisionClass.FP32 else call()
        except ProblemError:
            return False  # it fails in its own arithmetic, or memory is short
        return all(
            mine.dtype is right.dtype and mine.shape == right.shape and torch.equal(as_integers(mine), as_integers(right))
            for mine, right in zip(outputs, eager, strict=True)
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or has_finite_sum(comparable(tensor))
