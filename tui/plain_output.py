"""What reaches the terminal: no control character, nothing that changes the direction of text or whose width is in doubt."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from tui.viewmodel.cells import JOINED

_UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Control, format (zero width, direction) and surrogate characters; separators of lines and of paragraphs."""


class PlainOutput(LineFilter):
    """Replaces unsafe characters in every line that a widget draws; the width stays. Names come from journals and models."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(_is_plain(segment.text) for segment in segments):
            return segments
        return [segment if segment.control else Segment(plain_text(segment.text), segment.style) for segment in segments]


def _is_plain(text: str) -> bool:
    return text.isprintable() and (text.isascii() or JOINED.search(text) is None)


@lru_cache(maxsize=4096)
def plain_text(text: str) -> str:
    """The text with a question mark for every unsafe character. Of joined characters the first one stays, in their cells."""
    text = JOINED.sub(lambda found: set_cell_size(found[0][0], cell_len(found[0])), text)
    return "".join("?" * cell_len(c) if unicodedata.category(c) in _UNSAFE else c for c in text)
