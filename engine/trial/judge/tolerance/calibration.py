"""Calibration: the reference error by precision class, for every input distribution. Imports torch.

The reference runs in the arithmetic of each class on fresh seeds and is compared with float64. The result is a tolerance
policy. For perturbed inputs see ``perturbed_calibration``.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.problem.precision import draws_numbers
from engine.problem.reference import Reference
from engine.trial.judge.caches.preparation_cache import KeptCalibration
from engine.trial.judge.inputs.cases import Case, default_class, make_case, output_dtype, output_dtypes, output_names
from engine.trial.judge.inputs.perturbations import COPIES, GRADED, INSTEAD_OF, OPPOSED, OWN, UNEQUAL, WIDE_ONLY
from engine.trial.judge.outputs.comparison import compare_inexact
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.candidate_distributions import candidates
from engine.trial.judge.tolerance.class_errors import class_errors
from engine.trial.judge.tolerance.class_policy import ClassPolicy
from engine.trial.judge.tolerance.format_check import several_right
from engine.trial.judge.tolerance.perturbed_calibration import (
    LEAST_PERTURBED,
    can_wait,
    least_errors,
    measured_errors,
    without_alternatives,
)
from engine.trial.judge.tolerance.policies import Policy, allowed_class, make_policy
from engine.trial.judge.tolerance.policy import HOPELESS, error_limit, errs_as_half
from engine.trial.judge.tolerance.repeated_writes import DISTINCT, undefined_writes

_SEEDS = 2
"""Cases on the problem's own inputs."""
_MOST_SEEDS, _VARIES = 8, HOPELESS / 10
"""Most cases on the problem's own inputs, and the limit from which on there are more than ``_SEEDS``: what rounding does to
nearly constant outputs depends on the weights. A third draw was seen to give twenty times the larger error of the first two."""
_FEW_ELEMENTS = 16
_FEW_ELEMENTS_ERROR = 1e-6
"""Lower bound on a class's error of an output of fewer than 16 elements: too few to show how rounding errors vary, and
all can be exact by luck. fp32 allows ten times this."""
_SLOW_S = 5.0
"""A case that takes longer is not repeated with another seed."""
_PERTURBED_S = 20.0
"""Seconds of the reference for all kinds of perturbed inputs: to measure its errors, and as many to check a kernel."""

_USUAL = {PrecisionClass.FP32: 1e-3, PrecisionClass.TF32: 2e-2, PrecisionClass.HALF: 5e-2}
"""Errors of a class up to this are arithmetic's; larger ones are looked into."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A policy, and the distributions it can judge on."""

    policy: Policy
    distributions: tuple[str, ...]
    notes: tuple[str, ...]
    several: str = ""
    """The inputs on which the format's checker accepted two outputs that differ by more than rounding (``several_right``), if
    there are any. Then the checker decides where an output differs from float64's, on every call."""
    fails_on_some: bool = False
    """Whether the reference raised an exception on some perturbed inputs. Others of the same kind may be such, too."""

    @property
    def unmeasured(self) -> frozenset[str]:
        """Distributions on which the reference's own errors have not been measured: see ``complete``."""
        return self.policy.unmeasured if isinstance(self.policy, ClassPolicy) else frozenset()

    @property
    def float64_tells(self) -> bool:
        """Whether float64 tells right outputs on the problem's own inputs from wrong ones."""
        return not self.several or self.policy.limit(OWN).rel_fro <= HOPELESS

    @property
    def judges_perturbed(self) -> bool:
        """Whether kernels must be right on perturbed inputs too."""
        return any(name != OWN for name in self.distributions)


def calibrate(reference: Reference, tolerance: str, main: Calibration | None = None, *, ahead: bool = True) -> Calibration:
    """Measure the reference error by precision class and make the policy. Raises ProblemError where no kernel can be judged.

    ``main`` is the workload's calibration if ``reference`` is one of its hold-out shapes. A hold-out is calibrated on the
    problem's own inputs only, with limits no tighter than the workload's (a library can happen to be exact on a small shape),
    and has the workload's on perturbed inputs.
    ``ahead``: whether errors on perturbed inputs are measured even where that can wait for ``complete``.
    """
    try:
        return _calibrate(reference, tolerance, main, ahead=ahead)
    except ProblemError:
        if not reference.constants:
            raise
    reference.keep_constants()
    found = _calibrate(reference, tolerance, main, ahead=ahead)
    return replace(found, notes=(*found.notes, "constant parameters stay as they are: the reference fails with others"))


def keep_calibration(reference: Reference, found: Calibration) -> KeptCalibration:
    """A calibration as it is cached."""
    keeps = not reference.constants
    return KeptCalibration(
        found.policy.classes, found.notes, keeps, found.several, found.fails_on_some, tuple(sorted(found.unmeasured))
    )


def restore(reference: Reference, tolerance: str, kept: KeptCalibration) -> Calibration:
    """The calibration that was cached. Raises ProblemError for an unknown tolerance."""
    if kept.keeps_constants:
        reference.keep_constants()
    policy = _policy(reference, tolerance, kept.classes, kept.unmeasured)
    return Calibration(policy, tuple(kept.classes), kept.notes, kept.several, kept.fails_on_some)


@dataclass(slots=True)
class _OwnCases:
    """What the reference shows on the problem's own inputs."""

    classes: dict[str, RelativeErrors] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    several: str = ""
    seconds: float = 0.0
    """How long the last case took."""
    exact_s: float = 0.0
    """How long its inputs and float64 outputs took."""


def complete(reference: Reference, found: Calibration, distribution: str) -> Calibration:
    """``found`` with the reference's own errors on a distribution on which they were not measured.

    Without it where the reference is not accurate there; then with what is used instead. The limits for large inputs are common
    ones: they are measured together. Raises ProblemError where memory runs out.
    """
    policy = found.policy
    assert isinstance(policy, ClassPolicy)
    names = [n for n in WIDE_ONLY if n in policy.unmeasured] if distribution in WIDE_ONLY else [distribution]
    own = policy.classes[OWN]
    measured = measured_errors(reference, policy.allowed, own, names, may_fail=False)
    left_out = set(names) - set(measured.errors)
    instead = [name for name, other in INSTEAD_OF.items() if other in left_out]
    kept = {name: classes for name, classes in policy.classes.items() if name not in left_out}
    classes = {**kept, **measured.errors, **least_errors(reference, own, instead)}
    unmeasured = (policy.unmeasured - set(names)) | set(instead)
    return replace(found, policy=replace(policy, classes=classes, unmeasured=unmeasured), distributions=tuple(classes))


def completed_as(main: Calibration, found: Calibration) -> Calibration:
    """``found``, of a hold-out shape, with what has been measured since on the workload's perturbed inputs.

    Distributions that have been left out on the workload are left out, and those that are used instead are new.
    """
    policy = found.policy
    assert isinstance(policy, ClassPolicy)
    own = policy.classes[OWN]
    classes = {OWN: own, **_perturbed_as(main, own)}
    return replace(
        found,
        policy=replace(policy, classes=classes, unmeasured=main.unmeasured & classes.keys()),
        distributions=tuple(classes),
    )


def _calibrate(reference: Reference, tolerance: str, main: Calibration | None, *, ahead: bool) -> Calibration:
    default, dtype = default_class(reference), output_dtype(reference)
    found = _own_cases(reference, default, main, tolerance)
    own, notes = found.classes, found.notes
    if dtype.is_floating_point and default.value not in own:
        raise ProblemError(
            f"{reference.problem.name}: the reference's {default.value} and float64 outputs are not finite at the same "
            "elements, no kernel can be judged against it: check the reference's inputs"
        )
    if main is not None:
        own = {name: errors.wider(main.policy.classes[OWN].get(name, errors)) for name, errors in own.items()}
    classes = {OWN: own, **({} if main is None else _perturbed_as(main, own))}
    unmeasured = main.unmeasured & classes.keys() if main is not None else frozenset()
    policy = _policy(reference, tolerance, classes)
    allowed = allowed_class(policy, default)
    against_float64 = isinstance(policy, ClassPolicy)
    several = found.several if against_float64 else ""
    fails = main is not None and main.fails_on_some
    if main is None and against_float64 and not (several and policy.limit(OWN).rel_fro > HOPELESS):
        waits = not ahead and can_wait(reference)
        each, most = (found.exact_s, 2 * _PERTURBED_S) if waits else (found.seconds, _PERTURBED_S)
        chosen = _affordable(candidates(reference), each, most, notes)
        if waits:
            later = without_alternatives(chosen)
            classes |= least_errors(reference, own, later)
            unmeasured = frozenset(later)
        else:
            perturbed = measured_errors(reference, allowed, own, chosen, several)
            several, fails = perturbed.several, perturbed.fails_on_some
            classes |= perturbed.errors
    if several:
        notes.append(_decided_by(reference, several))
    # The reference's notes are complete only after it was called.
    distinct_notes = tuple(dict.fromkeys((*reference.notes, *notes)))
    policy = _policy(reference, tolerance, classes, unmeasured)
    return Calibration(policy, tuple(classes), distinct_notes, several, fails)


def _policy(
    reference: Reference, tolerance: str, classes: Mapping[str, Mapping[str, RelativeErrors]], unmeasured: Collection[str] = ()
) -> Policy:
    dtype, dtypes = output_dtype(reference), output_dtypes(reference)
    default = default_class(reference)
    own = classes.get(OWN, {}).get(default.value)
    from_half = default is not PrecisionClass.HALF and reference.rounds_to_half() and own is not None and errs_as_half(own)
    return make_policy(tolerance, default, classes, dtype, dtypes, unmeasured, from_half=from_half)


def _perturbed_as(main: Calibration, own: Mapping[str, RelativeErrors]) -> dict[str, dict[str, RelativeErrors]]:
    """The errors of the workload's calibration on perturbed inputs, for a hold-out shape: at least those on its own inputs.

    Without the distributions whose errors depend on sizes.
    """
    return {
        distribution: {name: errors.wider(own.get(name, errors)) for name, errors in classes.items()}
        for distribution, classes in main.policy.classes.items()
        if distribution not in (OWN, UNEQUAL, GRADED, OPPOSED, COPIES)
    }


def _own_cases(reference: Reference, default: PrecisionClass, main: Calibration | None, tolerance: str) -> _OwnCases:
    """The errors on two cases; on more where they are large, and so vary from case to case; on one where that takes long.

    So few suffice because a verdict consults the reference again before it rejects. Half precision, which is slow, is tried on
    the first case only if it is neither the default class nor asked for: then it only explains errors.
    """
    every = (PrecisionClass.FP32, PrecisionClass.TF32, PrecisionClass.HALF)
    decides_half = default is PrecisionClass.HALF or tolerance == f"class:{PrecisionClass.HALF}"
    least = _error_floor(reference)
    known = _OwnCases(several=main.several if main is not None else "")
    since = time.monotonic()
    for trial in range(_MOST_SEEDS):
        began = time.monotonic()
        if trial >= _SEEDS and (began - since > _SLOW_S or not _varies(known, default, output_dtype(reference))):
            break
        case = make_case(reference, OWN)
        known.exact_s = time.monotonic() - began
        if trial == 0 and reference.has_random_outputs(case.model, case.inputs):
            raise ProblemError(
                f"{reference.problem.name}: the reference's output depends on random numbers drawn in forward, no kernel can "
                "match it: remove the dropout, or switch it to eval mode"
            )
        known.notes += [case.note] if case.note else []
        found = class_errors(reference, case, every if trial == 0 or decides_half else every[:-1])
        called = functools.cache(functools.partial(reference.call, case.model, case.inputs))
        if not known.several and default.value in found and several_right(reference, case, found[default.value], called):
            known.several = OWN
        _check_writes(reference, case)
        if trial == 0 and default.value in found:
            _check_repeatable(reference, case, found[default.value].rel_fro, default, called)
        for name, errors in found.items():
            known.classes[name] = known.classes.get(name, least).wider(errors)
        del case, called  # its tensors must not lie beside the next case's
        known.seconds = time.monotonic() - began
        if known.seconds > _SLOW_S:
            break
    return known


def _varies(known: _OwnCases, allowed: PrecisionClass, dtype: torch.dtype) -> bool:
    """Whether further cases could have much larger errors."""
    return dtype.is_floating_point and error_limit(allowed, known.classes, dtype).rel_fro > _VARIES


def _affordable(names: Sequence[str], each_s: float, within_s: float, notes: list[str]) -> list[str]:
    """The perturbations to try: all of them, or as many as the time allows, chosen at random; a note says so."""
    most = max(LEAST_PERTURBED, int(within_s / max(each_s, 1e-3)))
    if most >= len(names):
        return list(names)
    notes.append(f"a case takes the reference {each_s:.1f} s: {most} of {len(names)} kinds of perturbed inputs are tried")
    chosen = set(random.SystemRandom().sample(list(names), most))
    return [name for name in names if name in chosen]


def _check_repeatable(
    reference: Reference, case: Case, error: float, default: PrecisionClass, called: Callable[[], Sequence[torch.Tensor]]
) -> None:
    """Raises ProblemError where an unusual error is not one of arithmetic: calls on the same inputs differ as much.

    Where the reference draws numbers from a generator of its own, calls may differ whatever the error: float64 arithmetic
    works on a copy of the model, whose generator gives the same numbers. ``called``: the outputs of one of the two calls.
    """
    usual = _USUAL[default]
    if error <= usual and not draws_numbers(reference.operators()):
        return
    one, other = called(), reference.call(case.model, case.inputs)
    apart = compare_inexact(one, other, output_names(reference)).rel_fro
    if apart > (error / 4 if error > usual else usual):
        raise ProblemError(
            f"{reference.problem.name}: two calls of the reference on the same inputs differ by {apart:.1g} of the output's "
            "spread, no kernel can match it: remove the generator, counter or clock that it reads, or the repeated indices "
            "that it writes to"
        )


def _check_writes(reference: Reference, case: Case) -> None:
    """Raises ProblemError where the outputs depend on which of several values for one element stays."""
    if undefined := undefined_writes(reference, case):
        raise ProblemError(f"{reference.problem.name}: {undefined}; no kernel can match it: {DISTINCT}")


def _error_floor(reference: Reference) -> RelativeErrors:
    """Lower bounds on a class's errors: zero, except for fp32 outputs of few elements."""
    sizes = [math.prod(o.shape) for o in reference.signature().operands if o.role == "output"]
    few = [size < _FEW_ELEMENTS and t is torch.float32 for size, t in zip(sizes, output_dtypes(reference), strict=True)]
    return RelativeErrors.of_outputs([RelativeErrors(_FEW_ELEMENTS_ERROR * one, _FEW_ELEMENTS_ERROR * one) for one in few])


def _decided_by(reference: Reference, distribution: str) -> str:
    declared = reference.problem.origin_format
    assert declared is not None, "it has the checker"
    where = "the problem's own inputs" if distribution == OWN else f"perturbed inputs ({distribution})"
    return (
        f"several outputs are right: on {where} {declared.checker} accepts outputs that differ by more than rounding; "
        "it decides on every call where an output differs from float64's"
    )
