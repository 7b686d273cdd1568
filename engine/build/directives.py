"""Finding the lines of a kernel's source that speak to the tool: comments that begin with ``@word``.

Knows where such lines are and how each dialect writes a comment; what the words mean is known elsewhere.
Words that are nothing like ours (``@param``, ``@brief``) are left alone; a slip of ours (``@lauch``) is an error.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from engine.domain.errors import SourceError
from engine.domain.model import Dialect

WORDS = ("tune", "require", "workspace", "tensormap", "launch")

_LINE = {
    "//": re.compile(r"[ \t]*//+[ \t]*@([A-Za-z_]+)(.*)"),
    "#": re.compile(r"[ \t]*#+[ \t]*@([A-Za-z_]+)(.*)"),
}
_NEWLINE = re.compile(r"\r\n|\r|\n")
_CODE = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|R\"([^\s()\\]{0,16})\(.*?(?:\)\1\"|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive: its word, the rest of its line, and where the rest begins (both from 1)."""

    word: str
    text: str
    line: int
    column: int


def directives(source: str, dialect: Dialect, *words: str) -> tuple[Directive, ...]:
    """The directives of ``source`` with one of these words, in order.

    A second comment mark on the line ends the directive.

    Raises:
        SourceError: a word that is almost, but not quite, one of ours.
    """
    mark = "#" if dialect is Dialect.PYTHON else "//"
    if "@" not in source:
        return ()
    found: list[Directive] = []
    for number, line in enumerate(_NEWLINE.split(source), 1):
        match = _LINE[mark].match(line)
        if match is None:
            continue
        word, rest = match.group(1), match.group(2)
        if word in words:
            found.append(Directive(word, rest.split(mark)[0].rstrip(), number, match.start(2) + 1))
        elif word not in WORDS and (close := difflib.get_close_matches(word.lower(), WORDS, n=1, cutoff=0.8)):
            raise SourceError(f"unknown directive @{word}: did you mean @{close[0]}?", number, match.start(1) + 1)
    return tuple(found)


def without_comments(source: str) -> str:
    """C++ source with comments blanked and strings emptied: what is left is code."""
    return _CODE.sub(lambda match: '""' if match.group()[0] in "\"'R" else " ", source)
