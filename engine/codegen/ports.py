"""The files of a naive port: one for all shapes that need the same steps, with sizes as compile-time expressions of the shape.

Groups the texts of the shapes, writes the guards that reject other shapes, and defines the numbers that differ. The texts come
from ``naive`` and ``triton_naive``, with ``GUARDS`` in place of the guards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.codegen.shape_cases import ShapeCases, Values, differing, merged, plan_expression, skeleton
from engine.domain.model import Number, Operand, Signature
from engine.problem import header, names
from engine.problem.graph_ir import Unsupported

GUARDS = "<guards>"
"""The line of a text where its guards belong."""
MESSAGE = "scaffolded for other shapes"

Definitions = Mapping[str, Values]
"""Numbers that differ from shape to shape, by the name that stands for them in the text."""
Finish = Callable[["PortText"], list[str]]
"""Writes the guards and the definitions of a text into it."""


@dataclass(frozen=True, slots=True)
class Port:
    """A file, and the places of the shapes that it is for."""

    text: str
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PortText:
    """A text for several shapes before its guards and definitions are written."""

    lines: list[str]
    cases: ShapeCases
    deciding: tuple[str, ...]
    defined: Definitions


def ports_of(
    texts: Sequence[list[str]], signatures: Sequence[Signature], mark: str, finish: Finish
) -> list[Port] | Unsupported:
    """One file for all texts that differ in numbers only. ``mark`` begins a comment."""
    groups: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        groups.setdefault(skeleton(text), []).append(place)
    found: list[Port] = []
    for places in groups.values():
        made = _joined([texts[place] for place in places], [signatures[place] for place in places], mark)
        if isinstance(made, Unsupported):
            return made
        found.append(Port("\n".join(finish(made)) + "\n", tuple(places)))
    return found


def _joined(texts: Sequence[Sequence[str]], signatures: Sequence[Signature], mark: str) -> PortText | Unsupported:
    launched = any(line.startswith(f"{mark} @launch") for line in texts[0])
    cases = _cases(signatures, whole=launched)
    deciding = cases.deciding(differing(texts))
    if deciding is None:
        return Unsupported("numbers that differ between workloads of one shape", "port each workload by itself")
    defined: dict[Values, str] = {}
    words = {word for line in texts[0] for word in re.findall(r"\w+", line)} | set(cases.tables[0])

    def write(values: Values, line: str) -> str:
        if line.startswith(f"{mark} @"):
            return plan_expression(cases, deciding, values)
        if found := cases.formula(values):
            return found
        if values not in defined:
            defined[values] = names.unused_name(f"SIZE{len(defined) + 1}", words.__contains__)
        return defined[values]

    lines = merged(texts, write)
    return PortText(lines, cases, deciding, {name: values for values, name in defined.items()})


def _cases(signatures: Sequence[Signature], *, whole: bool) -> ShapeCases:
    """``whole``: only integers can tell shapes apart, as in a plan."""
    tables = [header.plan_names(signature, 0) for signature in signatures]
    first = signatures[0]
    sizes = [f"{macro_name(operand, tables[0])}_DIM{axis}" for operand in first.operands for axis in range(len(operand.shape))]
    constants = [
        macro
        for name, value in first.constants.items()
        if tables[0].get(macro := names.macro(name)) == value and all(macro in table for table in tables)
    ]
    fixed = [name for name in constants if len({table[name] for table in tables}) == 1]
    others = [name for name in constants if name not in fixed]
    exact = [name for name in others if all(isinstance(table[name], int) for table in tables)]
    return ShapeCases(tables, [*sizes, *fixed], exact if whole else [*exact, *(n for n in others if n not in exact)])


def c_text(port: PortText) -> list[str]:
    """A C++ or CUDA file: static assertions, and macros for the numbers that differ."""
    lines: list[str] = []
    for line in port.lines:
        if line != GUARDS:
            lines.append(line)
            continue
        lines += static_asserts(port.cases.requirements(port.deciding))
        lines += _macros(port)
    return lines


def static_asserts(terms: Sequence[str]) -> Iterator[str]:
    """``static_assert`` lines for all terms."""
    plain = [term for term in terms if "||" not in term]
    for place in range(0, len(plain), 4):
        yield f'static_assert({" && ".join(plain[place : place + 4])}, "{MESSAGE}");'
    for term in (term for term in terms if "||" in term):
        yield "static_assert(" + " ||\n              ".join(term.split(" || ")) + f', "{MESSAGE}");'


def _macros(port: PortText) -> Iterator[str]:
    if port.defined:
        yield ""
        yield "// Numbers that depend on the shape."
    for name, values in port.defined.items():
        (usual, _), *others = port.cases.conditions(port.deciding, values)
        yield f"#define {name} ( \\"
        yield from (f"    {' || '.join(one)} ? {value} : \\" for value, one in others)
        yield f"    {usual})"


def macro_name(operand: Operand, table: Mapping[str, Number]) -> str:
    """The prefix of an operand's macros in ``problem.h``: its name, with ``_`` appended where that is taken."""
    prefix = names.macro(operand.name)
    wanted = {f"DIM{axis}": extent for axis, extent in enumerate(operand.shape)} | {"RANK": len(operand.shape)}
    while any(table.get(f"{prefix}_{suffix}") != value for suffix, value in wanted.items()):
        prefix += "_"
    return prefix
