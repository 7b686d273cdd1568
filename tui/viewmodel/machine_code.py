"""A kernel's machine code as lines: instructions under their source lines, or the diff against another kernel. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.domain.model import Dialect
from tui.viewmodel.cells import BLANK, Cell, Ground, Ink, Line, clean, line
from tui.viewmodel.code import highlight

_CONTEXT = 3
_NO_SAMPLES = "the profile has no samples per instruction"
Row = Mapping[str, Any]
"""One instruction as ``espalier kernel machine-code --json`` prints it."""


def listing(found: Mapping[str, Any], source: str, dialect: Dialect) -> tuple[Line, ...]:
    """Each run of instructions under the line of the kernel's code that it came from."""
    rows: Sequence[Row] = found["instructions"]
    code = highlight(source, dialect)
    lines = [line(Cell(f"  {len(rows)} instructions, {clean(found['tool'])}; {_NO_SAMPLES}", Ink.FAINT))]
    function, at = "", -1
    for row in rows:
        if row["function"] != function:
            function, at = row["function"], -1
            lines += [BLANK, line(Cell(f"  {clean(function)}", Ink.FUNCTION))]
        if row["line"] != at:
            at = row["line"]
            text = code[at - 1].cells if 0 < at <= len(code) else ()
            if text:
                lines.append(Line((Cell(f"{at:>6} │ ", Ink.RULE), *text), Ground.TRACK))
        lines.append(_instruction(row))
    if not any(row["line"] for row in rows):
        lines.append(line(Cell("  the compiler gave no source lines", Ink.FAINT)))
    return tuple(lines)


def difference(found: Mapping[str, Any]) -> tuple[Line, ...]:
    """What changed, with a few instructions around it."""
    rows: Sequence[Row] = found["instructions"]
    added, removed = (sum(1 for row in rows if row["sign"] == sign) for sign in "+-")
    head = line(
        Cell(f"  +{added}", Ink.GOOD), Cell(f" −{removed}", Ink.BAD),
        Cell("  instructions; register numbers and addresses are not compared", Ink.FAINT),
    )  # fmt: skip
    return (
        (head, BLANK, *_changes(rows)) if added or removed else (head, BLANK, line(Cell("  the same instructions", Ink.FAINT)))
    )


def _changes(rows: Sequence[Row]) -> Iterator[Line]:
    near = {m for n, row in enumerate(rows) if row["sign"] for m in range(n - _CONTEXT, n + _CONTEXT + 1)}
    last = -1
    for n, row in enumerate(rows):
        if n not in near:
            continue
        if n > last + 1:
            yield line(Cell(f"  ⋯ {n - last - 1} equal", Ink.RULE))
        last = n
        yield _instruction(row)


def _instruction(row: Row) -> Line:
    sign = row["sign"] or " "
    ink = {"+": Ink.GOOD, "-": Ink.BAD}.get(sign, Ink.RULE)
    opcode, blank, operands = clean(row["text"]).partition(" ")
    if opcode.startswith("@"):
        guard, (opcode, blank, operands) = f"{opcode} ", operands.partition(" ")
    else:
        guard = ""
    ground = {"+": Ground.ADDED, "-": Ground.REMOVED}.get(sign, Ground.NONE)
    cells = (
        Cell(f" {sign} {row['address']:>6x}  ", ink), Cell(guard, Ink.FAINT), Cell(opcode, Ink.KEYWORD),
        Cell(f"{blank}{operands}"),
    )  # fmt: skip
    return line(*cells, ground=ground)
