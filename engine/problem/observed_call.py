"""Observes the side effects of a forward. Imports torch."""

from __future__ import annotations

import torch
from torch import nn

from engine.problem.arguments.model_state import ModelState
from engine.problem.arguments.values import equal_values, tensors
from engine.problem.side_effects import SideEffects
from engine.problem.torch_modes.randomness import fingerprint
from engine.problem.torch_modes.versions import Versions


class ObservedCall:
    """What a model, its arguments and the random generators were before a call."""

    def __init__(self, model: nn.Module, inputs: tuple[object, ...], given: tuple[object, ...], device: torch.device) -> None:
        """``given``: copies of ``inputs``, which the model is called on."""
        self.state = ModelState(model)
        self._inputs = inputs
        self._given = given
        self._device = device
        self._versions = Versions(tensors(list(given)))
        self._random = fingerprint(device)

    def effects(self) -> SideEffects:
        """The side effects of the call that was made since."""
        return SideEffects(
            changed_inputs=self._changed_inputs(),
            changes_state=self.state.changed(),
            changes_parameters=self.state.changed_parameters(),
            draws_random=fingerprint(self._device) != self._random,
        )

    def _changed_inputs(self) -> frozenset[int]:
        """Those written to, and those replaced in a list, a dictionary or an object."""
        before, after = list(tensors(list(self._inputs))), list(tensors(list(self._given)))
        if len(before) != len(after):
            return frozenset(range(len(before)))
        written = self._versions.written()
        return frozenset(
            index for index, pair in enumerate(zip(before, after, strict=True)) if written[index] or not equal_values(*pair)
        )
