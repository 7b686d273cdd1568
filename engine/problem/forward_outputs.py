"""What a forward returned, as tensors that share no memory, of the same shapes in every call. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.domain.errors import ProblemError
from engine.problem.arguments.values import (
    OutputLayout,
    contiguous,
    kind_without_strides,
    output_layout,
    output_tensors,
    storage,
    tensors,
)
from engine.problem.operands import model_tensors

_TO_DENSE = {"sparse": ".to_dense()", "nested": ".to_padded_tensor(0.0)", "quantized": ".dequantize()"}
"""What makes a dense tensor of one that ``kind_without_strides`` names."""


@dataclass(frozen=True, slots=True)
class LentOutputs:
    """Indices of outputs that were lent memory in a call: they change with it."""

    of_inputs: frozenset[int] = frozenset()
    of_model: frozenset[int] = frozenset()
    """Of a parameter or a buffer."""

    def with_more(self, of_inputs: Set[int], of_model: Set[int]) -> LentOutputs:
        """These, and those of another call."""
        return LentOutputs(self.of_inputs | of_inputs, self.of_model | of_model)


class ForwardOutputs:
    """The outputs of one reference's calls."""

    def __init__(self, file: str) -> None:
        """``file``: the reference's, for messages."""
        self._file = file
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self.lent = LentOutputs()
        self.layout: OutputLayout = 0
        """The layout of what a call returned; 0 before the first."""

    def collect(
        self, returned: object, model: nn.Module, given: tuple[object, ...], device: torch.device, rows: int | None
    ) -> tuple[Tensor, ...]:
        """The tensors in ``returned``: in order, on ``device``, contiguous, sharing no memory with each other or the arguments.

        ``rows``: how many rows the arguments had, if not all of them. Raises ProblemError for outputs that memory cannot be
        allocated for in advance.
        """
        found = tuple(output_tensors(returned, device))
        if not found:
            raise ProblemError(
                f"{self._file}: forward returns no tensor: return what it computes, also if it writes it to an input"
            )
        if not any(tensor.numel() for tensor in found):
            raise ProblemError(f"{self._file}: forward's outputs have no elements: choose sizes above zero")
        self._check(found, rows)
        self.layout = self.layout or output_layout(returned)
        weights = {storage(t) for _, _, t in model_tensors(model)}
        shared = {storage(t) for t in tensors(list(given))} | weights
        places = [storage(tensor) for tensor in found]
        self.lent = self.lent.with_more(
            {index for index, place in enumerate(places) if place in shared - weights},
            {index for index, place in enumerate(places) if place in weights},
        )
        outputs = []
        for tensor in found:
            output = contiguous(tensor.to(device))
            outputs.append(output.clone() if storage(output) in shared else output)
            shared.add(storage(outputs[-1]))
        return tuple(outputs)

    def _check(self, outputs: tuple[Tensor, ...], rows: int | None) -> None:
        for place, tensor in enumerate(outputs, 1):
            if kind := kind_without_strides(tensor):
                which = f" as output {place} of {len(outputs)}" if len(outputs) > 1 else ""
                raise ProblemError(
                    f"{self._file}: forward returns a {kind} tensor{which}: only dense tensors are supported, so return "
                    f"{_TO_DENSE[kind]} of it"
                )
        shapes = tuple(tuple(tensor.shape) for tensor in outputs)
        if rows is not None and self._shapes is not None:
            shapes = tuple(
                (whole[0], *shape[1:]) if shape[:1] == (rows,) else shape
                for whole, shape in zip(self._shapes, shapes, strict=True)
            )
        if self._shapes is not None and self._shapes != shapes:
            changed = _changed(self._shapes, shapes)
            raise ProblemError(
                f"{self._file}: the shapes of forward's outputs depend on its inputs' values ({changed}): only fixed "
                "shapes are supported, so return a mask, or pad to the largest size"
            )
        self._shapes = shapes


def _changed(before: Sequence[tuple[int, ...]], now: Sequence[tuple[int, ...]]) -> str:
    """How the shapes of two calls differ: by the first that does, or by their number."""
    if len(before) != len(now):
        return f"{len(before)} tensors, then {len(now)}"
    place, pair = next((i, pair) for i, pair in enumerate(zip(before, now, strict=True), 1) if pair[0] != pair[1])
    which = f"output {place} of {len(now)}: " if len(now) > 1 else ""
    return f"{which}{pair[0]}, then {pair[1]}"
