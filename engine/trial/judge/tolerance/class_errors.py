"""What the reference errs on a case in the arithmetic of each precision class. Imports torch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.problem.reference import Reference
from engine.problem.torch_modes.randomness import seeded
from engine.trial.judge.inputs.cases import Case, default_class, fresh_seed, output_dtypes, output_names
from engine.trial.judge.inputs.perturbations import BY_CHANCE, DOWN, UP, nudged
from engine.trial.judge.outputs.comparison import compare_inexact
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.rounding import arithmetic, jumps
from engine.trial.judge.rounding.runs_close_by import exact_close_by, exact_if_any, exact_rounded

_JUMP, _JUMP_IN_HALF = 1e-4, 0.05
"""Elements that err more than this, in units of their scale, may have jumped: in fp32; in half precision."""
_SOUGHT, _SOUGHT_IN_HALF, _SOUGHT_S = 8, 16, 10.0
"""Runs on moved inputs in which the jumps are sought; with moved results, in half precision; seconds for all. In bf16 eight of
either did not find all codes that a codebook of 256 may choose."""


def _half_of(reference: Reference) -> torch.dtype:
    """The type of half precision among the operands of a problem of that class."""
    return torch.float16 if any(o.dtype == "float16" for o in reference.signature().operands) else torch.bfloat16


def class_errors(reference: Reference, case: Case, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
    """Errors of the reference's own arithmetic in each wanted class on one case. A class that overflows is omitted."""
    found: dict[str, RelativeErrors] = {}
    for precision in wanted:
        for outputs in _in_class(reference, case, precision):
            if (errors := errors_in_class(reference, case, precision, outputs)) is not None:
                found[precision.value] = errors.wider(found.get(precision.value, errors))
            del outputs  # before the next ones are computed
    return found


def errors_in_class(
    reference: Reference, case: Case, precision: PrecisionClass, outputs: Sequence[torch.Tensor]
) -> RelativeErrors | None:
    """The errors of outputs in a class, but for a few elements that jump: a multiple of those would tell nothing.

    Not in TF32; in half precision on the problem's own inputs, if it is the problem's.
    """
    errors = errors_on(reference, case, outputs)
    if errors is None or not _may_have_jumped(reference, case, precision, errors):
        return errors
    in_half = precision is PrecisionClass.HALF
    limit, most = (_JUMP_IN_HALF, jumps.MOST_AT_ODDS) if in_half else (_JUMP, jumps.MOST)

    def runs() -> Iterator[Sequence[torch.Tensor]]:
        if in_half:
            return exact_rounded(reference, case.model, case.inputs, _SOUGHT_IN_HALF, _half_of(reference))
        return exact_close_by(reference, case.model, case.inputs, _SOUGHT)

    def nearest(index: int) -> torch.Tensor:
        expected, until = case.expected[index], time.monotonic() + _SOUGHT_S
        seen = (run[index] for run in itertools.takewhile(lambda _: time.monotonic() < until, runs()))
        found = jumps.nearest_seen(outputs[index], expected, seen, limit, most)
        if found is None:
            return expected
        return jumps.with_far_ones(found, outputs[index], limit) if in_half else found

    return errors_on(reference, replace(case, expected=[nearest(index) for index in range(len(outputs))]), outputs)


def _may_have_jumped(reference: Reference, case: Case, precision: PrecisionClass, errors: RelativeErrors) -> bool:
    """Whether errors are large for their class, and the reference has operators whose results jump."""
    if precision is PrecisionClass.FP32:
        large = errors.rel_fro > _JUMP
    else:
        half = precision is PrecisionClass.HALF and case.own and default_class(reference) is PrecisionClass.HALF
        large = half and errors.max_scaled > _JUMP_IN_HALF
    return large and jumps.may_jump(reference.operators())


def errors_on(reference: Reference, case: Case, outputs: Sequence[torch.Tensor]) -> RelativeErrors | None:
    """The errors of the reference's outputs on a case; ``None`` where no limit covers them."""
    found = compare_inexact(outputs, case.expected, output_names(reference))
    alone = [RelativeErrors(one.rel_fro, one.max_scaled) for one in found.by_output or [found]]
    return None if found.flaw else RelativeErrors.of_outputs(alone)


def _in_class(reference: Reference, case: Case, precision: PrecisionClass) -> Iterator[Sequence[torch.Tensor]]:
    """The reference's outputs in the arithmetic of a class, one set after the other."""
    call: Callable[[], Sequence[torch.Tensor]] = lambda: reference.call(case.model, case.inputs)  # noqa: E731
    half_problem = default_class(reference) is PrecisionClass.HALF
    match precision:
        case PrecisionClass.FP32 if half_problem:
            yield from _with_wide_outputs_in_fp32(reference, case)
        case PrecisionClass.FP32:
            yield arithmetic.in_fp32(call)
            if torch.float64 in output_dtypes(reference):
                yield from _in_float64_on_nudged_inputs(reference, case)
            elif case.note:
                yield from _on_nudged_inputs(reference, case)
        case PrecisionClass.TF32 if not half_problem:
            yield from arithmetic.in_tf32(call, reference.device.type)
        case PrecisionClass.HALF if half_problem:
            yield call()
        case PrecisionClass.HALF:
            models = (_whole_model_in(reference, case, dtype) for dtype in (torch.bfloat16, torch.float16))
            yield from itertools.islice((outputs for outputs in models if outputs is not None), 1)


def _with_wide_outputs_in_fp32(reference: Reference, case: Case) -> Iterator[Sequence[torch.Tensor]]:
    """The exact outputs in their types; beside outputs of half precision, fp32 ones as fp32 arithmetic gives them."""
    dtypes = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
    rounded = [e.to(d) for e, d in zip(case.expected, dtypes, strict=True)]
    yield rounded
    wide = [dtype.to_real() in (torch.float32, torch.float64) for dtype in dtypes]
    if len(dtypes) < 2 or not any(wide):
        return
    single = _whole_model_in(reference, case, torch.float32)
    if single is not None:
        yield [mine if is_wide else right for mine, right, is_wide in zip(single, rounded, wide, strict=True)]
    if torch.float64 in map(torch.dtype.to_real, dtypes):
        yield from _in_float64_on_nudged_inputs(reference, case)


def _on_nudged_inputs(reference: Reference, case: Case) -> Iterator[Sequence[torch.Tensor]]:
    """The outputs for inputs moved by a few units in the last place: how far rounding moves them where float64 is missing.

    Compared with float32, the reference's own fp32 arithmetic has no error, and every other order of summation would be wrong.
    """
    with seeded(fresh_seed(), reference.device):
        moved = [nudged(case.inputs, way) for way in (UP, DOWN, BY_CHANCE)]
    for inputs in moved:
        yield reference.call(case.model, reference.cast_inputs(inputs, torch.float32))


def _in_float64_on_nudged_inputs(reference: Reference, case: Case) -> Iterator[Sequence[torch.Tensor]]:
    """The outputs for inputs moved by a few units in the last place of float64.

    A reference in float64 has no error of its own there, and every other order of summation would be wrong.
    """
    with seeded(fresh_seed(), reference.device):
        moved = [nudged(case.inputs, way, torch.float64) for way in (UP, DOWN, BY_CHANCE)]
    for inputs in moved:
        yield from exact_if_any(reference, case.model, inputs)


def _whole_model_in(reference: Reference, case: Case, dtype: torch.dtype) -> Sequence[torch.Tensor] | None:
    try:
        return reference.call(reference.cast(case.model, dtype), reference.cast_inputs(case.inputs, dtype), last=True)
    except ProblemError:
        return None
