"""Snapshots of a model's tensors. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.domain.errors import ProblemError
from engine.problem.arguments.values import comparable, equal_values, is_dense, map_arguments, repeats_elements, storage
from engine.problem.torch_modes.versions import Versions

Arguments = tuple[object, ...]
Call = Callable[[Arguments], Sequence[Tensor]]

_APART = 1e-2
"""Outputs that differ by more than this share of the largest element do not differ by rounding alone."""


class ModelState:
    """A snapshot of all tensors of a model: restores the same objects in the same places with their values."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._values: list[_KeptTensor] = []
        self._parameters = {id(parameter) for parameter in model.parameters()}
        for module in model.modules():
            places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
            for place in places:
                if isinstance(module, torch.jit.ScriptModule) and place is not vars(module):
                    held = [t for _, t in place.items()]  # tables in C++ that nobody replaces tensors in
                else:
                    self._places.append((place, dict(place)))
                    held = list(place.values())
                self._values += [_KeptTensor(t) for t in held if isinstance(t, Tensor) and not repeats_elements(t)]

    def changed(self) -> bool:
        """Whether a tensor was replaced, added, removed, written to, or holds other values than before."""
        moved = any(_replaced_names(place, before) for place, before in self._places)
        return moved or any(one.changed() for one in self._values)

    def changed_parameters(self) -> bool:
        """Whether a parameter was replaced, written to, or holds other values than before."""
        tables = (table for table, _ in self._places)
        kept = {id(tensor) for table in tables for tensor in table.values() if isinstance(tensor, nn.Parameter)}
        mine = [one for one in self._values if id(one.tensor) in self._parameters]
        return any(id(one.tensor) not in kept or one.changed() for one in mine)

    def check_counters(self, file: str, inputs: Arguments, outputs: Sequence[Tensor], call: Call) -> None:
        """Raises ProblemError if the forward that returned ``outputs`` counts its calls, and the next ``call`` shows it.

        Tensors are restored between calls, and numbers are not: a kernel's process could not restore its own.
        """
        counted = [name for place, before in self._places for name in _changed_numbers(place, before)]
        if not counted:
            return
        self.restore()
        if any(map(_apart, outputs, call(map_arguments(lambda t: t.clone(), inputs)))):
            raise ProblemError(
                f"{file}: forward changes self.{counted[0]}, and two calls on the same inputs differ: no kernel can match it, "
                "remove the counter"
            )

    def restore(self) -> None:
        """Restore every tensor and its values; remove added ones."""
        for place, before in self._places:
            for name in _replaced_names(place, before):
                if name in before:
                    place[name] = before[name]
                else:
                    del place[name]
        for one in self._values:
            one.restore()


class _KeptTensor:
    """A tensor, its memory as it was, and a copy of its values."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._memory = tensor.detach()
        self._values = self._memory.clone()
        self._versions = Versions([self._memory])

    def changed(self) -> bool:
        now = self.tensor.detach() if self._has_moved() else self._memory
        return any(self._versions.written()) or not equal_values(now, self._values)

    def restore(self) -> None:
        if self._has_moved():
            self.tensor.data = self._memory
        self._memory.copy_(self._values)

    def _has_moved(self) -> bool:
        """Whether ``tensor.data`` was assigned to."""
        one, other = self.tensor, self._memory
        return is_dense(one) and is_dense(other) and storage(one) != storage(other) and one.numel() > 0


def _replaced_names(place: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Names whose objects differ between the two tables, where one of the two is a tensor."""
    known = dict.fromkeys((*before, *place))
    pairs = ((name, before.get(name), place.get(name)) for name in known)
    return [name for name, old, new in pairs if old is not new and (isinstance(old, Tensor) or isinstance(new, Tensor))]


def _changed_numbers(place: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Names of attributes that held another number before."""
    kept = [(name, before.get(name), value) for name, value in place.items()]
    return [name for name, old, new in kept if isinstance(new, int | float) and isinstance(old, int | float) and old != new]


def _apart(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return one.shape != other.shape
    if not (one.is_floating_point() or one.is_complex()):
        return not torch.equal(one, other)
    one, other = comparable(one), comparable(other)
    room = _APART * float(torch.nan_to_num(other.abs().float(), posinf=0.0).amax())
    return not torch.allclose(one, other, rtol=0.0, atol=room, equal_nan=True)
