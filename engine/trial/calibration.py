"""What the gate must know before any kernel is judged: the reference's own errors, and whether the gate discriminates.

Classes are calibrated on fresh seeds for every input distribution that the reference itself survives; then null models, which
compute nothing, are tried on the resulting gate. Imports torch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.domain.preparation import ClassErrors, Gate, NullModel
from engine.problem.randomness import seeded
from engine.problem.reference import Reference
from engine.problem.values import map_arguments, tensors
from engine.trial import arithmetic
from engine.trial.distributions import OWN, STRESS, WIDE_ONLY, bend
from engine.trial.policy import Policy, make_policy
from engine.trial.tolerance import FACTORS, HOPELESS, Errors, compare, exactly, limit_of, spread

_SEEDS = 2
_FEW = 16
_FEW_ERR = 1e-6
"""The least error that a class is said to have where no output has as many as 16 elements: so few numbers show nothing of how
far rounding scatters, and two of them can both be exact by luck. Ten times this is allowed in fp32."""
_LOOSE = 5e-3
"""The least error of a single element that a class is said to have on bent inputs; an unwritten one errs by more than 0.5."""
_LOOSE_FRO = 1e-6
"""The least error of all elements together that fp32 is said to have on them: sums in another order than the library's were
seen to err 60 times as much as it where an outlier meets many small ones. TF32 errs a few hundred times this."""
_TILE = 64
"""One tile in this many is left unwritten by the tile null."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs with what the reference makes of it in float64."""

    model: nn.Module
    inputs: tuple[object, ...]
    expected: Sequence[torch.Tensor]
    note: str = ""


def fresh_seed() -> int:
    """A secret seed; never leaves the judge."""
    return secrets.randbits(62)


def make_case(reference: Reference, distribution: str) -> Case:
    """Inputs and weights from fresh secret seeds, with the float64 outputs."""
    model = reference.model(fresh_seed())
    inputs = bend(reference.inputs(fresh_seed()), distribution)
    exact = reference.exact(model, inputs)
    return Case(model, inputs, exact.outputs, exact.note)


def names_of(reference: Reference) -> list[str]:
    """Output names, in order."""
    return [o.name for o in reference.signature().operands if o.role == "output"]


def output_dtype(reference: Reference) -> torch.dtype:
    """The floating type of the outputs (the narrowest, if several), or their integer type when none is floating."""
    found: list[torch.dtype] = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
    floating = [d for d in found if d.is_floating_point]
    return min(floating, key=lambda d: torch.finfo(d).bits) if floating else found[0]


def default_class(reference: Reference) -> PrecisionClass:
    """The class that eager PyTorch as shipped uses for this problem on this device."""
    floating = [o.dtype for o in reference.signature().operands if o.dtype in ("float16", "bfloat16")]
    if floating:
        return PrecisionClass.HALF
    if reference.device.type == "cuda" and "convolution" in reference.ops_used():
        return PrecisionClass.TF32
    return PrecisionClass.FP32


def class_errors(reference: Reference, case: Case, wanted: Sequence[PrecisionClass]) -> dict[str, ClassErrors]:
    """Errors of the reference's own arithmetic in each wanted class on one case; a class that overflows is left out."""
    names = names_of(reference)
    found: dict[str, ClassErrors] = {}
    for precision in wanted:
        worst: Errors | None = None
        for outputs in _in_class(reference, case, precision):
            errors = compare(*_judged_by_size(outputs, case.expected, names))
            if not errors.flaw:
                worst = errors if worst is None else worst.worst(errors)
        if worst is not None:
            found[precision.value] = ClassErrors(worst.rel_fro, worst.max_scaled)
    return found


def _judged_by_size(
    outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], names: Sequence[str]
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[str]]:
    """The outputs that have errors of a size; all where none has."""
    chosen = [i for i, output in enumerate(outputs) if not exactly(output)] or range(len(outputs))
    return [outputs[i] for i in chosen], [expected[i] for i in chosen], [names[i] for i in chosen]


@dataclass(frozen=True, slots=True)
class Own:
    """What a reference says of one case: a ``policy.ThisCase``."""

    reference: Reference
    case: Case

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, ClassErrors]:
        """``class_errors`` of the case."""
        return class_errors(self.reference, self.case, wanted)

    def undecided(self) -> list[torch.Tensor | None]:
        """The integers that change in float64 when the inputs move by a few units in their last place, up, down or by chance,
        and those in which the reference's own arithmetic differs; none where that is more than a hundredth of an output."""
        model, given, expected = self.case.model, self.case.inputs, self.case.expected
        others = [self.reference.call(model, given)]
        with seeded(fresh_seed(), self.reference.device):
            nudged = [_nudged(given, way) for way in (_UP, _DOWN, *[_BY_CHANCE] * _NUDGES)]
        others += [self.reference.exact(model, inputs).outputs for inputs in nudged]
        masks: list[torch.Tensor | None] = []
        for i, right in enumerate(expected):
            moved = None
            if exactly(right) and right.numel():
                moved = torch.stack([other[i].to(right.dtype) != right for other in others]).any(0)
                moved = moved if int(moved.sum()) <= max(1, right.numel() // _UNDECIDED) else None
            masks.append(moved)
        return masks


_NUDGES = 4
_UNDECIDED = 100
_UP, _DOWN, _BY_CHANCE = 1.0, -1.0, 0.0


def _nudged(inputs: tuple[object, ...], way: float) -> tuple[object, ...]:
    """The inputs in float64, every number moved by four units in the last place of its own type, or by chance up to that."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        wide = tensor.double()
        by = torch.full_like(wide, way) if way else torch.rand_like(wide).mul_(2).sub_(1)
        return wide * (1 + by * 4 * float(torch.finfo(tensor.dtype).eps))

    return map_arguments(moved, inputs)


def _in_class(reference: Reference, case: Case, precision: PrecisionClass) -> list[Sequence[torch.Tensor]]:
    call: Callable[[], Sequence[torch.Tensor]] = lambda: reference.call(case.model, case.inputs)  # noqa: E731
    half_problem = default_class(reference) is PrecisionClass.HALF
    match precision:
        case PrecisionClass.FP32 if half_problem:
            dtypes = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
            return [[e.to(d) for e, d in zip(case.expected, dtypes, strict=True)]]
        case PrecisionClass.FP32:
            return [arithmetic.in_fp32(call)]
        case PrecisionClass.TF32 if not half_problem:
            return arithmetic.in_tf32(call, reference.device.type)
        case PrecisionClass.HALF if half_problem:
            return [call()]
        case PrecisionClass.HALF:
            return [r for d in (torch.float16, torch.bfloat16) if (r := _whole_model_in(reference, case, d)) is not None]
    return []


def _whole_model_in(reference: Reference, case: Case, dtype: torch.dtype) -> Sequence[torch.Tensor] | None:
    try:
        return reference.call(reference.cast(case.model, dtype), reference.cast_inputs(case.inputs, dtype))
    except ProblemError:
        return None


@dataclass(frozen=True, slots=True)
class Calibration:
    """A policy with the distributions it can judge on."""

    policy: Policy
    distributions: tuple[str, ...]
    notes: tuple[str, ...]


def calibrate(reference: Reference, tolerance: str, main: Calibration | None = None) -> Calibration:
    """Find the reference's own errors and make the policy. Raises ProblemError when it cannot be judged at all.

    ``main`` is the workload's calibration when ``reference`` is one of its hold-outs: own inputs only, and never held to less
    than the workload itself is (a library may happen to be exact on a small shape).
    """
    default = default_class(reference)
    every = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)
    notes: list[str] = []
    own: dict[str, ClassErrors] = {}
    dtype = output_dtype(reference)
    least = _least(reference, dtype)
    for trial in range(_SEEDS):
        case = make_case(reference, OWN)
        if trial == 0 and reference.left_to_chance(case.model, case.inputs):
            raise ProblemError(
                f"{reference.problem.name}: its reference draws random numbers in forward and its output depends on them, so "
                "that no kernel can give the same: take the dropout out, or put it in eval mode"
            )
        notes += [case.note] if case.note else []
        for name, errors in class_errors(reference, case, every).items():
            known = own.get(name, least)
            own[name] = _wider(known, errors)
    if dtype.is_floating_point and default.value not in own:
        raise ProblemError(
            f"{reference.problem.name}: the reference's own {default.value} output is not finite where float64 is, or the "
            "reverse; nothing can be judged against it: check the reference's inputs"
        )
    if main is not None:
        own = {name: _wider(errors, main.policy.classes[OWN].get(name, errors)) for name, errors in own.items()}
    classes = {OWN: own}
    policy = make_policy(tolerance, default, classes, dtype)
    allowed = policy.allowed if not policy.against_eager else default  # type: ignore[union-attr]
    if main is None and not policy.against_eager:
        classes |= _stressed(reference, allowed, dtype, own)
    # What the reference does besides returning something shows when it is called, not before.
    told = tuple(dict.fromkeys((*reference.notes, *notes)))
    return Calibration(make_policy(tolerance, default, classes, dtype), tuple(classes), told)


def _least(reference: Reference, dtype: torch.dtype) -> ClassErrors:
    """What a class errs at least: nothing, but for outputs in fp32 that are few numbers all of them."""
    sizes = [math.prod(o.shape) for o in reference.signature().operands if o.role == "output"]
    least = _FEW_ERR if dtype is torch.float32 and max(sizes) < _FEW else 0.0
    return ClassErrors(least, least)


def _wider(*errors: ClassErrors) -> ClassErrors:
    return ClassErrors(max(e.rel_fro for e in errors), max(e.max_scaled for e in errors))


def _stressed(
    reference: Reference, allowed: PrecisionClass, dtype: torch.dtype, own: Mapping[str, ClassErrors]
) -> dict[str, dict[str, ClassErrors]]:
    """Errors on bent inputs, where they tell anything; nobody is held to less than on the problem's own inputs.

    (Scaled down until a bias is all that is left, a library that adds it last is nearly exact, another order of sums is not.)
    """
    found: dict[str, dict[str, ClassErrors]] = {}
    if not dtype.is_floating_point:
        return found
    wanted = tuple(dict.fromkeys((PrecisionClass.FP32, allowed)))
    for name in STRESS:
        if name in WIDE_ONLY and default_class(reference) is PrecisionClass.HALF:
            continue
        try:
            cases = [class_errors(reference, make_case(reference, name), wanted) for _ in range(_SEEDS)]
        except ProblemError:
            continue
        errors = {known: _wider(*(case[known] for case in cases)) for known in cases[0] if all(known in c for c in cases)}
        if allowed.value in errors and limit_of(allowed, errors, dtype).rel_fro <= HOPELESS:
            found[name] = {known: _wider(_loosened(here, dtype), own.get(known, here)) for known, here in errors.items()}
    return found


def _loosened(errors: ClassErrors, dtype: torch.dtype) -> ClassErrors:
    """On bent inputs a single row can be ill-conditioned (scores that all but tie): its elements get more room."""
    least = _LOOSE_FRO if dtype is torch.float32 else 0.0
    return ClassErrors(max(errors.rel_fro, least), max(errors.max_scaled, _LOOSE))


ECHO = "input echo"


def try_nulls(reference: Reference, calibration: Calibration) -> tuple[NullModel, ...]:
    """Models that compute nothing, judged by the gate they must not pass, on the problem's own inputs.

    An echo of the input moves as many bytes as an answer that is its input there (a rectifier's, of numbers that are not
    negative), so there is nothing to gain by it: it counts as refused where bent inputs, which every verdict sees, refuse it.
    The constant is the mean of the right answer; where that would be the answer, as of a single number, it is another answer's.
    """
    policy = calibration.policy
    case, other = make_case(reference, OWN), make_case(reference, OWN)
    expected = _eager_or_exact(reference, case, policy)
    elsewhere = _eager_or_exact(reference, other, policy)
    dtypes = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
    names = names_of(reference)
    nulls: dict[str, Sequence[torch.Tensor]] = {
        "zeros": [torch.zeros_like(e) for e in expected],
        "constant": [torch.full_like(e, _constant(e, o)) for e, o in zip(expected, elsewhere, strict=True)],
        "other input's output": elsewhere,
        "one tile unwritten": [_without_a_tile(e) for e in expected],
    }
    rows = []
    for name, outputs in nulls.items():
        ruling = policy.rule([o.to(d) for o, d in zip(outputs, dtypes, strict=True)], expected, names, OWN)
        rows.append(NullModel(name, ruling.passed, ruling.errors.rel_fro))
    for distribution in calibration.distributions:
        bent = case if distribution == OWN else make_case(reference, distribution)
        right = _eager_or_exact(reference, bent, policy)
        if (echo := _echo(bent, right)) is None:
            break
        ruling = policy.rule([o.to(d) for o, d in zip(echo, dtypes, strict=True)], right, names, distribution)
        found = NullModel(ECHO, ruling.passed, ruling.errors.rel_fro)
        if not found.passed or distribution == calibration.distributions[-1]:
            rows.append(found)
            break
    return tuple(rows)


def _eager_or_exact(reference: Reference, case: Case, policy: Policy) -> Sequence[torch.Tensor]:
    return reference.call(case.model, case.inputs) if policy.against_eager else case.expected


def _constant(expected: torch.Tensor, other: torch.Tensor) -> float:
    finite = expected[torch.isfinite(expected)]
    wide = finite if finite.is_complex() else finite.double()
    return _typical(expected if wide.numel() and spread(wide) else other)


def _typical(expected: torch.Tensor) -> float:
    finite = expected[torch.isfinite(expected)] if expected.dtype.is_floating_point else expected
    if not finite.numel():
        return 0.0
    if not expected.dtype.is_floating_point:
        return float(torch.mode(finite.reshape(-1).to(torch.int64)).values)
    return float(finite.double().mean())


def _without_a_tile(expected: torch.Tensor) -> torch.Tensor:
    """The right answer, but for one stretch of 1/64 of it in the middle that stays zero."""
    flat = expected.clone().reshape(-1)
    size = max(1, flat.numel() // _TILE)
    start = (flat.numel() - size) // 2
    flat[start : start + size] = 0
    return flat.reshape(expected.shape)


def _echo(case: Case, expected: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
    given = list(tensors(list(case.inputs)))
    found = [next((g for g in given if g.numel() == e.numel() and not g.dtype.is_complex), None) for e in expected]
    if any(f is None for f in found):
        return None
    return [f.reshape(e.shape).to(e.dtype) for f, e in zip(found, expected, strict=True) if f is not None]


def make_gate(reference: Reference, calibration: Calibration) -> Gate:
    """The gate as it is journalled."""
    policy = calibration.policy
    limit = policy.limit(OWN)
    allowed = default_class(reference) if policy.against_eager else policy.allowed  # type: ignore[union-attr]
    if not output_dtype(reference).is_floating_point:
        allowed = PrecisionClass.EXACT
    bent = [d for d in calibration.distributions if d != OWN]
    notes = (*calibration.notes, f"inputs: own{''.join(', ' + b for b in bent)}")
    return Gate(
        policy.name, allowed, limit.rel_fro, limit.max_scaled, FACTORS.get(allowed, 1.0), dict(policy.classes[OWN]),
        try_nulls(reference, calibration), notes,
    )  # fmt: skip
