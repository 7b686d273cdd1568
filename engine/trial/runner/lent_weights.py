"""A module's parameters and buffers beside the lent ones of the same name and shape. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from engine.domain.model import Role
from engine.trial.messages import Slot
from engine.trial.runner.calls import LentOperands

WEIGHTS = (Role.PARAMETER, Role.BUFFER)


def take(model: nn.Module, lent: LentOperands, *roles: Role) -> None:
    """Copy lent operands of these roles into the model's tensors of the same name and shape."""
    with torch.no_grad():
        for operand, tensor in _matched(model, lent, roles):
            tensor.copy_(lent.inputs.tensor(operand))


def unmatched(model: nn.Module, lent: LentOperands) -> tuple[str, ...]:
    """The lent parameters and buffers that the model has no tensor of the same name and shape for."""
    taken = {operand.name for operand, _ in _matched(model, lent, WEIGHTS)}
    return tuple(operand.name for operand in lent.operands(0, *WEIGHTS) if operand.name not in taken)


def different(model: nn.Module, lent: LentOperands) -> tuple[str, ...]:
    """The lent parameters and buffers of which the model has other values."""
    pairs = [(operand.name, tensor, lent.inputs.tensor(operand)) for operand, tensor in _matched(model, lent, WEIGHTS)]
    return tuple(name for name, own, given in pairs if not torch.equal(own.detach().to(given.dtype), given))


def resetting(model: nn.Module, lent: LentOperands, *, own: bool) -> Callable[[], None]:
    """Resets the buffers that the reference has too: to the lent ones, or to the values that they have now."""
    if not own:
        return partial(take, model, lent, Role.BUFFER)
    initial = [(tensor, tensor.detach().clone()) for _, tensor in _matched(model, lent, (Role.BUFFER,))]

    def reset() -> None:
        with torch.no_grad():
            for tensor, values in initial:
                tensor.copy_(values)

    return reset


def _matched(model: nn.Module, lent: LentOperands, roles: tuple[Role, ...]) -> list[tuple[Slot, Tensor]]:
    own = {name.replace(".", "_"): tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    pairs = [(operand, own.get(operand.name)) for operand in lent.operands(0, *roles)]
    return [(operand, tensor) for operand, tensor in pairs if tensor is not None and tuple(tensor.shape) == operand.shape]
