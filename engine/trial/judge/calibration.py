"""Calibration: the reference error by precision class, for every input distribution. Imports torch.

The reference runs in the arithmetic of each class on fresh seeds and is compared with float64. Perturbed distributions are used
only where the reference itself stays finite and accurate; one case decides, because the policy consults the reference again
before it rejects. The result is a tolerance policy.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.domain.preparation import ClassErrors
from engine.problem.randomness import seeded
from engine.problem.reference import Reference
from engine.problem.values import map_arguments
from engine.trial.judge import arithmetic, special_values
from engine.trial.judge.comparison import Errors, compare, compared_exactly
from engine.trial.judge.perturbations import BY_CHANCE, DOWN, OWN, PERTURBATIONS, TYING, UP, WIDE_ONLY, nudged, perturb
from engine.trial.judge.preparation_cache import KeptCalibration
from engine.trial.judge.ties import IndexTrace, equivalent
from engine.trial.judge.tolerance import HOPELESS, Policy, error_limit, make_policy

_SEEDS = 2
_FEW_ELEMENTS = 16
_FEW_ELEMENTS_ERROR = 1e-6
"""Lower bound on a class's error where every output has fewer than 16 elements: too few to show how rounding errors vary, and
all can be exact by luck. fp32 allows ten times this."""
_PERTURBED_MAX_SCALED = 5e-3
"""Lower bound on the error of a single element on perturbed inputs. The error of an unwritten element exceeds 0.5."""
_PERTURBED_REL_FRO = 1e-6
"""Lower bound on the error of a whole output in fp32 on perturbed inputs. Where an outlier is added to many small numbers, sums
in another order than the library's showed 60 times its error. TF32's error is a few hundred times this bound."""
_LARGE_REL_FRO = 1e-5
"""The same for inputs of about 1000: half a unit in their last place is 3e-5, and an exponential makes it a relative error.
fp32 allows ten times this."""

_USUAL = {PrecisionClass.FP32: 1e-3, PrecisionClass.TF32: 2e-2, PrecisionClass.HALF: 5e-2}
"""Errors of a class up to this are arithmetic's; larger ones are looked into."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs with the reference's float64 outputs."""

    model: nn.Module
    draw: Callable[[], tuple[object, ...]]
    expected: Sequence[torch.Tensor]
    note: str = ""

    @property
    def inputs(self) -> tuple[object, ...]:
        return self.draw()


def fresh_seed() -> int:
    """A secret seed; never leaves the judge."""
    return secrets.randbits(62)


def make_case(reference: Reference, distribution: str) -> Case:
    """Inputs and weights from fresh secret seeds, with the float64 outputs."""
    model = reference.judged_model(fresh_seed())
    inputs = perturb(reference.inputs(fresh_seed()), distribution)
    exact = reference.exact(model, inputs)
    return Case(model, lambda: inputs, exact.outputs, exact.note)


def output_names(reference: Reference) -> list[str]:
    """Output names, in order."""
    return [o.name for o in reference.signature().operands if o.role == "output"]


def output_dtype(reference: Reference) -> torch.dtype:
    """The floating type of the outputs (the narrowest, if several), or their integer type when none is floating."""
    found: list[torch.dtype] = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
    floating = [d for d in found if d.is_floating_point]
    return min(floating, key=lambda d: torch.finfo(d).bits) if floating else found[0]


def default_class(reference: Reference) -> PrecisionClass:
    """The class that eager PyTorch uses by default for this problem on this device."""
    floating = [o.dtype for o in reference.signature().operands if o.dtype in ("float16", "bfloat16")]
    if floating:
        return PrecisionClass.HALF
    if reference.device.type == "cuda" and "convolution" in reference.ops_used():
        return PrecisionClass.TF32
    return PrecisionClass.FP32


def class_errors(reference: Reference, case: Case, wanted: Sequence[PrecisionClass]) -> dict[str, ClassErrors]:
    """Errors of the reference's own arithmetic in each wanted class on one case. A class that overflows is omitted."""
    names = output_names(reference)
    found: dict[str, ClassErrors] = {}
    for precision in wanted:
        worst: Errors | None = None
        for outputs in _in_class(reference, case, precision):
            errors = compare(*_inexact_outputs(outputs, case.expected, names))
            if not errors.flaw:
                worst = errors if worst is None else worst.worst(errors)
            del outputs  # before the next ones are computed
        if worst is not None:
            found[precision.value] = ClassErrors(worst.rel_fro, worst.max_scaled)
    return found


def _inexact_outputs(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], names: Sequence[str]
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[str]]:
    """The outputs that are not compared bit for bit; all where all are."""
    chosen = [i for i, output in enumerate(outputs) if not compared_exactly(output)] or range(len(outputs))
    return [outputs[i] for i in chosen], [expected[i] for i in chosen], [names[i] for i in chosen]


@dataclass(frozen=True, slots=True)
class ReferenceOnCase:
    """The reference on one case: a ``tolerance.CaseReference``."""

    reference: Reference
    case: Case

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, ClassErrors]:
        """``class_errors`` of the case."""
        return class_errors(self.reference, self.case, wanted)

    def plain_sums(self) -> ClassErrors | None:
        """The reference error in fp32 with sums in plain loops; ``None`` where it has none."""
        try:
            outputs = arithmetic.with_plain_sums(lambda: self.reference.call(self.case.model, self.case.inputs))
        except ProblemError:
            return None
        errors = compare(*_inexact_outputs(outputs, self.case.expected, output_names(self.reference)))
        return None if errors.flaw else ClassErrors(errors.rel_fro, errors.max_scaled)

    def equivalent(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Masks of the indices that select the same values as the reference's. None for outputs that hold no indices."""
        exact, eager = IndexTrace(), IndexTrace()
        with exact:
            self.reference.exact(self.case.model, self.case.inputs)
        with eager:
            self.reference.call(self.case.model, self.case.inputs)
        pairs = zip(outputs, self.case.expected, strict=True)
        return [equivalent(o, e, exact, eager) if _may_be_index(o) else None for o, e in pairs]

    def defined(self, masks: Sequence[torch.Tensor]) -> bool:
        """Whether arithmetic on the special inputs decides any of the masked elements."""
        if not any(bool(mask.any()) for mask in masks):
            return False
        if not special_values.only_adds_and_multiplies(self.reference.operators()):
            return False
        finite = [
            map_arguments(partial(special_values.replaced, by=by), self.case.inputs) for by in special_values.REPLACEMENTS
        ]
        one, other = (self.reference.exact(self.case.model, inputs).outputs for inputs in finite)
        return any(special_values.depends(m, a, b) for m, a, b in zip(masks, one, other, strict=True))

    def undecided(self) -> list[torch.Tensor | None]:
        """Masks of the integers that rounding alone decides: they change in float64 when the inputs move by a few units in the
        last place (up, down or at random), or in the reference's own arithmetic. None where they exceed 1 % of an output."""
        model, given, expected = self.case.model, self.case.inputs, self.case.expected
        others = [self.reference.call(model, given)]
        with seeded(fresh_seed(), self.reference.device):
            close = [nudged(given, way) for way in (UP, DOWN, *[BY_CHANCE] * _NUDGES)]
        others += [self.reference.exact(model, inputs).outputs for inputs in close]
        masks: list[torch.Tensor | None] = []
        for i, right in enumerate(expected):
            moved = None
            if compared_exactly(right) and right.numel():
                moved = torch.stack([other[i].to(right.dtype) != right for other in others]).any(0)
                moved = moved if int(moved.sum()) <= max(1, right.numel() // _UNDECIDED) else None
            masks.append(moved)
        return masks


def _may_be_index(tensor: torch.Tensor) -> bool:
    return compared_exactly(tensor) and tensor.dtype != torch.bool


_NUDGES = 4
_UNDECIDED = 100


def _in_class(reference: Reference, case: Case, precision: PrecisionClass) -> Iterator[Sequence[torch.Tensor]]:
    """The reference's outputs in the arithmetic of a class, one set after the other."""
    call: Callable[[], Sequence[torch.Tensor]] = lambda: reference.call(case.model, case.inputs)  # noqa: E731
    half_problem = default_class(reference) is PrecisionClass.HALF
    match precision:
        case PrecisionClass.FP32 if half_problem:
            dtypes = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
            yield [e.to(d) for e, d in zip(case.expected, dtypes, strict=True)]
        case PrecisionClass.FP32:
            yield arithmetic.in_fp32(call)
            if case.note:
                yield from _on_nudged_inputs(reference, case)
        case PrecisionClass.TF32 if not half_problem:
            yield from arithmetic.in_tf32(call, reference.device.type)
        case PrecisionClass.HALF if half_problem:
            yield call()
        case PrecisionClass.HALF:
            for dtype in (torch.float16, torch.bfloat16):
                if (outputs := _whole_model_in(reference, case, dtype)) is not None:
                    yield outputs


def _on_nudged_inputs(reference: Reference, case: Case) -> Iterator[Sequence[torch.Tensor]]:
    """The outputs for inputs moved by a few units in the last place: how far rounding moves them where float64 is missing.

    Compared with float32, the reference's own fp32 arithmetic has no error, and every other order of summation would be wrong.
    """
    with seeded(fresh_seed(), reference.device):
        moved = [nudged(case.inputs, way) for way in (UP, DOWN, BY_CHANCE)]
    for inputs in moved:
        yield reference.call(case.model, reference.cast_inputs(inputs, torch.float32))


def _whole_model_in(reference: Reference, case: Case, dtype: torch.dtype) -> Sequence[torch.Tensor] | None:
    try:
        return reference.call(reference.cast(case.model, dtype), reference.cast_inputs(case.inputs, dtype))
    except ProblemError:
        return None


@dataclass(frozen=True, slots=True)
class Calibration:
    """A policy, and the distributions it can judge on."""

    policy: Policy
    distributions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def judges_perturbed(self) -> bool:
        """Whether kernels must be right on perturbed inputs too."""
        return any(name != OWN for name in self.distributions)


def calibrate(reference: Reference, tolerance: str, main: Calibration | None = None) -> Calibration:
    """Measure the reference error by precision class and make the policy. Raises ProblemError where no kernel can be judged.

    ``main`` is the workload's calibration if ``reference`` is one of its hold-out shapes. A hold-out is judged on the problem's
    own inputs only, with limits no tighter than the workload's (a library can happen to be exact on a small shape).
    """
    try:
        return _calibrate(reference, tolerance, main)
    except ProblemError:
        if not reference.constants:
            raise
    reference.keep_constants()
    found = _calibrate(reference, tolerance, main)
    return replace(found, notes=(*found.notes, "constant parameters stay as they are: the reference fails with others"))


def keep_calibration(reference: Reference, found: Calibration) -> KeptCalibration:
    """A calibration as it is cached."""
    return KeptCalibration(found.policy.classes, found.notes, keeps_constants=not reference.constants)


def restore(reference: Reference, tolerance: str, kept: KeptCalibration) -> Calibration:
    """The calibration that was cached. Raises ProblemError for an unknown tolerance."""
    if kept.keeps_constants:
        reference.keep_constants()
    policy = make_policy(tolerance, default_class(reference), kept.classes, output_dtype(reference))
    return Calibration(policy, tuple(kept.classes), kept.notes)


def _calibrate(reference: Reference, tolerance: str, main: Calibration | None) -> Calibration:
    default = default_class(reference)
    every = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)
    notes: list[str] = []
    own: dict[str, ClassErrors] = {}
    dtype = output_dtype(reference)
    least = _least_errors(reference, dtype)
    for trial in range(_SEEDS):
        case = make_case(reference, OWN)
        if trial == 0 and reference.has_random_outputs(case.model, case.inputs):
            raise ProblemError(
                f"{reference.problem.name}: the reference's output depends on random numbers drawn in forward, no kernel can "
                "match it: remove the dropout, or switch it to eval mode"
            )
        notes += [case.note] if case.note else []
        found = class_errors(reference, case, every)
        if trial == 0 and default.value in found:
            _check_repeatable(reference, case, found[default.value].rel_fro, default)
        for name, errors in found.items():
            known = own.get(name, least)
            own[name] = _wider(known, errors)
        del case  # its tensors must not lie beside the next case's
    if dtype.is_floating_point and default.value not in own:
        raise ProblemError(
            f"{reference.problem.name}: the reference's {default.value} and float64 outputs are not finite at the same "
            "elements, no kernel can be judged against it: check the reference's inputs"
        )
    if main is not None:
        own = {name: _wider(errors, main.policy.classes[OWN].get(name, errors)) for name, errors in own.items()}
    classes = {OWN: own}
    policy = make_policy(tolerance, default, classes, dtype)
    allowed = policy.allowed if not policy.against_eager else default  # type: ignore[union-attr]
    if main is None and not policy.against_eager:
        classes |= _perturbed_errors(reference, allowed, dtype, own)
    # The reference's notes are complete only after it was called.
    distinct_notes = tuple(dict.fromkeys((*reference.notes, *notes)))
    return Calibration(make_policy(tolerance, default, classes, dtype), tuple(classes), distinct_notes)


def _check_repeatable(reference: Reference, case: Case, error: float, default: PrecisionClass) -> None:
    """Raises ProblemError where an unusual error is not one of arithmetic: calls on the same inputs differ as much."""
    if error <= _USUAL[default]:
        return
    one, other = (reference.call(case.model, case.inputs) for _ in range(2))
    apart = compare(*_inexact_outputs(one, other, output_names(reference))).rel_fro
    if apart > error / 4:
        raise ProblemError(
            f"{reference.problem.name}: two calls of the reference on the same inputs differ by {apart:.1g} of the output's "
            "spread, no kernel can match it: remove the generator, counter or clock that it reads"
        )


def _least_errors(reference: Reference, dtype: torch.dtype) -> ClassErrors:
    """Lower bound on a class's error: zero, except where all outputs are fp32 with few elements."""
    sizes = [math.prod(o.shape) for o in reference.signature().operands if o.role == "output"]
    least = _FEW_ELEMENTS_ERROR if dtype is torch.float32 and max(sizes) < _FEW_ELEMENTS else 0.0
    return ClassErrors(least, least)


def _wider(*errors: ClassErrors) -> ClassErrors:
    return ClassErrors(max(e.rel_fro for e in errors), max(e.max_scaled for e in errors))


def _perturbed_errors(
    reference: Reference, allowed: PrecisionClass, dtype: torch.dtype, own: Mapping[str, ClassErrors]
) -> dict[str, dict[str, ClassErrors]]:
    """Errors on perturbed inputs, for the distributions that discriminate. Never below those on the problem's own inputs.

    (On inputs scaled down until only a bias is left, a library that adds it last is nearly exact; another order of summation is
    not.)
    """
    found: dict[str, dict[str, ClassErrors]] = {}
    wanted = tuple(dict.fromkeys((PrecisionClass.FP32, allowed)))
    for name in _candidates(reference):
        try:
            errors = class_errors(reference, make_case(reference, name), wanted)
        except ProblemError:
            continue
        if allowed.value in errors and error_limit(allowed, errors, dtype).rel_fro <= HOPELESS:
            found[name] = {known: _wider(_with_more_room(here, dtype), own.get(known, here)) for known, here in errors.items()}
    return _with_common_limits(found, dtype)


def _with_common_limits(found: dict[str, dict[str, ClassErrors]], dtype: torch.dtype) -> dict[str, dict[str, ClassErrors]]:
    """The same errors for all distributions of large inputs: their intermediate results are rounded alike.

    A reference may be exact on one of them (a softmax with one outlier in each row), and a kernel that orders its products
    and sums otherwise is not.
    """
    large = [found[name] for name in WIDE_ONLY if name in found]
    common = {precision: _wider(*(one[precision] for one in large if precision in one)) for one in large for precision in one}
    return {name: dict(common) if name in WIDE_ONLY else errors for name, errors in found.items()}


def _candidates(reference: Reference) -> list[str]:
    """The perturbations to try: not those that the output's type or the operators rule out.

    Where the reference computes with the index of a maximum, equal elements make its output ambiguous.
    """
    operators = reference.operators()
    excluded = set(WIDE_ONLY) if default_class(reference) is PrecisionClass.HALF else set()
    if _computes_with_indices(reference):
        excluded |= set(TYING)
    return [name for name in PERTURBATIONS if name not in excluded and special_values.is_usable(name, operators)]


def _computes_with_indices(reference: Reference) -> bool:
    model, inputs = reference.model(fresh_seed()), reference.inputs(fresh_seed())
    trace = IndexTrace()
    with trace:
        reference.call(model, inputs)
    return trace.consumed


def _with_more_room(errors: ClassErrors, dtype: torch.dtype) -> ClassErrors:
    """The errors on perturbed inputs, widened: a single row can be ill-conditioned, for example by nearly tied scores."""
    least = _PERTURBED_REL_FRO if dtype is torch.float32 else 0.0
    return ClassErrors(max(errors.rel_fro, least), max(errors.max_scaled, _PERTURBED_MAX_SCALED))
