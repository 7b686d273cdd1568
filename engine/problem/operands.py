"""Operands and constants of a signature: their names, roles and order. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn

from engine.domain.model import Number, Operand, Role
from engine.problem import names
from engine.problem.arguments.argument_objects import is_object, named_parts
from engine.problem.arguments.values import tensors
from engine.problem.loading import plain_tensors

Row = tuple[str, Role, Tensor]


def model_tensors(model: nn.Module) -> list[Row]:
    """Parameters, then buffers, then tensors kept as plain attributes, each in the model's order."""
    rows: list[Row] = [(n, Role.PARAMETER, p) for n, p in model.named_parameters()]
    rows += [(n, Role.BUFFER, b) for n, b in model.named_buffers()]
    for prefix, module in model.named_modules():
        rows += [(f"{prefix}.{n}".strip("."), Role.BUFFER, t) for n, t in plain_tensors(module)]
    return rows


def argument_rows(labels: Sequence[str], arguments: Sequence[object]) -> tuple[list[Row], dict[str, Number], bool]:
    """(the tensors of ``forward``'s arguments, its numbers by name, whether every argument is a tensor or a number)."""
    rows: list[Row] = []
    scalars: dict[str, Number] = {}
    plain = True
    for label, argument in zip(labels, arguments, strict=True):
        match argument:
            case bool() | int() | float():
                scalars[label] = argument
            case _:
                plain = plain and isinstance(argument, Tensor)
                rows += [(name, Role.INPUT, tensor) for name, tensor in _labelled(label, argument)]
    return rows, scalars, plain


def _labelled(label: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an argument: of an object with their attributes' names, of lists and dictionaries numbered."""
    if isinstance(value, Tensor):
        yield label, value
    elif is_object(value):
        for name, inner in named_parts(value).items():
            yield from _labelled(f"{label}_{name}", inner)
    else:
        yield from ((f"{label}{i}", tensor) for i, tensor in enumerate(tensors(value)))


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


def named_operands(rows: list[Row], constants: dict[str, Number]) -> tuple[Operand, ...]:
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
