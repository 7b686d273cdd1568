"""Tolerance: the error of an output, the error allowed, and the policies that decide. Imports torch.

With output o and expected r:

- ``rel_fro``, the *centred error*: ‖o−r‖ ÷ ‖r−mean(r)‖ (Frobenius norms). A plain relative error, ÷ ‖r‖, hides a
  half-precision result on KernelBench's uniform inputs, because a product of non-negative matrices is almost constant.
- ``max_scaled``, the largest error of one element relative to its scale: |o−r| ÷ (|r| + rms(r−mean(r))). It detects a skipped
  tile.

For an output without spread, such as a single number, rms(r) replaces rms(r−mean(r)). Finite elements of o and r must coincide.
Integers and booleans are compared exactly, except for those that a few units in the last place of the inputs decide.

Policy ``class`` (the default) compares with float64 and allows a multiple of the reference error of the allowed precision
class. ``crfm`` and ``kernelbench`` compare with eager PyTorch by ``allclose``, as the published work does; they exist for
comparison, and pass outputs that ``class`` rejects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.domain.preparation import ClassErrors
from engine.trial.judge.perturbations import OWN

POLICIES = ("class", "class:fp32", "class:tf32", "class:half", "crfm", "kernelbench")
_CRFM = 1e-2
_KERNELBENCH = {torch.float32: 1e-4, torch.float64: 1e-4}
_KERNELBENCH_HALF = 1e-2


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one set of outputs; ``flaw`` describes what no tolerance covers (empty: nothing)."""

    rel_fro: float
    max_scaled: float
    max_abs: float
    flaw: str = ""

    def worst(self, other: Errors) -> Errors:
        return Errors(
            max(self.rel_fro, other.rel_fro),
            max(self.max_scaled, other.max_scaled),
            max(self.max_abs, other.max_abs),
            self.flaw or other.flaw,
        )


NO_ERROR = Errors(0.0, 0.0, 0.0)
_TINY = 1e-300
_NEGLIGIBLE = 4e-6
"""A deviation up to this share of rms(r) does not count as spread: one unit in the last place of fp32 would be 3 % of it, and
ten times that would exceed ``HOPELESS``. A single number has no spread."""
HOPELESS = 0.25
"""Limits above this do not discriminate: such inputs are not judged, and no limit is widened that far."""
_norm = torch.linalg.vector_norm


def compare(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    undecided: Sequence[torch.Tensor | None] = (),
) -> Errors:
    """Errors of all outputs against all expected ones, the worst of each kind.

    ``undecided`` masks, for each output, the integers that rounding alone decides: they may differ.
    """
    worst = NO_ERROR
    masks = undecided or [None] * len(outputs)
    for output, reference, name, mask in zip(outputs, expected, names, masks, strict=True):
        worst = worst.worst(_compare_one(output, reference, name, mask))
    return worst


def compared_exactly(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are compared exactly."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def _compare_one(output: torch.Tensor, reference: torch.Tensor, name: str, undecided: torch.Tensor | None = None) -> Errors:
    if output.numel() == 0:
        return NO_ERROR
    if compared_exactly(output):
        differ = _as_bytes(output) != _as_bytes(reference.to(output.dtype))
        wrong = int((differ if undecided is None else differ & ~undecided).sum())
        flaw = f"{name}: {wrong} of {output.numel()} elements differ (integers are compared exactly)" if wrong else ""
        return Errors(0.0, 0.0, float(wrong > 0), flaw)
    if output.dtype.is_complex:
        return _compare_one(torch.view_as_real(output), torch.view_as_real(reference.to(torch.complex128)), name)
    if not (_finite_sum(output) and _finite_sum(reference)):
        finite = torch.isfinite(reference)
        if flaw := _mask_flaw(output, reference, finite, name):
            return Errors(math.inf, math.inf, math.inf, flaw)
        if not bool(finite.any()):
            return NO_ERROR
        output, reference = output[finite], reference[finite]
    reference = reference.to(torch.float64)
    unit = spread(reference) or _rms(reference)
    difference = (output - reference).reshape(-1)
    rel_fro = float(_norm(difference)) / max(unit * math.sqrt(reference.numel()), _TINY)
    max_abs = float(_norm(difference, math.inf))
    scale = reference.abs().add_(unit + _TINY).reshape(-1)
    return Errors(rel_fro, float(_norm(difference.div_(scale), math.inf)), max_abs)


def spread(reference: torch.Tensor) -> float:
    """rms(r−mean(r)) of finite float64 numbers; 0 if negligible relative to rms(r)."""
    deviation = float(torch.var(reference, correction=0).sqrt())
    return deviation if deviation > _NEGLIGIBLE * _rms(reference) else 0.0


def _rms(reference: torch.Tensor) -> float:
    return float(_norm(reference)) / math.sqrt(reference.numel())


def _finite_sum(tensor: torch.Tensor) -> bool:
    """True only if every element is finite (the sum of a finite tensor may overflow). Reads once; a mask would write too."""
    return math.isfinite(float(tensor.sum(dtype=torch.float64)))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Booleans as bytes: any value but 0 and 1 could be unwritten."""
    return tensor.contiguous().view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _mask_flaw(output: torch.Tensor, reference: torch.Tensor, finite: torch.Tensor, name: str) -> str:
    mine = torch.isfinite(output)
    if not torch.equal(mine, finite):
        first = int(torch.nonzero((mine != finite).reshape(-1))[0])
        count = int((mine != finite).sum())
        what = "is not finite" if bool(finite.reshape(-1)[first]) else "is finite where the reference is not"
        return f"{name}: {count} of {output.numel()} elements wrong, the first at {first} {what} (unwritten or overflowed?)"
    if bool(finite.all()):
        return ""
    other = ~finite
    a, b = output[other].to(torch.float64), reference[other]
    same = (torch.isnan(a) & torch.isnan(b)) | (a == b)
    return "" if bool(same.all()) else f"{name}: infinities or NaNs differ from the reference's"


FACTORS: Mapping[PrecisionClass, float] = {PrecisionClass.FP32: 10.0, PrecisionClass.TF32: 3.0, PrecisionClass.HALF: 3.0}
"""The allowed multiple of the reference error of a class. TF32 and bf16 are a factor of 8 apart: 3 separates them. fp32 and
TF32 are about 1000 apart: 10 leaves room for another order of summation."""

ORDER = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)

_EPSILON = {torch.float64: 2.0**-50, torch.float32: 2.0**-21, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Lower bounds on limits, a few units in the last place: an eager reference can be exact by luck."""

_HALVES = (torch.float16, torch.bfloat16)
"""Rounding to these types dominates every error: fp32 arithmetic gets no larger factor than half."""


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

    def undecided(self) -> Sequence[torch.Tensor | None]:
        """For each output, a mask of the integers that rounding alone decides; ``None`` if there are none."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A policy's decision on one set of outputs."""

    errors: Errors
    passed: bool


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

    @property
    def against_eager(self) -> bool:
        return False

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
        """Whether the outputs are within tolerance. ``case_reference`` is consulted before a rejection, unless rounding cannot
        explain it.

        Calibration measures the reference error on a few cases, but it varies by orders of magnitude between cases (nearly tied
        scores, a floor() next to its step). The same multiple of the error on exactly this case is therefore allowed too.
        """
        errors = compare(outputs, expected, names)
        if errors.flaw and case_reference is not None and any(map(compared_exactly, outputs)):
            errors = compare(outputs, expected, names, case_reference.undecided())
        limit = self.limit(distribution)
        if not within(errors, limit) and distribution != OWN:
            limit = self._at_least_rounding(limit, outputs, expected, names)
        if not within(errors, limit) and not errors.flaw and case_reference is not None:
            limit = self._at_least_case_error(limit, case_reference)
        return CheckResult(errors, within(errors, limit))

    def _at_least_case_error(self, limit: ClassErrors, case_reference: CaseReference) -> ClassErrors:
        """``limit``, widened by the reference error on this case, unless the result does not discriminate."""
        own = error_limit(self.allowed, case_reference.errors(ORDER[: ORDER.index(self.allowed) + 1]), self.dtype)
        wider = ClassErrors(max(limit.rel_fro, own.rel_fro), max(limit.max_scaled, own.max_scaled))
        return wider if own.rel_fro <= HOPELESS else limit

    def _at_least_rounding(
        self, limit: ClassErrors, outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], names: Sequence[str]
    ) -> ClassErrors:
        """``limit``, widened to a few times the error of rounding this case's exact outputs to the output's type.

        On perturbed inputs the spread of an output differs from case to case.
        """
        rounded = compare([e.to(o.dtype) for o, e in zip(outputs, expected, strict=True)], expected, names)
        factor = FACTORS[PrecisionClass.HALF]
        return ClassErrors(max(limit.rel_fro, factor * rounded.rel_fro), max(limit.max_scaled, factor * rounded.max_scaled))

    def label(self, errors: Errors, distribution: str) -> PrecisionClass:
        """The precision class of errors that passed; the allowed class if only the error on the same case covered them."""
        if not self.dtype.is_floating_point:
            return PrecisionClass.EXACT
        found = strictest_class(errors, self.classes[distribution], self.dtype)
        return self.allowed if found is PrecisionClass.NONE else found


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
        case_reference: CaseReference | None = None,
    ) -> CheckResult:
        """Whether all elements are close; ``case_reference`` is not used."""
        plain = compare(outputs, expected, names)
        used = 0.0
        for output, reference in zip(outputs, expected, strict=True):
            if output.numel() and output.dtype.is_floating_point and not plain.flaw:
                wide, wanted = output.to(torch.float64), reference.to(torch.float64)
                finite = torch.isfinite(wanted)
                share = (wide - wanted).abs() / (self.tolerance + self.tolerance * wanted.abs())
                used = max(used, float(share[finite].max()) if bool(finite.any()) else 0.0)
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


def make_policy(
    text: str, default: PrecisionClass, classes: Mapping[str, Mapping[str, ClassErrors]], dtype: torch.dtype
) -> Policy:
    """The policy named ``text``. Raises ProblemError for an unknown one."""
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
