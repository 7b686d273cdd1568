"""The tolerance policies by name. Imports torch.

Policy ``class`` (the default) compares with float64 and allows a multiple of the reference error of the allowed precision
class. ``crfm`` and ``kernelbench`` compare with eager PyTorch by ``allclose``, as the published work does; they exist for
comparison, and pass outputs that ``class`` rejects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.domain.settings import TOLERANCES
from engine.trial.judge.outputs.comparison import Errors, compare, compared_exactly, finite_pairs, larger, real_parts
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.class_policy import ClassPolicy
from engine.trial.judge.tolerance.policy import CheckResult, WholeCase, error_limit

_CRFM = 1e-2
"""The absolute and relative tolerance of ``crfm``."""
_KERNELBENCH = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Those of ``kernelbench`` by type;"""
_KERNELBENCH_HALF = 1e-2
"""for all other types."""


@dataclass(frozen=True, slots=True)
class AllclosePolicy:
    """|o−e| ≤ tolerance + tolerance·|e| for every element, where ``e`` is eager's output; ``max_scaled`` is the used share."""

    policy: str
    tolerance: float
    classes: Mapping[str, Mapping[str, RelativeErrors]]
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"{self.policy} (allclose {self.tolerance:g} against eager)"

    def limit(self, distribution: str) -> RelativeErrors:
        return RelativeErrors(float("inf"), 1.0)

    def rule(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        case_reference: WholeCase | None = None,
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


Policy = ClassPolicy | AllclosePolicy


def allowed_class(policy: Policy, default: PrecisionClass) -> PrecisionClass:
    """The precision class that a policy allows: ``default``, that of eager, where outputs are compared with eager's."""
    return policy.allowed if isinstance(policy, ClassPolicy) else default


def make_policy(
    text: str,
    default: PrecisionClass,
    classes: Mapping[str, Mapping[str, RelativeErrors]],
    dtype: torch.dtype,
    dtypes: Sequence[torch.dtype] = (),
    unmeasured: Collection[str] = (),
    *,
    from_half: bool = False,
) -> Policy:
    """The policy named ``text``. Raises ProblemError for an unknown one. Of complex outputs the parts are compared.

    ``dtypes``: the type of each output; the class policy judges each of several by itself. ``unmeasured``: distributions whose
    errors in ``classes`` are the least that they can be. ``from_half``: whether the reference rounds to half
    precision on its way.
    """
    each = tuple(dtypes) if len(dtypes) > 1 else ()
    dtype = dtype.to_real()
    match text.partition(":"):
        case ("class", "", ""):
            return ClassPolicy(default, classes, dtype, each, frozenset(unmeasured), from_half)
        case ("class", ":", name) if name in ("fp32", "tf32", "half"):
            return ClassPolicy(PrecisionClass(name), classes, dtype, each, frozenset(unmeasured), from_half)
        case ("crfm", "", ""):
            return AllclosePolicy("crfm", _CRFM, classes, dtype)
        case ("kernelbench", "", ""):
            return AllclosePolicy("kernelbench", _KERNELBENCH.get(dtype, _KERNELBENCH_HALF), classes, dtype)
    raise ProblemError(f"unknown tolerance {text!r}: use one of {', '.join(TOLERANCES)}")
