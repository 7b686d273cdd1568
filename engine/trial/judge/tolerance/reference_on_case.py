"""What a policy asks the reference about one case before it refuses a kernel. Imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.problem.arguments.values import map_arguments
from engine.problem.loading import is_out_of_memory
from engine.problem.reference import Reference
from engine.problem.torch_modes.randomness import seeded
from engine.trial.judge.inputs.cases import Case, fresh_seed, output_dtype, output_dtypes
from engine.trial.judge.inputs.perturbations import BY_CHANCE, DOWN, NANS, UP, nudged
from engine.trial.judge.outputs.comparison import compared_exactly
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.outputs.undecided import SeenRange, seen_ranges
from engine.trial.judge.rounding import any_order, jumps, sums
from engine.trial.judge.rounding.rounded_functions import RoundedFunctions, has_functions
from engine.trial.judge.rounding.rounded_operands import RoundedOperands
from engine.trial.judge.rounding.rounded_results import RoundedResults
from engine.trial.judge.rounding.runs_close_by import close_by, exact_if_any
from engine.trial.judge.rounding.ties import IndexTrace, OpenChoice, OtherChoices, equivalent, open_choice, selects
from engine.trial.judge.tolerance import special_values
from engine.trial.judge.tolerance.class_errors import class_errors, errors_on
from engine.trial.judge.tolerance.output_on_case import OutputOnCase, SharedAnswers
from engine.trial.judge.tolerance.policy import HALVES

_Computed = Callable[[Callable[[], Sequence[torch.Tensor]]], Iterator[Sequence[torch.Tensor]]]
"""Calls the reference in one way after the other."""


@dataclass(frozen=True, slots=True)
class ReferenceOnCase:
    """The reference on one case: a ``policy.WholeCase``."""

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
        return (moved and errors_on(self.reference, self.case, moved)) or RelativeErrors(0.0, 0.0)

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
        return self._errors_of_finite(moved)

    def rounded_functions(self, dtype: torch.dtype | None = None) -> RelativeErrors:
        """The same, where functions of exponentials alone are rounded (``rounded_functions``)."""
        operators = self.reference.operators()
        if not has_functions(operators):
            return RelativeErrors(0.0, 0.0)
        with RoundedFunctions(dtype or output_dtype(self.reference), operators):
            moved = next(exact_if_any(self.reference, self.case.model, self.case.inputs), None)
        return self._errors_of_finite(moved)

    def _errors_of_finite(self, moved: Sequence[torch.Tensor] | None) -> RelativeErrors:
        """Errors of outputs that moved: a root of what cancels is NaN in some elements, and the others say how far it moves."""
        if moved is None:
            return RelativeErrors(0.0, 0.0)
        finite = [torch.where(torch.isfinite(mine), mine, right) for mine, right in zip(moved, self.case.expected, strict=True)]
        return errors_on(self.reference, self.case, finite) or RelativeErrors(0.0, 0.0)

    def _errors_in(self, computed: _Computed) -> Iterator[RelativeErrors]:
        for outputs in self._outputs(computed):
            if (errors := errors_on(self.reference, self.case, outputs)) is not None:
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

    def defined(self, masks: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Whether arithmetic on the special inputs, or a test of it, decides any of the masked elements of these outputs.

        Where other operators take part, only those that hold the largest number of their type in place of an infinity.
        """
        if not any(bool(mask.any()) for mask in masks):
            return False
        operators = self.reference.operators()
        numbers, norms = special_values.only_computes(operators), special_values.normalises(operators)
        if not numbers and not special_values.only_computes_and_tests(operators):
            if not special_values.carries_infinities(operators):
                return False
            masks, numbers, norms = special_values.saturated(masks, outputs, self.case.expected), True, False
        finite = [
            map_arguments(partial(special_values.replaced, by=by), self.case.inputs) for by in special_values.REPLACEMENTS
        ]
        one, other = (self.reference.exact(self.case.model, inputs).outputs for inputs in finite)
        return any(
            bool((mask & (a != right).reshape(-1).to(mask.device)).any())
            if right.dtype == torch.bool
            else numbers and (not norms or special_values.is_every_one(mask, right)) and special_values.depends(mask, a, b)
            for mask, a, b, right in zip(masks, one, other, self.case.expected, strict=True)
        )

    def replaces(self, distribution: str) -> bool:
        """Whether the reference replaces NaN among its inputs, leaves it out, or looks for it; or so infinities."""
        inputs = self.case.inputs
        tests = special_values.InputTests(inputs)
        with tests:
            self.reference.call(self.case.model, inputs)
        masks = special_values.only_computes_and_masks(self.reference.operators())
        return tests.of_nan if distribution == NANS else tests.of_infinities and masks

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
