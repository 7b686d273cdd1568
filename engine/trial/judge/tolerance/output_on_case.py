"""The reference on one case, for each of several outputs by itself. Imports torch.

A policy judges every output with limits of its own, and asks the reference before it refuses one. What it asked for one output
is known for the others: errors come by output, and the reference is not called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.domain.model import PrecisionClass
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.outputs.undecided import SeenRange


class _OnCase(Protocol):
    """A ``policy.CaseReference`` of all outputs. ``dtype``: the type of sums, or in whose units inputs move."""

    def errors(self, wanted: Sequence[PrecisionClass]) -> Mapping[str, RelativeErrors]: ...
    def plain_sums(self, dtype: torch.dtype | None = None) -> Iterator[RelativeErrors]: ...
    def tf32_sums(self) -> RelativeErrors | None: ...
    def rounded_inputs(self, dtype: torch.dtype | None = None) -> RelativeErrors: ...
    def rounded_results(self, dtype: torch.dtype | None = None) -> RelativeErrors: ...
    def rounded_functions(self, dtype: torch.dtype | None = None) -> RelativeErrors: ...
    def undecided(self, most: float) -> Sequence[SeenRange | None]: ...
    def equivalent(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]: ...
    def defined(self, masks: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool: ...
    def replaces(self, distribution: str) -> bool: ...
    def nearest_of_output(self, index: int, output: torch.Tensor, limit: float, most: float) -> torch.Tensor | None: ...
    def own_outputs(self) -> Sequence[torch.Tensor]: ...
    @property
    def selects(self) -> bool: ...
    @property
    def convolves(self) -> bool: ...
    def ties_decide(self) -> Sequence[bool]: ...


@dataclass(slots=True)
class _Replayed:
    """What an iterator gives, for any number of readers."""

    source: Iterator[RelativeErrors]
    known: list[RelativeErrors] = field(default_factory=list)

    def __iter__(self) -> Iterator[RelativeErrors]:
        place = 0
        while place < len(self.known) or self._goes_on():
            yield self.known[place]
            place += 1

    def _goes_on(self) -> bool:
        found = next(self.source, None)
        if found is not None:
            self.known.append(found)
        return found is not None


@dataclass(slots=True)
class _Draws:
    """What a random answer was in each draw, by the type of its units."""

    source: Callable[[torch.dtype], RelativeErrors]
    known: dict[torch.dtype, list[RelativeErrors]] = field(default_factory=dict)

    def drawn(self, dtype: torch.dtype, draw: int) -> RelativeErrors:
        found = self.known.setdefault(dtype, [])
        while draw >= len(found):
            found.append(self.source(dtype))
        return found[draw]


class SharedAnswers:
    """What the reference has answered on one case, for all outputs."""

    def __init__(self, asked: _OnCase, outputs: Sequence[torch.Tensor]) -> None:
        self.asked, self.outputs = asked, outputs
        self.tied: Sequence[bool] | None = None
        self.own: Sequence[torch.Tensor] | None = None
        self._errors: dict[tuple[PrecisionClass, ...], Mapping[str, RelativeErrors]] = {}
        self._plain: dict[torch.dtype, _Replayed] = {}
        self._rounded_inputs = _Draws(asked.rounded_inputs)
        self._rounded_results = _Draws(asked.rounded_results)
        self._rounded_functions: dict[torch.dtype, RelativeErrors] = {}
        self._tf32: list[RelativeErrors | None] = []
        self._undecided: dict[float, Sequence[SeenRange | None]] = {}
        self._equivalent: Sequence[torch.Tensor | None] | None = None

    def errors(self, wanted: Sequence[PrecisionClass]) -> Mapping[str, RelativeErrors]:
        if (key := tuple(wanted)) not in self._errors:
            self._errors[key] = self.asked.errors(wanted)
        return self._errors[key]

    def plain_sums(self, dtype: torch.dtype) -> Iterator[RelativeErrors]:
        if dtype not in self._plain:
            self._plain[dtype] = _Replayed(self.asked.plain_sums(dtype))
        return iter(self._plain[dtype])

    def tf32_sums(self) -> RelativeErrors | None:
        if not self._tf32:
            self._tf32.append(self.asked.tf32_sums())
        return self._tf32[0]

    def rounded_inputs(self, dtype: torch.dtype, draw: int) -> RelativeErrors:
        return self._rounded_inputs.drawn(dtype, draw)

    def rounded_results(self, dtype: torch.dtype, draw: int) -> RelativeErrors:
        return self._rounded_results.drawn(dtype, draw)

    def rounded_functions(self, dtype: torch.dtype) -> RelativeErrors:
        if dtype not in self._rounded_functions:
            self._rounded_functions[dtype] = self.asked.rounded_functions(dtype)
        return self._rounded_functions[dtype]

    def undecided(self, most: float) -> Sequence[SeenRange | None]:
        if most not in self._undecided:
            self._undecided[most] = self.asked.undecided(most)
        return self._undecided[most]

    def equivalent(self) -> Sequence[torch.Tensor | None]:
        if self._equivalent is None:
            self._equivalent = self.asked.equivalent(self.outputs)
        return self._equivalent


@dataclass(slots=True)
class OutputOnCase:
    """The reference on one case for one output: a ``policy.CaseReference``."""

    shared: SharedAnswers
    index: int
    dtype: torch.dtype
    draws: int = 0
    further_draws: int = 0

    def errors(self, wanted: Sequence[PrecisionClass]) -> dict[str, RelativeErrors]:
        """As for all outputs."""
        return {name: errors.for_output(self.index) for name, errors in self.shared.errors(wanted).items()}

    def plain_sums(self) -> Iterator[RelativeErrors]:
        """As for all outputs, with sums in this one's type."""
        return (errors.for_output(self.index) for errors in self.shared.plain_sums(self.dtype))

    def tf32_sums(self) -> RelativeErrors | None:
        """As for all outputs."""
        found = self.shared.tf32_sums()
        return None if found is None else found.for_output(self.index)

    def rounded_inputs(self) -> RelativeErrors:
        """As for all outputs, in units of this one's type; another draw at every call."""
        self.draws += 1
        return self.shared.rounded_inputs(self.dtype, self.draws - 1).for_output(self.index)

    def rounded_results(self) -> RelativeErrors:
        """As for all outputs, in the same way."""
        self.further_draws += 1
        return self.shared.rounded_results(self.dtype, self.further_draws - 1).for_output(self.index)

    def rounded_functions(self) -> RelativeErrors:
        """As for all outputs, with this one's type."""
        return self.shared.rounded_functions(self.dtype).for_output(self.index)

    def undecided(self, most: float) -> list[SeenRange | None]:
        """As for all outputs."""
        return [self.shared.undecided(most)[self.index]]

    def own_outputs(self) -> list[torch.Tensor]:
        """As for all outputs."""
        if self.shared.own is None:
            self.shared.own = self.shared.asked.own_outputs()
        return [self.shared.own[self.index]]

    @property
    def selects(self) -> bool:
        """As for all outputs."""
        return self.shared.asked.selects

    @property
    def convolves(self) -> bool:
        """As for all outputs."""
        return self.shared.asked.convolves

    def ties_decide(self) -> list[bool]:
        """As for all outputs."""
        if self.shared.tied is None:
            self.shared.tied = self.shared.asked.ties_decide()
        return [self.shared.tied[self.index]]

    def nearest_seen(self, outputs: Sequence[torch.Tensor], limit: float, most: float) -> list[torch.Tensor] | None:
        """As for a single output: ``outputs`` is this one."""
        found = self.shared.asked.nearest_of_output(self.index, outputs[0], limit, most)
        return None if found is None else [found]

    def equivalent(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """As for all outputs: ``outputs`` is one of them."""
        return [self.shared.equivalent()[self.index]]

    def defined(self, masks: Sequence[torch.Tensor], _: Sequence[torch.Tensor]) -> bool:
        """As for all outputs: the masks of the others are empty."""
        (mine,) = masks
        others = [torch.zeros(output.numel(), dtype=torch.bool, device=output.device) for output in self.shared.outputs]
        return self.shared.asked.defined(
            [mine if i == self.index else other for i, other in enumerate(others)], self.shared.outputs
        )

    def replaces(self, distribution: str) -> bool:
        """As for all outputs."""
        return self.shared.asked.replaces(distribution)
