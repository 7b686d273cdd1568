"""Tolerance policies: what a verdict's ``policy`` line names. Imports torch.

``class`` (the default) compares with float64 and allows what the reference's own arithmetic errs in the allowed precision
class. ``crfm`` and ``kernelbench`` compare with eager PyTorch by ``allclose``, as the published work and KernelBench do; they
exist for comparison, and pass things that ``class`` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.domain.preparation import ClassErrors
from engine.trial.distributions import OWN
from engine.trial.tolerance import FACTORS, HOPELESS, ORDER, Errors, class_of, compare, exactly, limit_of, within

POLICIES = ("class", "class:fp32", "class:tf32", "class:half", "crfm", "kernelbench")
_CRFM = 1e-2
_KERNELBENCH = {torch.float32: 1e-4, torch.float64: 1e-4}
_KERNELBENCH_HALF = 1e-2


class ThisCase(Protocol):
    """What the reference says of the very case that is judged. Costs calls of the reference."""

    def errors(self, wanted: Sequence[PrecisionClass]) -> Mapping[str, ClassErrors]:
        """What its own arithmetic errs in these classes."""

    def undecided(self) -> Sequence[torch.Tensor | None]:
        """For each output the integers that rounding alone decides; ``None`` where there are none."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy says of one set of outputs."""

    errors: Errors
    passed: bool


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """Errors against float64 within a factor of the allowed class's own, calibrated for each input distribution."""

    allowed: PrecisionClass
    classes: Mapping[str, Mapping[str, ClassErrors]]
    """Distribution → class → errors."""
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"class:{self.allowed.value} ({FACTORS[self.allowed]:g}x)"

    @property
    def against_eager(self) -> bool:
        return False

    def limit(self, distribution: str) -> ClassErrors:
        return limit_of(self.allowed, self.classes[distribution], self.dtype)

    def rule(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        here: ThisCase | None = None,
    ) -> Ruling:
        """Whether the outputs may err as they do. ``here`` is asked before a refusal is final, unless a flaw is its reason
        that is no matter of rounding.

        An output may err as much as the reference's own arithmetic does, by a factor. Calibration finds that out on a few cases
        and it differs by orders of magnitude from case to case (scores that all but tie, a floor next to its step): so nothing
        is given away by allowing the same factor of what that arithmetic errs on exactly this case.
        """
        errors = compare(outputs, expected, names)
        if errors.flaw and here is not None and any(map(exactly, outputs)):
            errors = compare(outputs, expected, names, here.undecided())
        limit = self.limit(distribution)
        if not within(errors, limit) and distribution != OWN:
            limit = self._no_less_than_rounding(limit, outputs, expected, names)
        if not within(errors, limit) and not errors.flaw and here is not None:
            limit = self._no_less_than_here(limit, here)
        return Ruling(errors, within(errors, limit))

    def _no_less_than_here(self, limit: ClassErrors, here: ThisCase) -> ClassErrors:
        """At least what the reference's own errors on this case permit, unless that is so much that it would tell nothing."""
        own = limit_of(self.allowed, here.errors(ORDER[: ORDER.index(self.allowed) + 1]), self.dtype)
        wider = ClassErrors(max(limit.rel_fro, own.rel_fro), max(limit.max_scaled, own.max_scaled))
        return wider if own.rel_fro <= HOPELESS else limit

    def _no_less_than_rounding(
        self, limit: ClassErrors, outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], names: Sequence[str]
    ) -> ClassErrors:
        """How little bent inputs leave of an output's spread differs from case to case: never is more demanded than a few times
        what rounding the exact answer to the output's type costs in this one."""
        rounded = compare([e.to(o.dtype) for o, e in zip(outputs, expected, strict=True)], expected, names)
        factor = FACTORS[PrecisionClass.HALF]
        return ClassErrors(max(limit.rel_fro, factor * rounded.rel_fro), max(limit.max_scaled, factor * rounded.max_scaled))

    def label(self, errors: Errors, distribution: str) -> PrecisionClass:
        """The class of errors that passed: the allowed one where only what its arithmetic errs on the same case held them."""
        if not self.dtype.is_floating_point:
            return PrecisionClass.EXACT
        found = class_of(errors, self.classes[distribution], self.dtype)
        return self.allowed if found is PrecisionClass.NONE else found


@dataclass(frozen=True, slots=True)
class AllclosePolicy:
    """|o−e| ≤ tolerance + tolerance·|e| for every element, ``e`` being eager's output; ``max_scaled`` is the used share."""

    policy: str
    tolerance: float
    classes: Mapping[str, Mapping[str, ClassErrors]]
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"{self.policy} (allclose {self.tolerance:g} against eager)"

    @property
    def against_eager(self) -> bool:
        return True

    def limit(self, distribution: str) -> ClassErrors:
        return ClassErrors(float("inf"), 1.0)

    def rule(
        self,
        outputs: Sequence[torch.Tensor],
        expected: Sequence[torch.Tensor],
        names: Sequence[str],
        distribution: str,
        here: ThisCase | None = None,
    ) -> Ruling:
        """Whether all are close; what the reference errs itself (``here``) is nothing to this policy."""
        plain = compare(outputs, expected, names)
        used = 0.0
        for output, reference in zip(outputs, expected, strict=True):
            if output.numel() and output.dtype.is_floating_point and not plain.flaw:
                wide, wanted = output.to(torch.float64), reference.to(torch.float64)
                finite = torch.isfinite(wanted)
                share = (wide - wanted).abs() / (self.tolerance + self.tolerance * wanted.abs())
                used = max(used, float(share[finite].max()) if bool(finite.any()) else 0.0)
        errors = Errors(plain.rel_fro, used, plain.max_abs, plain.flaw)
        return Ruling(errors, not errors.flaw and used <= 1.0)

    def label(self, errors: Errors, distribution: str) -> PrecisionClass:
        """Without a cap on the scaled error a class cannot be told from eager alone: by the Frobenius error only."""
        classes = self.classes[distribution]
        for name in (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF):
            if name.value in classes and errors.rel_fro <= limit_of(name, classes, self.dtype).rel_fro:
                return name
        return PrecisionClass.NONE


Policy = ClassPolicy | AllclosePolicy


def make_policy(
    text: str, default: PrecisionClass, classes: Mapping[str, Mapping[str, ClassErrors]], dtype: torch.dtype
) -> Policy:
    """The policy called ``text``. Raises ProblemError for one that does not exist."""
    match text.partition(":"):
        case ("class", "", ""):
            return ClassPolicy(default, classes, dtype)
        case ("class", ":", name) if name in ("fp32", "tf32", "half"):
            return ClassPolicy(PrecisionClass(name), classes, dtype)
        case ("crfm", "", ""):
            return AllclosePolicy("crfm", _CRFM, classes, dtype)
        case ("kernelbench", "", ""):
            return AllclosePolicy("kernelbench", _KERNELBENCH.get(dtype, _KERNELBENCH_HALF), classes, dtype)
    raise ProblemError(f"unknown tolerance {text!r}: use one of {', '.join(POLICIES)}")
