"""What every launcher shares: the lent operands of each slot, the timer's type, and the checks of a module's outputs.

Imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from engine.domain.model import Role
from engine.trial.messages import ClaimedTimes, Fault, RunKernel, Slot
from engine.trial.shared.arena import Borrowed, torch_dtype

_ABI = (Role.INPUT, Role.PARAMETER, Role.BUFFER, Role.OUTPUT)


class Launcher(Protocol):
    """One loaded kernel."""

    def call(self, order: RunKernel) -> ClaimedTimes | Fault: ...

    def plain_call(self) -> Callable[[int], float] | None:
        """Calls the kernel once on a slot and returns the microseconds, in a few steps; ``None`` where more is needed."""


@dataclass(frozen=True, slots=True)
class LentOperands:
    """The operands of one runner, slot by slot, and their memory."""

    slots: Sequence[Sequence[Slot]]
    inputs: Borrowed
    outputs: Borrowed

    def memory(self, slot: Slot) -> Borrowed:
        return self.outputs if slot.writable else self.inputs

    def operands(self, slot: int, *roles: Role) -> list[Slot]:
        wanted = [role.value for role in roles]
        return [operand for operand in self.slots[slot] if operand.role in wanted]

    def tensors(self, slot: int, *roles: Role) -> list[torch.Tensor]:
        return [self.memory(operand).tensor(operand) for operand in self.operands(slot, *roles)]

    def pointers(self, slot: int) -> dict[str, int]:
        return {operand.name: self.memory(operand).pointer(operand) for operand in self.operands(slot, *_ABI)}


Addresses = Callable[[], tuple[int, ...]]


class Timed(Protocol):
    """Runs work once, as the order says, and times it. ``outputs`` gives the addresses of a module's outputs after the work."""

    def __call__(self, work: Callable[[], Any], order: RunKernel, outputs: Addresses = ...) -> ClaimedTimes | Fault: ...


def timed_plainly(works: Sequence[Callable[[], Any]]) -> Callable[[int], float]:
    """Does a slot's work and returns the microseconds that it took."""
    now = time.perf_counter_ns

    def timed(slot: int) -> float:
        work = works[slot]
        start = now()
        work()
        return (now() - start) / 1e3

    return timed


Each = TypeVar("Each")


def rotated(each: Sequence[Each], order: RunKernel) -> list[Each]:
    """What the calls of an order use, one after the other; ``each`` has one for every slot."""
    return [each[(order.slot + call) % len(each)] for call in range(order.calls)]


def no_outputs() -> tuple[int, ...]:
    """The outputs are in lent memory."""
    return ()


Send = Callable[..., None]
"""Sends a message to the judge, with descriptors."""


class LauncherError(Exception):
    """The artefact cannot be loaded or bound: a failure of the kernel."""


class OutputError(Exception):
    """A module returned something that is not a plain tensor of the agreed shape and type."""


def checked_output(value: Any, operand: Slot, device: str) -> torch.Tensor:
    """``value`` if it is a plain, dense tensor of the operand's shape, type and device. Raises OutputError."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise OutputError(f"output {operand.name} is a {type(value).__name__}, not a plain tensor")
    if value.device.type != torch.device(device).type:
        raise OutputError(f"output {operand.name} is on {value.device}, not on {device}")
    if tuple(value.shape) != operand.shape:
        raise OutputError(f"output {operand.name} has shape {tuple(value.shape)} instead of {operand.shape}")
    if value.dtype != torch_dtype(operand):
        raise OutputError(f"output {operand.name} is {value.dtype} instead of {torch_dtype(operand)}")
    if value.layout != torch.strided:
        raise OutputError(f"output {operand.name} is not dense")
    plain: torch.Tensor = value.detach()
    return plain
