"""Generates ``problem.h``: the workload's constants, shapes and element types as macros and typedefs.

Macros and the names of plan expressions come from one list, so they always agree. Knows C's literals and element types; nothing
of tunables or compilers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.domain.errors import ProblemError
from engine.domain.model import Dialect, Number, Operand, Signature
from engine.problem import names
from engine.problem.narrow_types import CPP_TEXTS

_PLAIN_TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "std::int8_t",
    "int16": "std::int16_t",
    "int32": "std::int32_t",
    "int64": "std::int64_t",
    "uint8": "std::uint8_t",
    "uint16": "std::uint16_t",
    "uint32": "std::uint32_t",
    "uint64": "std::uint64_t",
    "bool": "unsigned char",
}
_SPECIAL_TYPES = {
    Dialect.CUDA: {
        "float16": ("__half", "cuda_fp16.h"),
        "bfloat16": ("__nv_bfloat16", "cuda_bf16.h"),
        "float8_e4m3fn": ("__nv_fp8_e4m3", "cuda_fp8.h"),
        "float8_e5m2": ("__nv_fp8_e5m2", "cuda_fp8.h"),
    },
    Dialect.CPP: {
        "float16": ("_Float16", ""),
        "bfloat16": ("bf16", ""),
        "float8_e4m3fn": ("fp8_e4m3", ""),
        "float8_e5m2": ("fp8_e5m2", ""),
    },
}
_LARGEST = 2**64 - 1
_SMALLEST = -(2**63)


@dataclass(frozen=True, slots=True)
class _Macro:
    name: str
    value: Number


def render(signature: Signature, dialect: Dialect, workload_name: str) -> str:
    """The text of ``problem.h`` for one workload, in ``cuda`` or ``cpp``.

    Raises ProblemError for an operand whose element type the dialect lacks, and for ``python`` and ``triton``, which have none.
    """
    if dialect.in_python:
        raise ProblemError(f"{dialect} kernels have no problem.h: use the cpp or cuda dialect")
    lines = [
        f"/* Generated for the workload {_comment(workload_name)}: do not edit. */",
        "#ifndef ESPALIER_PROBLEM_H",
        "#define ESPALIER_PROBLEM_H",
        "",
        *_includes(signature, dialect),
        "",
        f"#define ESPALIER_WORKLOAD {_string(workload_name)}",
        "",
    ]
    constants, shapes = _macros(signature)
    if constants:
        lines += ["/* The reference's numbers and scalar arguments. */"]
        lines += [_define(macro) for macro in constants]
        lines += [""]
    if dialect is Dialect.CPP:
        lines += [text for dtype, text in CPP_TEXTS.items() if any(o.dtype == dtype for o in signature.operands)]
    for operand, macros in zip(signature.operands, shapes, strict=True):
        lines += _operand(operand, macros, dialect, names.instead_of(operand.name, signature.constants))
    lines += ["#endif"]
    return "\n".join(lines) + "\n"


def plan_names(signature: Signature, units: int) -> dict[str, Number]:
    """The names of plan expressions: every numeric macro of the header, and ``SMS``, the device's ``units``."""
    constants, shapes = _macros(signature)
    table = {macro.name: macro.value for macro in constants}
    for macros in shapes:
        table.update((macro.name, macro.value) for macro in macros)
    return table | {"SMS": units}


def element_type(operand: Operand, dialect: Dialect) -> str:
    """An operand's C++ element type in a dialect; ProblemError if there is none."""
    special = _SPECIAL_TYPES.get(dialect, {}).get(operand.dtype)
    plain = _PLAIN_TYPES.get(operand.dtype)
    if special is None and plain is None:
        raise ProblemError(
            f"operand {operand.name} has dtype {operand.dtype}, which {dialect} kernels have no type for: "
            "write the kernel in the python dialect"
        )
    return special[0] if special is not None else str(plain)


def has_type(operand: Operand) -> bool:
    """Whether every compiled dialect has the operand's element type."""
    return operand.dtype in _PLAIN_TYPES or all(operand.dtype in table for table in _SPECIAL_TYPES.values())


def _includes(signature: Signature, dialect: Dialect) -> Iterator[str]:
    kinds = {o.dtype for o in signature.operands}
    yield "#include <cstddef>"
    yield "#include <cstdint>"
    if dialect is Dialect.CPP and not kinds.isdisjoint(CPP_TEXTS):
        yield "#include <cstring>"
    special = _SPECIAL_TYPES[dialect]
    headers = {special[kind][1] for kind in kinds if kind in special} - {""}
    yield from (f"#include <{header}>" for header in sorted(headers))


def _macros(signature: Signature) -> tuple[list[_Macro], list[list[_Macro]]]:
    """The constants, and the macros of each operand; names are unique, and operands' take precedence."""
    taken = {names.identifier(o.name) for o in signature.operands}
    shapes: list[list[_Macro]] = []
    for operand in signature.operands:
        values = dict(_shape(operand))
        stem = names.macro(operand.name)
        while any(f"{stem}_{suffix}" in taken for suffix in values):
            stem += "_"
        shapes.append([_Macro(f"{stem}_{suffix}", value) for suffix, value in values.items()])
        taken.update(macro.name for macro in shapes[-1])
    constants: list[_Macro] = []
    for name, value in signature.constants.items():
        if not _expressible(value):
            continue
        free = names.unused_name(names.macro(name), taken.__contains__)
        taken.add(free)
        constants.append(_Macro(free, value))
    return constants, shapes


def _shape(operand: Operand) -> Iterator[tuple[str, int]]:
    yield "NUMEL", math.prod(operand.shape)
    yield "RANK", len(operand.shape)
    yield from ((f"DIM{axis}", size) for axis, size in enumerate(operand.shape))


def _operand(operand: Operand, macros: list[_Macro], dialect: Dialect, note: str) -> Iterator[str]:
    shape = " x ".join(str(size) for size in operand.shape) or "one value"
    why = f" ({_comment(note)})" if note else ""
    yield f"/* {_comment(operand.name)}{why}: {operand.role}, {shape}, {operand.dtype}, contiguous, row-major. */"
    yield f"typedef {element_type(operand, dialect)} {names.type_name(operand.name)};"
    yield from (_define(macro) for macro in macros)
    yield ""


def _define(macro: _Macro) -> str:
    return f"#define {macro.name} {literal(macro.value)}"


def _expressible(value: Number) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _SMALLEST <= value <= _LARGEST


def literal(value: Number) -> str:
    """A finite number as a C literal; negative ones in parentheses, so that they fit into any expression."""
    if isinstance(value, float):
        text = repr(abs(value))
        return f"(-{text})" if math.copysign(1.0, value) < 0 else text
    if value == _SMALLEST:
        return "(-9223372036854775807 - 1)"
    if value > 2**63 - 1:
        return f"{int(value)}u"
    return f"({int(value)})" if value < 0 else str(int(value))


def _string(text: str) -> str:
    plain = "".join(c if " " <= c <= "~" and c not in '"\\?' else "_" for c in text)
    return f'"{plain}"'


def _comment(text: str) -> str:
    return _string(text)[1:-1].replace("*/", "*_").replace("/*", "/_")
