"""What one traced forward pass says about a problem. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from engine.domain.model import Role
from engine.problem.allocation_counter import ForwardMemory
from engine.problem.bytes_read import ReadCounter
from engine.problem.operation_count import OperationCounter


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
        """As in ``Signature``. An output that is a view of an operand is a copy of it for a kernel."""
        rows = list(operands)
        for output in self.outputs:
            self.read.count(output)
        found = sum(t.nbytes if role is Role.OUTPUT else self.read.bytes_of(t) for _, role, t in rows)
        return found if found < sum(t.nbytes for _, _, t in rows) else 0
