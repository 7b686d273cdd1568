"""The layout of operands in lent memory: offsets, guard regions, slots. Pure arithmetic.

Two arenas are lent: one with everything that the kernel only reads (mapped read-only for the runner), one with everything that
it writes. Guard regions surround each operand: NaN or large numbers around inputs, which a read past an end carries into the
result, and a known pattern around outputs, which a write past an end changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.domain.errors import ProblemError
from engine.domain.model import Operand, Role
from engine.trial.messages import Slot

ALIGNMENT = 512
GUARD = 4096
"""Guard bytes before and after each operand, and after a workspace."""
NAN_BYTES = 0xFF
"""All bits set: NaN in every floating type, −1 in every signed one."""
POISONS = (NAN_BYTES, 0x5B)
"""Fill bytes of outputs before a call, of the guard regions around inputs, and of workspaces, chosen at random: NaN or a large
finite number. Either can be the right output, and a maximum ignores a NaN that was read past the end."""
GATE_BYTES = 256
GATE_OPENED = Slot("opened", "gate", (1,), "int32", 0, 4)
GATE_DONE = Slot("done", "gate", (1,), "int32", 128, 4)
"""The two words of a gate: the judge writes the number of a call to the first, the runner to the second."""

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_INPUT_BYTES = DTYPE_BYTES | dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), 1)
"""With the types that a kernel may read but not return."""


def nbytes(operand: Operand) -> int:
    """Bytes of a contiguous operand. Raises ProblemError for a type that kernels cannot be given."""
    sizes = DTYPE_BYTES if operand.role is Role.OUTPUT else _INPUT_BYTES
    if operand.dtype not in sizes:
        known = ", ".join(sizes)
        raise ProblemError(
            f"{operand.role} {operand.name} is a tensor of {operand.dtype}, which is not supported: only {known}"
        )
    return math.prod(operand.shape) * sizes[operand.dtype]


def operand_bytes(operands: Sequence[Operand]) -> int:
    """Bytes that a kernel must move: every operand read or written once."""
    return sum(nbytes(o) for o in operands)


@dataclass(frozen=True, slots=True)
class Layout:
    """The slots of all operands, and the sizes of the two arenas in bytes."""

    slots: tuple[tuple[Slot, ...], ...]
    input_bytes: int
    output_bytes: int


def plan_layout(operands: tuple[Operand, ...], slots: int, *, changed_inputs: Collection[int] = ()) -> Layout:
    """Lay out ``slots`` copies of all operands; inputs, parameters and buffers in one arena, outputs in the other.

    Inputs that the reference changes (``changed_inputs``, counted among the inputs) lie with the outputs.
    """
    inputs = [o for o in operands if o.role is Role.INPUT]
    written = [o for o in operands if o.role is Role.OUTPUT] + [inputs[index] for index in changed_inputs]
    ends = {True: 0, False: 0}
    placed: list[tuple[Slot, ...]] = []
    for _ in range(slots):
        row: list[Slot] = []
        for operand in operands:
            writes = operand in written
            start = _aligned(ends[writes] + GUARD)
            size = nbytes(operand)
            row.append(Slot(operand.name, operand.role.value, operand.shape, operand.dtype, start, size, writes))
            ends[writes] = start + size + GUARD
        placed.append(tuple(row))
    return Layout(tuple(placed), _aligned(ends[False] or ALIGNMENT), _aligned(ends[True] or ALIGNMENT))


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
