"""The diff of two kernels' code: removed and added lines, with the changed words of a line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from engine.domain.model import Dialect
from tui.viewmodel.cells import Cell, Ground, Ink, Line, clean, line
from tui.viewmodel.code import highlight

CONTEXT = 3
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MANY_LINES = 4_000
"""Of both kernels: above it, lines that occur often, such as a brace, are not matched by themselves. It takes seconds."""
_MOST_COMPARED = 1_000
"""Changed lines, after which words within lines are no longer compared."""
_MOST_WORDS = 400
_ALIKE = 0.4
"""Lines less similar than this count as replaced, not as changed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The lines of a diff, with the numbers of added and removed lines."""

    lines: tuple[Line, ...]
    added: int
    removed: int


@lru_cache(maxsize=8)
def difference(before: str, after: str, dialect: Dialect, *, context: int = CONTEXT) -> Difference:
    """The diff from ``before`` to ``after`` with this many context lines."""
    old, new = before.splitlines(), after.splitlines()
    old_lines, new_lines = _padded(highlight(before, dialect), len(old)), _padded(highlight(after, dialect), len(new))
    room = len(str(max(len(old), len(new), 1)))
    lines: list[Line] = []
    added = removed = 0
    end = 0
    matcher = SequenceMatcher(None, old, new, autojunk=len(old) + len(new) > _MANY_LINES)
    for group in matcher.get_grouped_opcodes(context):
        lines.extend(_gap(group[0][3] - end))
        end = group[-1][4]
        for kind, a, a_end, b, b_end in group:
            if kind == "equal":
                lines += [_row(room, a + n + 1, b + n + 1, " ", new_lines[b + n], Ground.NONE) for n in range(a_end - a)]
                continue
            removed += a_end - a
            added += b_end - b
            few = added + removed <= _MOST_COMPARED
            old_words, new_words = _changed_words(old[a:a_end], new[b:b_end]) if few else ({}, {})
            for n in range(a, a_end):
                text = _with_ground(old_lines[n], old_words.get(n - a, ()), Ground.REMOVED_WORD)
                lines.append(_row(room, n + 1, None, "-", text, Ground.REMOVED))
            for n in range(b, b_end):
                text = _with_ground(new_lines[n], new_words.get(n - b, ()), Ground.ADDED_WORD)
                lines.append(_row(room, None, n + 1, "+", text, Ground.ADDED))
    lines.extend(_gap(len(new) - end if lines else 0))
    return Difference(tuple(lines), added, removed)


def _padded(lines: tuple[Line, ...], count: int) -> tuple[Line, ...]:
    """The highlighted lines, padded to the text's line count: a lexer drops empty lines at the end."""
    return lines + (Line(),) * max(0, count - len(lines))


def _gap(hidden: int) -> Iterator[Line]:
    if hidden > 0:
        yield line(Cell(f" ⋯ {hidden} unchanged line{'' if hidden == 1 else 's'}", Ink.RULE))


def _row(room: int, old: int | None, new: int | None, sign: str, text: Line, ground: Ground) -> Line:
    ink = {"-": Ink.BAD, "+": Ink.GOOD}.get(sign, Ink.RULE)
    numbers = f" {old or '':>{room}} {new or '':>{room}} "
    return Line((Cell(numbers, ink if sign != " " else Ink.RULE), Cell(f"{sign} ", ink), *text.cells), ground)


Spans = tuple[tuple[int, int], ...]


def _changed_words(old: Sequence[str], new: Sequence[str]) -> tuple[dict[int, Spans], dict[int, Spans]]:
    """The changed characters of each line, if as many lines were added as removed."""
    left: dict[int, Spans] = {}
    right: dict[int, Spans] = {}
    if len(old) != len(new):
        return left, right
    for place, (before, after) in enumerate(zip(old, new, strict=True)):
        a, b = _WORD.findall(clean(before)), _WORD.findall(clean(after))
        if len(a) > _MOST_WORDS or len(b) > _MOST_WORDS:
            continue
        matcher = SequenceMatcher(None, a, b, autojunk=False)
        if matcher.ratio() < _ALIKE:
            continue
        changes = [op for op in matcher.get_opcodes() if op[0] != "equal"]
        left[place] = _spans(a, [(op[1], op[2]) for op in changes])
        right[place] = _spans(b, [(op[3], op[4]) for op in changes])
    return left, right


def _spans(words: Sequence[str], changed: Sequence[tuple[int, int]]) -> Spans:
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word))
    return tuple((starts[a], starts[b]) for a, b in changed if a < b)


def _with_ground(text: Line, spans: Spans, ground: Ground) -> Line:
    """The line with the ground on these characters."""
    if not spans:
        return text
    cells: list[Cell] = []
    place = 0
    for cell in text.cells:
        edges = sorted({0, len(cell.text), *(min(max(x - place, 0), len(cell.text)) for span in spans for x in span)})
        for start, end in pairwise(edges):
            inside = any(a <= place + start and place + end <= b for a, b in spans)
            cells.append(Cell(cell.text[start:end], cell.ink, ground if inside else cell.ground))
        place += len(cell.text)
    return Line(tuple(cells), text.ground)
