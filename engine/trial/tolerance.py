"""How far an output lies from the float64 reference, and whether that is near enough. Imports torch.

Errors are *centred*: ‖o−r‖ ÷ ‖r−mean(r)‖. On the uniform inputs of KernelBench a plain relative error hides a result in half
precision (a product of non-negative matrices is almost constant); the centred one does not. Besides, every single element is
held under a cap in units of its scale |r| + rms(r−mean(r)), so that no tile may be skipped. An output without a spread, such as
a single number, is held against rms(r) instead. Finite masks must agree. Integers and booleans are compared bit for
bit, but for those that a few units in the last place of the inputs decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.domain.model import PrecisionClass
from engine.domain.preparation import ClassErrors


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one set of outputs; ``flaw`` names what no tolerance can excuse (empty when there is none)."""

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
"""A deviation of no more than this share of rms(r) is no spread to be held against: one unit in the last place of fp32 is
3 % of it, and the ten times that are allowed would be more than ``HOPELESS``. A single number has none at all."""
HOPELESS = 0.25
"""Where even the allowed class may err by more than this, nothing is told: no such inputs are judged, no such room is given."""
_norm = torch.linalg.vector_norm


def compare(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    undecided: Sequence[torch.Tensor | None] = (),
) -> Errors:
    """Errors of all outputs against all expected ones, the worst of each kind.

    ``undecided`` marks, for each output, the integers that may be others: those that rounding alone decides.
    """
    worst = NO_ERROR
    masks = undecided or [None] * len(outputs)
    for output, reference, name, mask in zip(outputs, expected, names, masks, strict=True):
        worst = worst.worst(_compare_one(output, reference, name, mask))
    return worst


def exactly(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are compared bit for bit."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def _compare_one(output: torch.Tensor, reference: torch.Tensor, name: str, undecided: torch.Tensor | None = None) -> Errors:
    if output.numel() == 0:
        return NO_ERROR
    if exactly(output):
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
    """rms(r−mean(r)) of wide, finite numbers; nought where it is negligible beside rms(r), as that of a single number is."""
    deviation = float(torch.var(reference, correction=0).sqrt())
    return deviation if deviation > _NEGLIGIBLE * _rms(reference) else 0.0


def _rms(reference: torch.Tensor) -> float:
    return float(_norm(reference)) / math.sqrt(reference.numel())


def _finite_sum(tensor: torch.Tensor) -> bool:
    """Certainly true only where every element is finite; reads once and writes nothing, unlike a mask."""
    return math.isfinite(float(tensor.sum(dtype=torch.float64)))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Booleans as the bytes they are stored in: only 0 and 1 will do, for any other could be an unwritten one."""
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
"""How many times the error of the reference's own arithmetic in a class an output may have. TF32 and bf16 lie a factor of 8
apart, so 3 tells them apart; fp32 and TF32 lie about 1000 apart, so 10 leaves room for another order of summation."""

ORDER = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)

_EPSILON = {torch.float64: 2.0**-50, torch.float32: 2.0**-21, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Errors no smaller than a few units in the last place are ever demanded: an eager reference can happen to be exact."""

_HALVES = (torch.float16, torch.bfloat16)
"""Rounding to these dominates every error, so even fp32 arithmetic is given no more room than half has."""


def limit_of(allowed: PrecisionClass, classes: Mapping[str, ClassErrors], dtype: torch.dtype) -> ClassErrors:
    """The errors that ``allowed`` permits: the largest of what it and each stricter class permit."""
    floor = _EPSILON.get(dtype, 0.0)
    rel_fro = max_scaled = floor
    for name in ORDER[: ORDER.index(allowed) + 1]:
        found = classes.get(name.value)
        if found is not None:
            factor = min(FACTORS[name], FACTORS[PrecisionClass.HALF]) if dtype in _HALVES else FACTORS[name]
            rel_fro = max(rel_fro, factor * found.rel_fro)
            max_scaled = max(max_scaled, factor * found.max_scaled)
    return ClassErrors(rel_fro, max_scaled)


def class_of(errors: Errors, classes: Mapping[str, ClassErrors], dtype: torch.dtype) -> PrecisionClass:
    """The strictest class whose limits hold these errors."""
    for name in ORDER:
        limit = limit_of(name, classes, dtype)
        if name.value in classes and errors.rel_fro <= limit.rel_fro and errors.max_scaled <= limit.max_scaled:
            return name
    return PrecisionClass.NONE


def within(errors: Errors, limit: ClassErrors) -> bool:
    """NaN never passes."""
    return not errors.flaw and errors.rel_fro <= limit.rel_fro and errors.max_scaled <= limit.max_scaled
