"""Snapshots of a model's tensors. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.problem.values import equal_values


class ModelState:
    """A snapshot of all tensors of a model: restores the same objects in the same places with their values."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._values: list[tuple[Tensor, Tensor]] = []
        for module in model.modules():
            places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
            for place in places:
                if isinstance(module, torch.jit.ScriptModule) and place is not vars(module):
                    held = [t for _, t in place.items()]  # tables in C++ that nobody replaces tensors in
                else:
                    self._places.append((place, dict(place)))
                    held = list(place.values())
                self._values += [(t.detach(), t.detach().clone()) for t in held if isinstance(t, Tensor)]

    def changed(self) -> bool:
        """Whether a tensor was replaced, added, removed, or holds other values than before."""
        moved = any(_replaced_names(place, before) for place, before in self._places)
        return moved or not all(equal_values(tensor, copy) for tensor, copy in self._values)

    def restore(self) -> None:
        """Restore every tensor and its values; remove added ones."""
        for place, before in self._places:
            for name in _replaced_names(place, before):
                if name in before:
                    place[name] = before[name]
                else:
                    del place[name]
        for tensor, copy in self._values:
            tensor.copy_(copy)


def _replaced_names(place: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Names whose objects differ between the two tables, where one of the two is a tensor."""
    known = dict.fromkeys((*before, *place))
    pairs = ((name, before.get(name), place.get(name)) for name in known)
    return [name for name, old, new in pairs if old is not new and (isinstance(old, Tensor) or isinstance(new, Tensor))]
