"""A case of a trial: inputs with the reference's float64 outputs, and what the reference errs on them. Imports torch."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass, Role
from engine.problem.loading import is_out_of_memory
from engine.problem.operation_count import SHIPPED_WITH_TF32
from engine.problem.randomness import seeded
from engine.problem.reference import Reference
from engine.problem.values import map_arguments, tensors
from engine.trial.judge import any_order, arithmetic, jumps, special_values, sums
from engine.trial.judge.blocks import as_integers
from engine.trial.judge.comparison import compare_inexact, compared_exactly
from engine.trial.judge.output_on_case import OutputOnCase, SharedAnswers
from engine.trial.judge.perturbations import BY_CHANCE, DOWN, OWN, UP, nudged, perturb
from engine.trial.judge.relative_errors import RelativeErrors
from engine.trial.judge.rounded_operands import RoundedOperands
from engine.trial.judge.rounded_results import RoundedResults
from engine.trial.judge.runs_close_by import close_by, exact_close_by, exact_if_any, exact_rounded
from engine.trial.judge.ties import IndexTrace, OpenChoice, OtherChoices, equivalent, open_choice, selects
from engine.trial.judge.tolerance import HALVES
from engine.trial.judge.undecided import SeenRange, seen_ranges

_JUMP, _JUMP_IN_HALF = 1e-4, 0.05
"""Elements that err more than this, in units of their scale, may have jumped: in fp32; in half precision."""
_SOUGHT, _SOUGHT_IN_HALF, _SOUGHT_S = 8, 16, 10.0
"""Runs on moved inputs in which the jumps are sought; with moved results, in half precision; seconds for all. In bf16 eight of
either did not find all codes that a codebook of 256 may choose."""
_Computed = Callable[[Callable[[], Sequence[torch.Tensor]]], Iterator[Sequence[torch.Tensor]]]
"""Calls the reference in one way after the other."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs with the reference's float64 outputs."""

    model: nn.Module
    draw: Callable[[], tuple[object, ...]]
    expected: Sequence[torch.Tensor]
    note: str = ""
    own: bool = True
    """Whether the inputs are the problem's own, not perturbed."""

    @property
    def inputs(self) -> tuple[object, ...]:
        return self.draw()


def fresh_seed() -> int:
    """A secret seed; never leaves the judge."""
    return secrets.randbits(62)


def draws_alike(reference: Reference) -> bool:
    """Whether the same seed draws the same inputs again."""
    one, other = (list(tensors(list(reference.inputs(1)))) for _ in range(2))
    return len(one) == len(other) and all(torch.equal(as_integers(a), as_integers(b)) for a, b in zip(one, other, strict=True))


def make_case(reference: Reference, distribution: str) -> Case:
    """Inputs and weights from fresh secret seeds, with the float64 outputs."""
    model = reference.judged_model(fresh_seed(), sample=True)
    inputs = perturb(reference.inputs(fresh_seed()), distribution, compared=reference.compared_numbers())
    exact = reference.exact(model, inputs)
    return Case(model, lambda: inputs, exact.outputs, exact.note, own=distribution == OWN)


def output_names(reference: Reference) -> list[str]:
    """Output names, in order."""
    return [o.name for o in reference.signature().operands if o.role == "output"]


def output_dtype(reference: Reference) -> torch.dtype:
    """The floating type of the outputs or their parts (the narrowest, if several), or their integer type."""
    found = output_dtypes(reference)
    floating = [d for d in found if d.is_floating_point]
    return min(floating, key=lambda d: torch.finfo(d).bits) if floating else found[0]


def output_dtypes(reference: Reference) -> list[torch.dtype]:
    """The type of each output or of its parts."""
    return [getattr(torch, o.dtype).to_real() for o in reference.signature().operands if o.role == "output"]


def default_class(reference: Reference) -> PrecisionClass:
    """The class that eager PyTorch uses by default for this problem on this device."""
    operands = reference.signature().operands
    narrow = any(o.dtype in ("float16", "bfloat16") for o in operands)
    if narrow or any(o.role is Role.OUTPUT and o.dtype.startswith("float8") for o in operands):
        return PrecisionClass.HALF
    if reference.device.type == "cuda" and SHIPPED_WITH_TF32 & reference.ops_used():
        return PrecisionClass.TF32
    return PrecisionClass.FP32


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
    errors = _errors_on(reference, case, outputs)
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

    return _errors_on(reference, replace(case, expected=[nearest(index) for index in range(len(outputs))]), outputs)


def _may_have_jumped(reference: Reference, case: Case, precision: PrecisionClass, errors: RelativeErrors) -> bool:
    """Whether errors are large for their class, and the reference has operators whose results jump."""
    if precision is PrecisionClass.FP32:
        large = errors.rel_fro > _JUMP
    else:
        half = precision is PrecisionClass.HALF and case.own and default_class(reference) is PrecisionClass.HALF
        large = half and errors.max_scaled > _JUMP_IN_HALF
    return large and jumps.may_jump(reference.operators())


def _errors_on(reference: Reference, case: Case, outputs: Sequence[torch.Tensor]) -> RelativeErrors | None:
    """The errors of the reference's outputs on a case; ``None`` where no limit covers them."""
    found = compare_inexact(outputs, case.expected, output_names(reference))
    alone = [RelativeErrors(one.rel_fro, one.max_scaled) for one in found.by_output or [found]]
    return None if found.flaw else RelativeErrors.of_outputs(alone)


@dataclass(frozen=True, slots=True)
class ReferenceOnCase:
    """The reference on one case: a ``tolerance.WholeCase``."""

    reference: Reference
    case: Case

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
        """``class_errors`` of the case."""
        return class_errors(self.reference, self.case, wanted)

    def by_output(self, outputs: Sequence[torch.Tensor]) -> Sequence[OutputOnCase]:
        """The reference on this case for each output by itself: it is called once for all of ``outputs``."""
        shared = SharedAnswers(self, outputs)
        return [OutputOnCase(shared, index, dtype) for index, dtype in enumerate(output_dtypes(self.reference))]

    def in_order_of(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """The float64 outputs with what ``topk(sorted=False)`` chooses in the order of ``outputs``; ``None`` without one."""
        if "topk" not in self.reference.operators():
            return None
        return any_order.in_order_of(
            outputs,
            exact=lambda: self.reference.exact(self.case.model, self.case.inputs).outputs,
            eager=lambda: self.reference.call(self.case.model, self.case.inputs),
        )

    def plain_sums(self, dtype: torch.dtype | None = None) -> Iterator[RelativeErrors]:
        """The reference errors with sums in plain loops, one order after the other; none where it fails so.

        ``dtype``: the type of these sums, if not the outputs'.
        """
        yield from self._errors_in(partial(sums.in_loops, dtype=dtype or output_dtype(self.reference)))

    def tf32_sums(self) -> RelativeErrors | None:
        """The reference error in fp32 with sums of terms that are rounded to TF32; ``None`` where it has none."""
        return next(self._errors_in(sums.of_tf32_terms), None)

    def rounded_inputs(self, dtype: torch.dtype | None = None) -> RelativeErrors:
        """How far the output moves where the inputs move by up to four units in the last place of ``dtype`` (the outputs')."""
        with seeded(fresh_seed(), self.reference.device):
            close = nudged(self.case.inputs, BY_CHANCE, dtype or output_dtype(self.reference))
        moved = next(exact_if_any(self.reference, self.case.model, close), None)
        return (moved and _errors_on(self.reference, self.case, moved)) or RelativeErrors(0.0, 0.0)

    def rounded_results(self, dtype: torch.dtype | None = None) -> RelativeErrors:
        """The same, where the results of all arithmetic move too (``rounded_results``); of half precision, where the inputs
        stay and operands of products move (``rounded_operands``)."""
        units = dtype or output_dtype(self.reference)
        close, half = self.case.inputs, units in HALVES
        if not half:
            with seeded(fresh_seed(), self.reference.device):
                close = nudged(close, BY_CHANCE, units)
        with (RoundedOperands if half else RoundedResults)(units, fresh_seed()):
            moved = next(exact_if_any(self.reference, self.case.model, close), None)
        if moved is None:
            return RelativeErrors(0.0, 0.0)
        # A root of what cancels is NaN in some elements; the others say how far it moves.
        finite = [torch.where(torch.isfinite(mine), mine, right) for mine, right in zip(moved, self.case.expected, strict=True)]
        return _errors_on(self.reference, self.case, finite) or RelativeErrors(0.0, 0.0)

    def _errors_in(self, computed: _Computed) -> Iterator[RelativeErrors]:
        for outputs in self._outputs(computed):
            if (errors := _errors_on(self.reference, self.case, outputs)) is not None:
                yield errors
            del outputs  # before the next ones are computed

    def _outputs(self, computed: _Computed) -> Iterator[Sequence[torch.Tensor]]:
        """The reference's outputs as computed, up to the first call that fails.

        Raises ProblemError where memory runs out: another memory plan is tried then.
        """
        try:
            yield from computed(lambda: self.reference.call(self.case.model, self.case.inputs))
        except ProblemError as error:
            if is_out_of_memory(error.__cause__ or error):
                raise

    def equivalent(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Masks of the indices that select the same values as the reference's. None for outputs that hold no indices."""
        exact, eager = self._traces()
        pairs = zip(outputs, self.case.expected, strict=True)
        return [equivalent(o, e, exact, eager) if _may_be_index(o) else None for o, e in pairs]

    def ties_decide(self) -> list[bool]:
        """For each output, whether it follows from an index of equal scores with which the reference computes."""
        choice = open_choice(*self._traces()) if self.selects else OpenChoice.NONE
        changed = [choice is OpenChoice.ANY for _ in self.case.expected]
        if choice is not OpenChoice.OTHER:
            return changed
        for seed, sign in itertools.product((fresh_seed(), fresh_seed()), (UP, DOWN)):
            with OtherChoices(seed, sign):
                others = self.reference.exact(self.case.model, self.case.inputs).outputs
            changed = [known or not torch.equal(a, b) for known, a, b in zip(changed, others, self.case.expected, strict=True)]
        return changed

    def _traces(self) -> tuple[IndexTrace, IndexTrace]:
        """The indices of the reference in float64 and in its own arithmetic."""
        exact, eager = IndexTrace(), IndexTrace()
        with exact:
            self.reference.exact(self.case.model, self.case.inputs)
        with eager:
            self.reference.call(self.case.model, self.case.inputs)
        return exact, eager

    def defined(self, masks: Sequence[torch.Tensor]) -> bool:
        """Whether arithmetic on the special inputs, or a test of it, decides any of the masked elements."""
        if not any(bool(mask.any()) for mask in masks):
            return False
        operators = self.reference.operators()
        numbers = special_values.only_adds_and_multiplies(operators)
        if not numbers and not special_values.only_computes_and_tests(operators):
            return False
        finite = [
            map_arguments(partial(special_values.replaced, by=by), self.case.inputs) for by in special_values.REPLACEMENTS
        ]
        one, other = (self.reference.exact(self.case.model, inputs).outputs for inputs in finite)
        return any(
            bool((mask & (a != right).reshape(-1).to(mask.device)).any())
            if right.dtype == torch.bool
            else numbers and special_values.depends(mask, a, b)
            for mask, a, b, right in zip(masks, one, other, self.case.expected, strict=True)
        )

    def replaces_nan(self) -> bool:
        """Whether the reference replaces NaN among its inputs, leaves it out, or looks for it."""
        inputs = self.case.inputs
        tests = special_values.NanTests(inputs)
        with tests:
            self.reference.call(self.case.model, inputs)
        return tests.found

    def undecided(self, most: float) -> list[SeenRange | None]:
        """The values of integers in runs close by, for the outputs that hold any: in the reference's own arithmetic, in float64
        when the inputs move by a few units in the last place (up, down or at random), and with sums in plain loops.

        Each run counts as long as no more than the share ``most`` of an output is undecided (``seen_ranges``).
        """
        return seen_ranges(self.case.expected, self._close_by(), most)

    def own_outputs(self) -> Sequence[torch.Tensor]:
        """The outputs of the reference's own arithmetic."""
        return self.reference.call(self.case.model, self.case.inputs)

    @property
    def selects(self) -> bool:
        """Whether the reference has operators that return indices."""
        return selects(self.reference.operators())

    @property
    def convolves(self) -> bool:
        """Whether the reference has a convolution."""
        return any("convolution" in name for name in self.reference.operators())

    def nearest_seen(self, outputs: Sequence[torch.Tensor], limit: float, most: float) -> list[torch.Tensor] | None:
        """The expected output with the values that its jumping elements take in runs close by: for a single output."""
        found = self.nearest_of_output(0, outputs[0], limit, most)
        return None if found is None else [found]

    def nearest_of_output(self, index: int, output: torch.Tensor, limit: float, most: float) -> torch.Tensor | None:
        """The same for one of the outputs."""
        if not jumps.may_jump(self.reference.operators()):
            return None
        runs = (outputs[index] for outputs in self._close_by())
        return jumps.nearest_seen(output, self.case.expected[index], runs, limit, most)

    def _close_by(self) -> Iterator[Sequence[torch.Tensor]]:
        """``close_by``, and the outputs with sums in plain loops."""
        yield from close_by(self.reference, self.case.model, self.case.inputs)
        yield from self._outputs(sums.in_loops)


def _may_be_index(tensor: torch.Tensor) -> bool:
    return compared_exactly(tensor) and tensor.dtype != torch.bool


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
