"""The perturbations that are tried on a problem. Imports torch."""

from __future__ import annotations

from engine.domain.model import PrecisionClass
from engine.problem.arguments.values import equal_values, tensors
from engine.problem.reference import Reference
from engine.trial.judge.inputs import copied_rows, equal_numbers, graded, opposed
from engine.trial.judge.inputs.cases import default_class, fresh_seed
from engine.trial.judge.inputs.perturbations import (
    COPIES,
    EQUAL_ROWS,
    GRADED,
    NOT_FOR_HALF,
    OF_EXPONENTIALS,
    OPPOSED,
    PERTURBATIONS,
    RANGE_ENDS,
    THRESHOLDS,
    TYING,
    UNEQUAL,
)
from engine.trial.judge.inputs.replaced_elements import can_meet
from engine.trial.judge.rounding.rounded_functions import has_functions
from engine.trial.judge.rounding.ties import IndexTrace
from engine.trial.judge.tolerance import special_values


def candidates(reference: Reference) -> list[str]:
    """The perturbations to try: not those that the output's type or the operators rule out.

    Where the reference computes with the index of a maximum, equal elements make its output ambiguous.
    """
    operators = reference.operators()
    excluded = set(NOT_FOR_HALF) if default_class(reference) is PrecisionClass.HALF else set()
    if not has_functions(operators):
        excluded |= set(OF_EXPONENTIALS)
    if _computes_with_indices(reference):
        excluded |= set(TYING)
    usable = [name for name in PERTURBATIONS if name not in excluded and special_values.is_usable(name, operators)]
    operands = reference.signature().operands
    usable = [name for name in usable if name != EQUAL_ROWS or copied_rows.has_several_rows(operands)]
    usable += [THRESHOLDS] if THRESHOLDS not in excluded and can_meet(operands, reference.compared_numbers()) else []
    usable += [RANGE_ENDS] if RANGE_ENDS not in excluded and any(reference.integer_ranges()) else []
    usable += [GRADED] if graded.can_grade(operands) else []
    usable += [OPPOSED] if opposed.can_oppose(operands) else []
    usable += [COPIES] if COPIES not in excluded and copied_rows.can_copy(operands) else []
    return [UNEQUAL, *usable] if _has_equal_numbers(reference) else usable


def _has_equal_numbers(reference: Reference) -> bool:
    """Whether the same numbers are equal in every draw of an input."""
    one = list(tensors(list(reference.inputs(fresh_seed()))))
    if not any(equal_numbers.can_vary(tensor) for tensor in one):
        return False
    other = list(tensors(list(reference.inputs(fresh_seed()))))
    return any(equal_numbers.can_vary(a) and equal_values(a, b) for a, b in zip(one, other, strict=True))


def _computes_with_indices(reference: Reference) -> bool:
    model, inputs = reference.model(fresh_seed(), sample=True), reference.inputs(fresh_seed())
    trace = IndexTrace()
    with trace:
        reference.call(model, inputs)
    return trace.consumed
