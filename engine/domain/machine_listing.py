"""The instructions of a kernel's machine code, as a disassembler lists them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

BARS = 3
"""Loops around an instruction that a listing draws a bar for."""


@dataclass(frozen=True, slots=True)
class ListedInstruction:
    """One instruction. ``line`` is the line of the kernel's code that it came from; 0 where unknown."""

    function: str
    address: int
    text: str
    line: int
    samples: int = 0
    depth: int = 0
    """The number of loops around it in the machine code."""
    target: int | None = None
    """The address to which it may branch, where the text says it."""


@dataclass(frozen=True, slots=True)
class MachineListing:
    """The instructions of a kernel in order."""

    instructions: tuple[ListedInstruction, ...]
    tool: str
    samples: int = 0
    """Those of the program counter in all, if it was sampled."""

    @property
    def has_lines(self) -> bool:
        return any(one.line for one in self.instructions)
