"""A kernel's code as highlighted lines, using pygments' lexers. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from pygments.lexer import Lexer  # type: ignore[import-untyped]  # pygments ships no types
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token, _TokenType  # type: ignore[import-untyped]

from engine.domain.model import Dialect
from tui.viewmodel.cells import Cell, Ink, Line, clean, merge_cells

_DIRECTIVE = re.compile(r"^\s*(?://|#)\s*@(?:tune|require|launch|workspace|tensormap)\b")
_MOST_HIGHLIGHTED = 40_000
"""Characters: more than any kernel that ships. A lexer takes some 4 ms for a thousand."""
_INKS: tuple[tuple[_TokenType, Ink], ...] = (
    (Comment.Preproc, Ink.PREPROCESSOR),
    (Comment.PreprocFile, Ink.STRING),
    (Comment, Ink.COMMENT),
    (Keyword.Type, Ink.TYPE),
    (Keyword.Constant, Ink.NUMBER),
    (Keyword, Ink.KEYWORD),
    (Name.Function, Ink.FUNCTION),
    (Name.Class, Ink.TYPE),
    (Name.Builtin, Ink.TYPE),
    (Name.Decorator, Ink.DIRECTIVE),
    (String, Ink.STRING),
    (Number, Ink.NUMBER),
    (Operator, Ink.OPERATOR),
)


@lru_cache(maxsize=4)
def _lexer(dialect: Dialect) -> Lexer:
    return get_lexer_by_name(dialect.language, stripnl=False)


@lru_cache(maxsize=64)
def highlight(source: str, dialect: Dialect) -> tuple[Line, ...]:
    """The highlighted lines of the code, launch and tuning directives included. The end of a very long one is plain."""
    lines: list[list[Cell]] = [[]]
    text = source.replace("\r\n", "\n")
    end = len(text) if len(text) <= _MOST_HIGHLIGHTED else text.rfind("\n", 0, _MOST_HIGHLIGHTED) + 1
    for kind, value in (*_lexer(dialect).get_tokens(text[:end]), (Token.Text, text[end:])):
        ink = _ink(kind)
        for place, part in enumerate(value.split("\n")):
            if place:
                lines.append([])
            if part:
                lines[-1].append(Cell(clean(part), ink))
    while lines and not lines[-1]:
        lines.pop()
    return tuple(_line(cells) for cells in lines)


def _line(cells: list[Cell]) -> Line:
    text = "".join(cell.text for cell in cells)
    if _DIRECTIVE.match(text):
        return Line((Cell(text, Ink.DIRECTIVE),))
    return Line(merge_cells(cells))


@lru_cache(maxsize=512)
def _ink(kind: _TokenType) -> Ink:
    return next((ink for family, ink in _INKS if kind in family), Ink.PLAIN)


def number_lines(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines with line numbers."""
    room = len(str(len(lines)))
    return tuple(
        Line((Cell(f" {number:>{room}} ", Ink.RULE), Cell("│ ", Ink.RULE), *found.cells), found.ground)
        for number, found in enumerate(lines, 1)
    )
