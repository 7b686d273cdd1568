"""Guard regions around lent operands: what is read or written past an operand's end shows. Imports torch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from engine.trial.judge.runners.written_memory import WrittenMemory
from engine.trial.messages import Slot
from engine.trial.shared.arena import Arena
from engine.trial.shared.layout import POISONS, Layout

PATTERN = 0xA5


class Guards:
    """The guard regions of all slots, in the inputs and in every contestant's memory to write to."""

    def __init__(self, layout: Layout, inputs: Arena, written: WrittenMemory) -> None:
        self._inputs, self._written = inputs, written
        self._around_inputs = gaps(layout, layout.input_bytes, writable=False)
        self._around_outputs = gaps(layout, layout.output_bytes, writable=True)

    def fill(self) -> None:
        """Make all regions intact."""
        for memory in self._written:
            for gap in self._around_outputs:
                memory.raw(*gap).fill_(PATTERN)
        poison = secrets.choice(POISONS)
        for gap in self._around_inputs:
            self._inputs.raw(*gap).fill_(poison)

    def trespass(self, written: Sequence[Slot]) -> str:
        """A message on what was written outside the outputs (empty: nothing); ``written``: those of the call. Restores them.

        All regions are read, not only this slot's: a write far away must not be blamed on another kernel.
        """
        memory = self._written.now
        touched = [gap for gap in self._around_outputs if not bool((memory.raw(*gap) == PATTERN).all())]
        for gap in touched:
            memory.raw(*gap).fill_(PATTERN)
        if not touched:
            return ""
        for operand in written:
            end = operand.offset + operand.nbytes
            for gap in touched:
                if gap[0] == end:
                    return f"wrote past the end of its output {operand.name}"
                if gap[1] == operand.offset:
                    return f"wrote before the start of its output {operand.name}"
        return "wrote far outside its outputs"


def gaps(layout: Layout, size: int, *, writable: bool) -> list[tuple[int, int]]:
    """The guard regions of the arena of what is written or only read, of all slots: start and end in bytes."""
    within = [s for row in layout.slots for s in row if s.writable == writable]
    starts = [0, *(s.offset + s.nbytes for s in within)]
    ends = [*(s.offset for s in within), size]
    return list(zip(starts, ends, strict=True))
