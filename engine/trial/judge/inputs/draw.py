"""How the inputs of one slot are drawn, any number of times alike. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from engine.domain.errors import ProblemError
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import fresh_seed
from engine.trial.judge.inputs.perturbations import OWN, perturb
from engine.trial.judge.inputs.swaps import with_swaps

_TRIES = 4
"""Draws of one distribution of which the reference may fail on all. Then the problem's own inputs are taken."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Seeds of inputs and of what is changed in them."""

    seed: int
    perturbation_seed: int
    distribution: str = OWN
    partly: bool = False
    """Whether some of the inputs stay as the problem draws them."""
    swaps: tuple[int, ...] = ()
    """Seeds of the elements that were swapped since."""

    def inputs(self, reference: Reference, scalar_seed: int | None) -> tuple[object, ...]:
        """The arguments of ``forward``; ``scalar_seed``: that of other scalars, if they vary."""
        own = reference.inputs(self.seed)
        given = own if scalar_seed is None else reference.varied_scalars(own, scalar_seed)
        perturbed = perturb(
            given, self.distribution, self.perturbation_seed, partly=self.partly, compared=reference.compared_numbers(),
            ranges=reference.integer_ranges(),
        )  # fmt: skip
        return with_swaps(perturbed, self.swaps)


def draws(distribution: str, *, partly: bool) -> Iterator[Draw]:
    """Draws from fresh secret seeds, one after the other, for a reference that may fail on some: the last is its own inputs.

    ``partly``: in the first one some of the inputs stay as the problem draws them.
    """
    if partly:
        yield Draw(fresh_seed(), fresh_seed(), distribution, partly)
    for _ in range(_TRIES):
        yield Draw(fresh_seed(), fresh_seed(), distribution)
    yield Draw(fresh_seed(), fresh_seed())


def has_outputs(reference: Reference, model: nn.Module, inputs: tuple[object, ...]) -> bool:
    """Whether the reference computes outputs for these inputs."""
    try:
        reference.call(model, inputs)
    except ProblemError:
        return False
    return True
