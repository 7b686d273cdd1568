"""Styled text as plain values: lines of cells, each with an ink. Measures and cuts text by terminal cells.

An ink names what a part of a line *is* (a good speedup, a running build, a keyword); ``tui.theme`` maps it to a colour. Text
from compilers, models and files passes ``clean`` before it reaches a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import groupby

from engine.report.text import lines as report


class Ink(StrEnum):
    """What a part of a line is. The first six are the tones of ``engine.report.text.lines``."""

    PLAIN = "plain"
    STRONG = "strong"
    FAINT = "faint"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"

    TITLE = "title"
    LABEL = "label"
    RULE = "rule"
    ACCENT = "accent"
    BEST = "best"
    PIN = "pin"
    MARK = "mark"

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    FASTER_BAR = "faster-bar"
    SLOWER_BAR = "slower-bar"
    UNDECIDED_BAR = "undecided-bar"
    FASTER_BAND = "faster-band"
    SLOWER_BAND = "slower-band"
    UNDECIDED_BAND = "undecided-band"

    BUILD = "build"
    VERIFY = "verify"
    MEASURE = "measure"
    REPAIR = "repair"
    WAITING = "waiting"
    MEASURED = "measured"
    QUARANTINED = "quarantined"
    FAILED = "failed"
    CANCELLED = "cancelled"

    KEYWORD = "keyword"
    TYPE = "type"
    FUNCTION = "function"
    STRING = "string"
    NUMBER = "number"
    COMMENT = "comment"
    DIRECTIVE = "directive"
    PREPROCESSOR = "preprocessor"
    OPERATOR = "operator"


class Ground(StrEnum):
    """The background of a part of a line; ``NONE`` is the widget's own."""

    NONE = "none"
    ADDED = "added"
    REMOVED = "removed"
    ADDED_WORD = "added-word"
    REMOVED_WORD = "removed-word"
    FASTER_BAND = "faster-band"
    SLOWER_BAND = "slower-band"
    UNDECIDED_BAND = "undecided-band"
    TRACK = "track"
    CHIP = "chip"


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a line, without line breaks."""

    text: str
    ink: Ink = Ink.PLAIN
    ground: Ground = Ground.NONE


@dataclass(frozen=True, slots=True)
class Line:
    """One line on the screen; ``ground`` reaches to the right edge."""

    cells: tuple[Cell, ...] = ()
    ground: Ground = Ground.NONE

    @property
    def text(self) -> str:
        """The line's text alone."""
        return "".join(cell.text for cell in self.cells)

    @property
    def width(self) -> int:
        """The line's width in terminal cells."""
        return sum(width(cell.text) for cell in self.cells)


BLANK = Line()
LONGEST_LINE = 8_000
"""Characters of a text that is shown on one line: more than any terminal has columns."""
LONGEST_TEXT = 64_000
"""Characters of a text that is shown wrapped. Compilers and strangers write megabytes, which take seconds to lay out."""
MOST_LINES = 4_000
"""Lines of an output that are shown, half of them its last."""
_DURATION = r"[(\[]?\d[\d.,]*(?: (?:ns|µs|ms|s|min|h)(?!\w))(?: \d[\d.,]* (?:s|min)(?!\w))?"
_WORDS = re.compile(rf"\s*(?:{_DURATION}\S*|\S+)\s*|\s+")
"""Words with the blanks around them. A number stays with its unit: ``4 min 40 s``."""
_FIRST_WORD, _LAST_WORD = re.compile(r"\S+"), re.compile(r"\S+$")


def line(*parts: Cell | str, ground: Ground = Ground.NONE) -> Line:
    """A line of these parts; strings are plain, empty ones are skipped."""
    cells = (Cell(part) if isinstance(part, str) else part for part in parts)
    return Line(tuple(cell for cell in cells if cell.text), ground)


def from_report(spans: report.Line) -> Line:
    """A line of the engine's reports, with tones as inks."""
    return Line(tuple(Cell(clean(bounded(span.text, LONGEST_LINE)), Ink(span.tone.value)) for span in spans))


def merge_cells(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells with neighbours of the same ink and ground as one."""
    runs = groupby(cells, key=lambda cell: (cell.ink, cell.ground))
    return tuple(Cell("".join(cell.text for cell in run), ink, ground) for (ink, ground), run in runs)


def join_cells(parts: Iterable[Sequence[Cell]], separator: Cell) -> tuple[Cell, ...]:
    """The non-empty parts with the separator between them."""
    cells: list[Cell] = []
    for part in parts:
        if part:
            cells.extend((separator, *part) if cells else part)
    return tuple(cells)


def join_fitting(parts: Iterable[Sequence[Cell]], separator: Cell, room: int) -> tuple[Cell, ...]:
    """The non-empty parts with the separator between them, whole, while they fit; then an ellipsis for the others."""
    shown: list[Sequence[Cell]] = []
    for part in filter(None, parts):
        if sum(width(cell.text) for cell in join_cells([*shown, part], separator)) > room:
            more = Cell("…", separator.ink)
            while shown and sum(width(cell.text) for cell in join_cells([*shown, (more,)], separator)) > room:
                shown.pop()
            return join_cells([*shown, (more,)], separator)
        shown.append(part)
    return join_cells(shown, separator)


def bounded(text: str, most: int = LONGEST_TEXT) -> str:
    """The text, or its beginning with the number of characters that are left out."""
    return text if len(text) <= most else f"{text[:most]} … and {len(text) - most:,} more characters"


def output_lines(text: str) -> list[str]:
    """The cleaned lines of an output; of a long one the first and the last, each with a bounded length."""
    found = text.rstrip().splitlines()
    half = MOST_LINES // 2
    if len(found) > MOST_LINES:
        found = [*found[:half], f"⋯ {len(found) - MOST_LINES:,} lines are not shown", *found[-half:]]
    return [clean(bounded(one, LONGEST_LINE)) for one in found]


JOINED = re.compile(r"[^\u200d](?:[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d.)+")
"""A character with others that some terminals draw in its cells and others after it: families, skin tones, keycaps."""


def clean(text: str) -> str:
    """The text with tabs as spaces and every control or direction-changing character made visible.

    Otherwise a compiler's or a model's output could move the cursor or rewrite the screen. Of joined characters the first
    stays alone: terminals disagree on the width of the rest.
    """
    if text.isascii() and text.isprintable():
        return text
    alone = JOINED.sub(lambda found: found[0][0], text)
    return alone if alone.isprintable() else "".join(_replacement(char) for char in alone.expandtabs(4))


def clean_lines(text: str) -> str:
    """``clean`` for a text of several lines: its line breaks stay."""
    return "\n".join(clean(part) for part in text.splitlines())


def _replacement(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else " " if unicodedata.category(char) == "Zs" else "�"


def one_line(text: str) -> str:
    """The text on one line, cleaned; of a long one the beginning."""
    return clean(report.one_line(bounded(text, LONGEST_LINE)))


@lru_cache(maxsize=4096)
def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def width(text: str) -> int:
    """The text's width in terminal cells."""
    return len(text) if text.isascii() else _width_by_char(text)


@lru_cache(maxsize=4096)
def _width_by_char(text: str) -> int:
    return sum(map(_char_width, text))


def cut(text: str, room: int) -> str:
    """The text in at most ``room`` cells; a cut text ends with an ellipsis."""
    if width(text) <= room:
        return text
    if room <= 0:
        return ""
    kept, used = 0, 0
    for char in text:
        used += _char_width(char)
        if used > room - 1:
            break
        kept += 1
    return f"{text[:kept].rstrip()}…"


def cut_middle(text: str, room: int) -> str:
    """The text in at most ``room`` cells; a cut text has an ellipsis in its middle."""
    if width(text) <= room:
        return text
    end = tail(text, room // 2 + 1)[1:]
    return f"{cut(text, room - width(end))}{end}"


def cut_whole(text: str, room: int) -> str:
    """``cut``, but never inside a word with a digit: half a number reads as another number."""
    shown = cut(text, room)
    kept = shown[:-1]
    rest = text[len(kept) :]
    if shown == text or not kept or rest[:1].isspace():
        return shown
    last, following = _LAST_WORD.search(kept), _FIRST_WORD.match(rest)
    if last is None or following is None or not any(char.isdigit() for char in last.group() + following.group()):
        return shown
    return f"{kept[: last.start()].rstrip()}…"


def tail(text: str, room: int) -> str:
    """The end of the text in at most ``room`` cells; a cut text starts with an ellipsis."""
    if width(text) <= room:
        return text
    return f"…{cut(text[::-1], room)[:-1][::-1].lstrip()}" if room > 1 else ""


def pad(text: str, room: int, *, right: bool = False) -> str:
    """The text in exactly ``room`` cells, cut or filled with spaces; ``right`` puts it against the right edge."""
    fitted = cut(text, room)
    fill = " " * max(0, room - width(fitted))
    return fill + fitted if right else fitted + fill


def cut_cells(cells: Sequence[Cell], room: int) -> tuple[Cell, ...]:
    """The cells in at most ``room`` terminal cells; a cut text ends with an ellipsis."""
    if sum(width(cell.text) for cell in cells) <= room:
        return tuple(cells)
    kept: list[Cell] = []
    left = room
    for cell in cells:
        needed = width(cell.text)
        if needed >= left:
            kept.append(Cell(cut(f"{cell.text}\0", left).replace("\0", ""), cell.ink, cell.ground))
            break
        kept.append(cell)
        left -= needed
    return tuple(kept)


def pad_cells(cells: Sequence[Cell], room: int, *, right: bool = False) -> tuple[Cell, ...]:
    """The cells in exactly ``room`` terminal cells."""
    fitted = cut_cells(cells, room)
    fill = room - sum(width(cell.text) for cell in fitted)
    if fill <= 0:
        return fitted
    space = Cell(" " * fill)
    return (space, *fitted) if right else (*fitted, space)


def wrap(text: str, room: int) -> list[str]:
    """The text wrapped at words into lines of at most ``room`` cells; longer words are broken.

    Line breaks of the text stay; an empty text has no lines. Of a long text the beginning is shown.
    """
    lines: list[str] = []
    for paragraph in bounded(text.strip()).splitlines():
        lines.extend(_wrap_paragraph(clean(paragraph), max(1, room)))
    return lines


def _wrap_paragraph(text: str, room: int) -> list[str]:
    lines: list[str] = []
    current = ""
    for word in map(str.strip, _WORDS.findall(text.strip())):
        candidate = f"{current} {word}" if current else word
        if width(candidate) <= room:
            current = candidate
            continue
        if current:
            lines.append(current)
        rest = word
        while width(rest) > room:
            head = _head(rest, room)
            lines.append(head)
            rest = rest[len(head) :]
        current = rest
    return [*lines, current]


def _head(text: str, room: int) -> str:
    used = 0
    for place, char in enumerate(text):
        used += _char_width(char)
        if used > room:
            return text[: max(1, place)]
    return text


def fold_line(shown: Line, room: int, indent: int) -> list[Line]:
    """The line wrapped at words into lines of at most ``room`` cells, all but the first indented."""
    if shown.width <= room or room <= indent + 8:
        return [shown]
    lines: list[Line] = []
    current: list[Cell] = []
    used = 0
    for cell in shown.cells:
        for word in _WORDS.findall(cell.text):
            rest = word
            if used + width(word.rstrip()) > room and used > indent:
                current[-1] = Cell(current[-1].text.rstrip(), current[-1].ink, current[-1].ground)
                lines.append(Line(merge_cells(current), shown.ground))
                current, used = [Cell(" " * indent)], indent
                rest = word.lstrip()
            for piece in _pieces(rest, room - indent) if width(rest) > room - indent else (rest,):
                if used + width(piece.rstrip()) > room:
                    lines.append(Line(merge_cells(current), shown.ground))
                    current, used = [Cell(" " * indent)], indent
                current.append(Cell(piece, cell.ink, cell.ground))
                used += width(piece)
    return [*lines, Line(merge_cells(current), shown.ground)]


def _pieces(word: str, room: int) -> list[str]:
    pieces = []
    while word:
        head = _head(word, room)
        pieces.append(head)
        word = word[len(head) :]
    return pieces
