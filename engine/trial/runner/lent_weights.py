"""A module's parameters and buffers beside the lent ones of the same name and shape. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.domain.model import Role
from engine.problem import names
from engine.problem.arguments.values import repeats_elements
from engine.problem.loading import plain_tensors
from engine.problem.operands import model_tensors
from engine.trial.messages import Slot
from engine.trial.runner.calls import LentOperands

WEIGHTS = (Role.PARAMETER, Role.BUFFER)


def take(model: nn.Module, lent: LentOperands, *roles: Role) -> None:
    """Copy lent operands of these roles into the model's tensors of the same name and shape."""
    with torch.no_grad():
        for operand, tensor in _matched(model, lent, roles):
            _fill(tensor, lent.inputs.tensor(operand))


def _fill(tensor: Tensor, values: Tensor) -> None:
    if repeats_elements(tensor):
        tensor.data = values.to(device=tensor.device, dtype=tensor.dtype, copy=True)
    else:
        tensor.copy_(values)


def move_plain(model: nn.Module, lent: LentOperands, device: torch.device) -> None:
    """Move plain tensors that match lent ones to the device, where the reference has its own: ``Module.to`` ignores them.

    A recurrent model that moves its state in ``forward`` would do so in every call, since the state is reset before each.
    """
    matched = {id(tensor) for _, tensor in _matched(model, lent, (Role.BUFFER,))}
    for module in model.modules():
        for name, tensor in plain_tensors(module):
            if id(tensor) in matched and tensor.device != device:
                vars(module)[name] = tensor.detach().to(device)


def taking(model: nn.Module, lent: LentOperands) -> list[Tensor]:
    """The model's tensors that take lent parameters and buffers."""
    return [tensor for _, tensor in _matched(model, lent, WEIGHTS)]


def unmatched(model: nn.Module, lent: LentOperands) -> tuple[str, ...]:
    """The lent parameters and buffers that the model has no tensor of the same name and shape for."""
    taken = {operand.name for operand, _ in _matched(model, lent, WEIGHTS)}
    return tuple(operand.name for operand in lent.operands(0, *WEIGHTS) if operand.name not in taken)


def different(model: nn.Module, lent: LentOperands) -> tuple[str, ...]:
    """The lent parameters and buffers of which the model has other values."""
    pairs = [(operand.name, tensor, lent.inputs.tensor(operand)) for operand, tensor in _matched(model, lent, WEIGHTS)]
    return tuple(name for name, own, given in pairs if not torch.equal(own.detach().to(given), given))


def resetting(model: nn.Module, lent: LentOperands, *, own: bool, parameters: bool = False) -> Callable[[], None]:
    """Resets what a call may have changed: buffers to the lent ones, other buffers, or all if ``own``, to their values now.

    It runs before every call, within the judge's clock on a CPU: what is matched is looked up here, once. ``parameters``: these
    too, also where they were changed by ``.data``, which torch does not count as a change.
    """
    matched = () if own else _matched(model, lent, WEIGHTS if parameters else (Role.BUFFER,))
    lent_values = [(tensor, lent.inputs.tensor(operand)) for operand, tensor in matched]
    ids = {id(tensor) for tensor, _ in lent_values}
    held = list(_held(model, parameters=parameters))
    places = [one for one in held if id(one[2]) in ids]
    kept = [
        _Kept(place, name, tensor, tensor.detach().clone(), None if parameters else tensor._version)
        for place, name, tensor in held
        if id(tensor) not in ids
    ]

    def reset() -> None:
        for place, name, tensor in places:
            place[name] = tensor
        with torch.no_grad():
            for tensor, values in lent_values:
                _fill(tensor, values)
            for one in kept:
                one.restore()

    return reset


@dataclass(slots=True)
class _Kept:
    """A tensor of a module's own, and its values."""

    place: dict[str, Any]
    name: str
    tensor: Tensor
    values: Tensor
    version: int | None
    """torch's count of changes; ``None`` restores the values in any case."""

    def restore(self) -> None:
        """Put the tensor back, with its values. One that was not written to is not copied."""
        self.place[self.name] = self.tensor
        if self.version is None:
            self.tensor.copy_(self.values)
        elif self.tensor._version != self.version:
            self.tensor.copy_(self.values)
            self.version = self.tensor._version


def _held(model: nn.Module, *, parameters: bool) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """A model's buffers and plain tensors, and its parameters if asked for, each with the table and name of its place."""
    for module in model.modules():
        tables: list[dict[str, Any]] = [vars(module)]
        if not isinstance(module, torch.jit.ScriptModule):
            tables += [module._buffers, *([module._parameters] if parameters else [])]
        for table in tables:
            for name, value in table.items():
                if isinstance(value, Tensor) and not value.is_inference():
                    yield table, name, value


def _matched(model: nn.Module, lent: LentOperands, roles: Collection[Role]) -> list[tuple[Slot, Tensor]]:
    """Lent operands of these roles, with the model's dense tensors of the same name and shape."""
    own = {names.identifier(name): tensor for name, _, tensor in model_tensors(model) if tensor.layout is torch.strided}
    # An operand's name is longer where another one has the same.
    pairs = [(one, own.get(one.name, own.get(one.name.rstrip("_")))) for one in lent.operands(0, *roles)]
    return [(operand, tensor) for operand, tensor in pairs if tensor is not None and _shape(tensor, operand) == operand.shape]


def _shape(tensor: Tensor, operand: Slot) -> tuple[int, ...]:
    """The tensor's shape; one that gets its memory in the first call gets it now, as ``operand`` has it."""
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        tensor.materialize(operand.shape)
    return tuple(tensor.shape)
