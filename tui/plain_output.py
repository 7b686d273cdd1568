"""What reaches the terminal: no control character and nothing that changes the direction of text, wherever it comes from."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Control, format (zero width, direction) and surrogate characters; separators of lines and of paragraphs."""


class PlainOutput(LineFilter):
    """Replaces unsafe characters in every line that a widget draws; the width stays. Names come from journals and models."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [segment if segment.control else Segment(plain_text(segment.text), segment.style) for segment in segments]


@lru_cache(maxsize=4096)
def plain_text(text: str) -> str:
    """The text with a question mark for every unsafe character."""
    return "".join("?" * cell_len(c) if unicodedata.category(c) in _UNSAFE else c for c in text)
