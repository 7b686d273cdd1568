"""Directives in kernel code: comments that begin with ``@word``. ``plan`` and ``tunables`` interpret them.

Other words (``@param``, ``@brief``) are ignored; a misspelt directive (``@lauch``) is an error.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from engine.domain.errors import KernelCodeError
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
    """One directive: its word, the rest of its line, and where the rest starts, counting from 1."""

    word: str
    text: str
    line: int
    column: int


def directives(code: str, dialect: Dialect, *words: str) -> tuple[Directive, ...]:
    """The directives of ``code`` with one of these words, in order.

    A second comment mark on the line ends the directive.

    Raises:
        KernelCodeError: a misspelt directive.
    """
    mark = "#" if dialect.in_python else "//"
    if "@" not in code:
        return ()
    matches: list[Directive] = []
    for number, line in enumerate(_NEWLINE.split(code), 1):
        match = _LINE[mark].match(line)
        if match is None:
            continue
        word, rest = match.group(1), match.group(2)
        if word in words:
            matches.append(Directive(word, rest.split(mark)[0].rstrip(), number, match.start(2) + 1))
        elif word not in WORDS and (close := difflib.get_close_matches(word.lower(), WORDS, n=1, cutoff=0.8)):
            raise KernelCodeError(f"unknown directive @{word}: did you mean @{close[0]}?", number, match.start(1) + 1)
    return tuple(matches)


def without_comments(text: str) -> str:
    """C++ text with comments blanked and strings emptied."""
    return _CODE.sub(lambda match: '""' if match.group()[0] in "\"'R" else " ", text)
