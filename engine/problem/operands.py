"""Operands and constants of a signature: their names, roles and order. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn

from engine.domain.model import Number, Operand, Role
from engine.problem import names
from engine.problem.loading import plain_tensors


def model_tensors(model: nn.Module) -> list[tuple[str, Role, Tensor]]:
    """Parameters, then buffers, then tensors kept as plain attributes, each in the model's order."""
    rows: list[tuple[str, Role, Tensor]] = [(n, Role.PARAMETER, p) for n, p in model.named_parameters()]
    rows += [(n, Role.BUFFER, b) for n, b in model.named_buffers()]
    for prefix, module in model.named_modules():
        rows += [(f"{prefix}.{n}".strip("."), Role.BUFFER, t) for n, t in plain_tensors(module)]
    return rows


def named_constants(*tables: dict[str, object] | dict[str, Number]) -> dict[str, Number]:
    """Every finite number of the tables under an upper-case name, sequences as NAME_0, NAME_1 …; earlier tables win.

    A later number whose name is taken by a different value gets ``_`` appended.
    """
    constants: dict[str, Number] = {}
    for table in tables:
        for label, value in table.items():
            for name, number in _numbers_in(label, value):
                free = names.macro(name)
                while constants.get(free, number) != number:
                    free += "_"
                constants.setdefault(free, number)
    return constants


def _numbers_in(label: str, value: object) -> Iterable[tuple[str, Number]]:
    match value:
        case bool():
            yield label, int(value)
        case int() | float() if math.isfinite(value):
            yield label, value
        case list() | tuple():
            for i, inner in enumerate(value):
                if isinstance(inner, int | float):
                    yield from _numbers_in(f"{label}_{i}", inner)


def named_operands(rows: list[tuple[str, Role, Tensor]], constants: dict[str, Number]) -> tuple[Operand, ...]:
    """Operands with valid C names that are unique case-insensitively; outputs keep theirs."""
    taken = {label.upper() for label, role, _ in rows if role is Role.OUTPUT}
    operands = []
    for label, role, tensor in rows:
        name = names.identifier(label)
        if role is not Role.OUTPUT:
            name = names.unused_name(name, lambda n: n.upper() in taken or n in constants)
            taken.add(name.upper())
        operands.append(Operand(name, role, tuple(int(s) for s in tensor.shape), str(tensor.dtype).split(".")[-1]))
    return tuple(operands)
