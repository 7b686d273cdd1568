"""What one traced forward pass says about a problem. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from engine.domain.model import Role
from engine.problem.allocation_counter import ForwardMemory
from engine.problem.bytes_read import ReadCounter
from engine.problem.operation_count import RECURRENT, OperationCounter


@dataclass(frozen=True, slots=True)
class ForwardTrace:
    """One forward pass, run or on fake tensors: everything that a signature needs."""

    state: list[tuple[str, Role, Tensor]]
    inputs: tuple[object, ...]
    outputs: tuple[Tensor, ...]
    operations: OperationCounter
    memory: ForwardMemory
    read: ReadCounter

    def bytes_moved(self, operands: Iterable[tuple[str, Role, Tensor]]) -> int:
        """As in ``Signature``; 0 for recurrences, of which one step is traced."""
        if RECURRENT in self.operations.families:
            return 0
        return sum(t.nbytes if role is Role.OUTPUT else self.read.bytes_of(t) for _, role, t in operands)
