"""Streams that cannot carry every sign, as in a locale without UTF-8: what is printed there in place of those they lack.

A stand-in for what trees and tables are made of is one sign wide, so that columns stay columns.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping
from typing import IO

_ERRORS = "espalier.plain"
_STAND_INS: Mapping[str, str] = {
    "─": "-", "│": "|", "├": "|", "└": "`", "★": "*", "…": "~", "×": "x", "·": "-", "÷": "/", "‖": "|", "█": "#",
    "▲": "^", "▼": "v", "−": "-", "–": "-", "µ": "u", "≈": "~", "→": "->", "≤": "<=", "≥": ">=", "∞": "inf",
}  # fmt: skip


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "registered for writing alone"
    return "".join(_STAND_INS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(_ERRORS, _stand_in)


def is_utf8(stream: IO[str] | None) -> bool:
    """Whether the stream takes every sign there is; one that says nothing of it does."""
    name = getattr(stream, "encoding", None)
    return name is None or codecs.lookup(name).name == "utf-8"


def never_refuse(*streams: IO[str] | None) -> None:
    """From now on these print a stand-in for what they cannot carry, in place of an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)
