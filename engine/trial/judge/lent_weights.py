"""The weights in a test bed's lent memory: copied there once for each model, and compared with it at once. Imports torch.

A DenseNet has 619 parameters and buffers. Comparing one after the other after every call takes longer than the call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.domain.model import Role
from engine.trial.messages import Slot
from engine.trial.shared.arena import Arena

_FEWEST = 8
"""Tensors from which on they are compared at once; of fewer no image is kept."""
_LARGEST = 256 << 20
"""Most bytes of that image."""


class LentWeights:
    """Parameters and buffers of all slots. Kernels may only read them."""

    def __init__(self, slots: Sequence[Sequence[Slot]], memory: Arena) -> None:
        self._rows = [[s for s in row if s.role in (Role.PARAMETER.value, Role.BUFFER.value)] for row in slots]
        self._memory = memory
        self._image: torch.Tensor | None = None
        """The bytes of a slot's weights, with the guard regions between them: all slots are laid out alike."""

    def copy(self, weights: Sequence[torch.Tensor]) -> None:
        """Copy a model's weights to every slot."""
        for row in self._rows:
            for operand, tensor in zip(row, weights, strict=True):
                self._memory.tensor(operand).copy_(tensor)
        start, end = self._span(0)
        is_kept = len(self._rows[0]) >= _FEWEST and end - start <= _LARGEST
        self._image = self._memory.raw(start, end).clone() if is_kept else None
        if self._image is not None:  # not what is there by now: a module that constructs its own can write to a GPU
            for operand, tensor in zip(self._rows[0], weights, strict=True):
                place = self._image.narrow(0, operand.offset - start, operand.nbytes)
                place.view(tensor.dtype).copy_(tensor.reshape(-1))

    def are_intact(self, slot: int) -> bool:
        """Whether the weights of a slot are certainly what was copied there. Where they are few, each has to be compared."""
        return self._image is not None and torch.equal(self._memory.raw(*self._span(slot)), self._image)

    def _span(self, slot: int) -> tuple[int, int]:
        row = self._rows[slot]
        return (row[0].offset, row[-1].offset + row[-1].nbytes) if row else (0, 0)

    def forget(self) -> None:
        """Free the image."""
        self._image = None
