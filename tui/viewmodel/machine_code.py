"""A kernel's machine code as lines: instructions under their source lines, or the diff against another kernel. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from engine.domain.hot_code import SKID, share, share_words
from engine.domain.machine_listing import BARS
from engine.domain.model import Dialect
from engine.journal import recorded_listing
from tui.viewmodel.cells import BLANK, Cell, Ground, Ink, Line, clean, line, wrap
from tui.viewmodel.code import highlight
from tui.viewmodel.fmt import meter

_CONTEXT = 3
_NO_SAMPLES = "not sampled"
_LOOPS = "bars mark the loops of the machine code (static)"
_BAR = 8
_HOT = 0.1
"""Share from which on an instruction stands out."""
_NARROW = 64
"""Columns below which a share has no bar, and the legend stands at the end."""
Row = Mapping[str, Any]
"""One instruction as ``espalier kernel machine-code --json`` prints it."""


def recorded(payload: str, kernel: str) -> Mapping[str, Any]:
    """The listing that a session holds. Raises JournalCorrupt if it is damaged."""
    return asdict(recorded_listing.decode(payload.encode(), kernel))


def listing(found: Mapping[str, Any], source: str, dialect: Dialect, room: int) -> tuple[Line, ...]:
    """Each run of instructions under the line of the kernel's code that it came from, with its share of the samples."""
    rows: Sequence[Row] = found["instructions"]
    code = highlight(source, dialect)
    lines = list(_head(found, room))
    function, at, depth = "", -1, 0
    for row in rows:
        if row["function"] != function:
            function, at, depth = row["function"], -1, 0
            lines += [BLANK, line(Cell(f"  {clean(function)}", Ink.FUNCTION))]
        if row["depth"] > depth:
            lines.append(line(Cell(f"  {_bars(row['depth'])} loop depth {row['depth']} (static)", Ink.ACCENT)))
        depth = row["depth"]
        if row["line"] != at:
            at = row["line"]
            text = code[at - 1].cells if 0 < at <= len(code) else ()
            if text:
                lines.append(Line((Cell(f"{at:>6} │ ", Ink.RULE), *text), Ground.TRACK))
        lines.append(_instruction(row, found["samples"] or 0, room))
    if not any(row["line"] for row in rows):
        lines.append(line(Cell("  the compiler gave no source lines", Ink.FAINT)))
    return (*lines, *_foot(found, room))


def hottest(found: Mapping[str, Any], source: str, dialect: Dialect, room: int) -> tuple[Line, ...]:
    """The source lines, the hottest first, each above its instructions: by samples, else by the depth of their loops."""
    code = highlight(source, dialect)
    total = found["samples"] or 0
    heat = "samples" if total else "depth"
    by_line: dict[int, list[Row]] = {}
    for row in found["instructions"]:
        if row[heat]:
            by_line.setdefault(row["line"], []).append(row)
    lines = list(_head(found, room))
    for at, rows in sorted(by_line.items(), key=lambda item: _heat(item[1], heat), reverse=True):
        text = code[at - 1].cells if 0 < at <= len(code) else (Cell("no source line", Ink.FAINT),)
        sampled = share_words(share(sum(row["samples"] for row in rows), total))
        mark = Cell(f"{sampled:>7} " if total else f"  depth {max(row['depth'] for row in rows)} ", Ink.WARN)
        lines += [BLANK, Line((mark, Cell(f"{at or '':>5} │ ", Ink.RULE), *text), Ground.TRACK)]
        lines += [_instruction(row, total, room) for row in sorted(rows, key=lambda row: -row[heat])]
    return (*lines, *_foot(found, room))


def has_heat(found: Mapping[str, Any]) -> bool:
    """Whether any instruction was sampled, or is in a loop."""
    return any(row["samples"] or row["depth"] for row in found["instructions"])


def _heat(rows: Sequence[Row], heat: str) -> tuple[int, int]:
    """The samples of a line; or its deepest loop, then the number of its instructions there."""
    values = [row[heat] for row in rows]
    return (sum(values), 0) if heat == "samples" else (max(values), values.count(max(values)))


def _head(found: Mapping[str, Any], room: int) -> Iterator[Line]:
    """What is listed; where there is room also how to read it, which otherwise stands at the end."""
    samples = found["samples"]
    words = f"{len(found['instructions'])} instructions, {clean(found['tool'])}; "
    words += f"{samples:,} samples" if samples else _NO_SAMPLES
    explained = (f"{words}: {part}" for part in [_legend(found)] if part and room >= _NARROW)
    yield from _wrapped(next(explained, words), room)


def _foot(found: Mapping[str, Any], room: int) -> Iterator[Line]:
    if room < _NARROW and (legend := _legend(found)):
        yield BLANK
        yield from _wrapped(legend, room)


def _legend(found: Mapping[str, Any]) -> str:
    """What samples and bars mean; empty without them."""
    loops = any(row["depth"] for row in found["instructions"])
    return "; ".join(filter(None, (SKID if found["samples"] else "", _LOOPS if loops else "")))


def _wrapped(words: str, room: int) -> Iterator[Line]:
    yield from (line(Cell(f"  {part}", Ink.FAINT)) for part in wrap(words, max(20, room - 4)))


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


def _instruction(row: Row, samples: int = 0, room: int = 0) -> Line:
    """``samples`` are those of all instructions; 0 if there are none to show. Without ``room`` loops are not marked."""
    sign = row.get("sign") or " "
    ink = {"+": Ink.GOOD, "-": Ink.BAD}.get(sign, Ink.RULE)
    opcode, blank, operands = clean(row["text"]).partition(" ")
    if opcode.startswith("@"):
        guard, (opcode, blank, operands) = f"{opcode} ", operands.partition(" ")
    else:
        guard = ""
    ground = {"+": Ground.ADDED, "-": Ground.REMOVED}.get(sign, Ground.NONE)
    bars = f"{_bars(row['depth']):<{BARS}} " if room else " "
    cells = (
        *_share(row, samples, room), Cell(f" {sign} {row['address']:>6x} ", ink), Cell(bars, Ink.ACCENT),
        Cell(guard, Ink.FAINT), Cell(opcode, Ink.KEYWORD), Cell(f"{blank}{operands}"),
    )  # fmt: skip
    return line(*cells, ground=ground)


def _bars(depth: int) -> str:
    return "┃" * min(BARS, depth)


def _share(row: Row, samples: int, room: int) -> Sequence[Cell]:
    """The instruction's share of the samples, with a bar where there is room."""
    if not samples:
        return ()
    own = share(row["samples"], samples)
    words = Cell(f"{share_words(own):>7} ", Ink.WARN if own >= _HOT else Ink.FAINT)
    bar = meter(own, _BAR, Ink.WARN) if own else (Cell(" " * _BAR),)
    return (words, *bar) if room >= _NARROW else (words,)
