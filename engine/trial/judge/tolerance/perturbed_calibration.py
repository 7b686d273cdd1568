"""What the reference errs on perturbed inputs. Imports torch.

A distribution is used only where the reference itself stays finite and accurate; one case decides, because the policy consults
the reference again before it rejects. Where a reference cannot fail on any numbers, this is measured only when a kernel errs
more on a distribution than limits allow at least (``least_errors``): those follow from the errors on the problem's own inputs.
Most right kernels never do, and measuring took a quarter of their verdict where inputs are large.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, make_case, output_dtype, output_dtypes
from engine.trial.judge.inputs.perturbations import INSTEAD_OF, RANGE_ENDS, UNEQUAL, ZERO_SLICES
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance import special_values
from engine.trial.judge.tolerance.class_errors import class_errors
from engine.trial.judge.tolerance.format_check import decides, several_right
from engine.trial.judge.tolerance.perturbed_limits import with_common_limits, with_more_room
from engine.trial.judge.tolerance.policy import HOPELESS, error_limit
from engine.trial.judge.tolerance.repeated_writes import undefined_writes

LEAST_PERTURBED = 4
"""Kinds of perturbed inputs that are tried whatever they take."""
_RANK_DEFICIENT = 6
"""Further cases of zero slices where a format's checker may decide: in some of them rounding decides no pivot."""


def can_wait(reference: Reference) -> bool:
    """Whether the errors can be measured later: the reference runs on any numbers, and its outputs have the shapes that they
    have on its own inputs. No checker of the problem's format decides, which several outputs may satisfy.

    A reference that fake tensors cannot trace may read numbers by ``tolist`` or NumPy, which no operator shows.
    """
    floating = all(dtype.is_floating_point for dtype in output_dtypes(reference))
    computes = special_values.computes_on_any_numbers(reference.operators()) and not reference.must_run
    return floating and computes and not decides(reference)


def without_alternatives(names: Sequence[str]) -> list[str]:
    """``names`` but for those that are used only instead of another one among them."""
    return [name for name in names if INSTEAD_OF.get(name) not in names]


def least_errors(
    reference: Reference, own: Mapping[str, RelativeErrors], names: Iterable[str]
) -> dict[str, dict[str, RelativeErrors]]:
    """The least that ``measured_errors`` can find on these distributions."""
    dtypes = output_dtypes(reference)
    least = {name: {known: with_more_room(errors, dtypes, name) for known, errors in own.items()} for name in names}
    return with_common_limits(least, dtypes)


@dataclass(frozen=True, slots=True)
class PerturbedErrors:
    """The reference's errors on perturbed inputs, in its own arithmetic."""

    errors: dict[str, dict[str, RelativeErrors]]
    """Distribution → precision class → errors, for the distributions that discriminate."""
    several: str
    """The distribution on which several outputs were found to be right; empty for none."""
    fails_on_some: bool
    """Whether the reference failed on some of these inputs."""


def measured_errors(
    reference: Reference, allowed: PrecisionClass, own: Mapping[str, RelativeErrors], names: Sequence[str], several: str = "",
    *, may_fail: bool = True,
) -> PerturbedErrors:  # fmt: skip
    """Errors on the distributions ``names``, never below ``own``, those on the problem's own inputs: where these are scaled
    down until only a bias is left, a library that adds it last is nearly exact, and another order of summation is not.

    ``several``: the distribution on which several outputs were found to be right before; then none is sought. Otherwise
    rank-deficient inputs are tried repeatedly.
    ``may_fail``: whether the reference may fail on some numbers. Otherwise an exception of it is raised: memory may have run
    out, while a kernel holds some.
    """
    found: dict[str, dict[str, RelativeErrors]] = {}
    fails = False
    dtype, dtypes = output_dtype(reference), output_dtypes(reference)
    wanted = tuple(dict.fromkeys((PrecisionClass.FP32, allowed)))
    for name in names:
        if INSTEAD_OF.get(name) in found:
            continue
        case = _perturbed_case(reference, name, wanted, seeks_several=not several, may_fail=may_fail)
        several, fails = several or (name if case.several_right else ""), fails or case.failed
        if allowed.value in case.errors and error_limit(allowed, case.errors, dtype).rel_fro <= HOPELESS:
            found[name] = {
                known: with_more_room(here, dtypes, name).wider(own.get(known, here)) for known, here in case.errors.items()
            }
    tries = _RANK_DEFICIENT if decides(reference) and len(names) > LEAST_PERTURBED else 0
    for _ in range(tries):
        if several:
            break
        case = _perturbed_case(reference, ZERO_SLICES, wanted, seeks_several=True, may_fail=may_fail)
        several = ZERO_SLICES if case.several_right else ""
    return PerturbedErrors(with_common_limits(found, dtypes), several, fails)


@dataclass(frozen=True, slots=True)
class _PerturbedCase:
    """What the reference shows on one case of perturbed inputs."""

    errors: Mapping[str, RelativeErrors] = field(default_factory=dict)
    """By class; none where the case says nothing."""
    several_right: bool = False
    """Whether it shows several right outputs, if these are sought."""
    failed: bool = False
    """Whether the reference raised an exception."""


def _perturbed_case(
    reference: Reference, name: str, wanted: tuple[PrecisionClass, ...], *, seeks_several: bool, may_fail: bool
) -> _PerturbedCase:
    """One case, which says nothing where the reference fails. Raises ProblemError where it must not fail."""
    try:
        case = make_case(reference, name)
        if name in (UNEQUAL, RANGE_ENDS) and not _has_usual_shapes(reference, case):
            return _PerturbedCase()
        if undefined_writes(reference, case):
            return _PerturbedCase()
        errors = class_errors(reference, case, wanted)
        last = wanted[-1].value
        called = functools.partial(reference.call, case.model, case.inputs)
        several = seeks_several and last in errors and several_right(reference, case, errors[last], called)
        return _PerturbedCase(errors, several)
    except ProblemError:
        if not may_fail:
            raise
        return _PerturbedCase(failed=True)


def _has_usual_shapes(reference: Reference, case: Case) -> bool:
    """Whether the outputs have the workload's shapes; shapes may depend on lengths and masks among the inputs."""
    usual = [tuple(o.shape) for o in reference.signature().operands if o.role == "output"]
    return [tuple(output.shape) for output in case.expected] == usual
