"""What a policy judges together, and where its integers may differ from the expected ones. Imports torch.

Indices that select an equal element (``ties``) may differ, and integers that a few units in the last place of the inputs
decide, within the range of what they make of them (``undecided``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.outputs.blocks import as_numbers
from engine.trial.judge.outputs.comparison import Errors, compare, compared_exactly
from engine.trial.judge.outputs.undecided import as_close_as
from engine.trial.judge.tolerance.policy import CaseReference

MOST_UNDECIDED = 0.01
"""The share of the elements of an output on the problem's own inputs that rounding may decide. On perturbed inputs all may be:
sums near zero, or of numbers far from it, say little of a kernel, and it is checked on the problem's own too. Where a reference
selects elements, and rounding decides more than this on perturbed inputs, its integers are not judged there: sigmoids of large
scores are all one, and which of them are chosen is an accident."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What is judged together: outputs of one call, the expected ones, and the reference, if it may be consulted."""

    outputs: Sequence[torch.Tensor]
    expected: Sequence[torch.Tensor]
    names: Sequence[str]
    distribution: str
    reference: CaseReference | None

    @property
    def own(self) -> bool:
        """Whether the inputs are the problem's own."""
        return self.distribution == OWN

    def compared(self, undecided: Sequence[torch.Tensor | None] = ()) -> Errors:
        """``compare``."""
        return compare(self.outputs, self.expected, self.names, undecided)

    def with_undefined(self) -> Judged:
        """With NaN wherever the reference's output is NaN: perturbed inputs leave the domain of a logarithm or a root."""
        pairs = zip(self.outputs, self.expected, strict=True)
        outputs = [o if compared_exactly(o) else torch.where(right.isnan().to(o.device), math.nan, o) for o, right in pairs]
        return replace(self, outputs=outputs)

    def alone(self, index: int, reference: CaseReference | None) -> Judged:
        """One of several outputs by itself."""
        output, right, name = self.outputs[index], self.expected[index], self.names[index]
        return Judged([output], [right], [name], self.distribution, reference)


def compare_with_ties(judged: Judged, reference: CaseReference) -> Errors:
    """``compare``, where indices of equal elements, and up to a share of integers that rounding decides, may differ."""
    outputs, most = judged.outputs, MOST_UNDECIDED if judged.own else 1.0
    tied = reference.equivalent(outputs)
    errors = judged.compared(tied)
    if not errors.flaw:
        return errors
    masks: list[torch.Tensor | None] = []
    for output, same, seen in zip(outputs, tied, reference.undecided(most), strict=True):
        mask = None if seen is None else seen.holds(output, ends_only=same is not None)
        if mask is not None and seen is not None and not judged.own and seen.share > MOST_UNDECIDED and reference.selects:
            mask = torch.ones_like(mask)
        masks.append(mask if same is None or mask is None else same | mask)
    errors = judged.compared(masks)
    if errors.flaw:
        own = reference.own_outputs()
        masks = [_same_as(own[at], judged.outputs[at], mask) for at, mask in enumerate(masks)]
        masks = _with_own_errors(judged, reference, own, masks)
        errors = judged.compared(masks)
    if errors.flaw and not judged.own:
        decided = reference.ties_decide()
        masks = [_everywhere(outputs[at]) if decided[at] else mask for at, mask in enumerate(masks)]
        return judged.compared(masks) if any(decided) else errors
    return errors


def _everywhere(output: torch.Tensor) -> torch.Tensor | None:
    return torch.ones_like(output, dtype=torch.bool) if compared_exactly(output) else None


def _same_as(own: torch.Tensor, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """``mask``, with what the reference's own arithmetic gives too. Where it is of half precision, more may differ from float64
    than rounding may decide: of a router of bfloat16 with 64 experts, 31 of 60 of the reference's own outputs were refused."""
    return None if mask is None or own.shape != output.shape else mask | (as_numbers(own) == as_numbers(output))


def _with_own_errors(
    judged: Judged, reference: CaseReference, own: Sequence[torch.Tensor], masks: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """``masks``, with integers that are as close as those of the reference's own arithmetic.

    Not with indices, which have no distance, nor with booleans: any two would be as close.
    """
    found = list(masks)
    codes = [at for at, mask in enumerate(masks) if mask is not None and judged.outputs[at].dtype != torch.bool]
    if not codes or reference.selects:
        return found
    for at in codes:
        close = as_close_as(judged.outputs[at], judged.expected[at], own[at])
        found[at] = found[at] if close is None else close
    return found
