"""Standard streams: which of them are terminals, and substitutes for characters that one cannot encode.

Substitutes for the characters of trees and tables are one character wide, to keep columns aligned.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Mapping
from typing import IO

_STDIN, _STDOUT, _STDERR = range(3)
_ERRORS = "espalier.substitute"
_SUBSTITUTES: Mapping[str, str] = {
    "─": "-", "│": "|", "├": "|", "└": "`", "★": "*", "…": "~", "×": "x", "·": "-", "÷": "/", "‖": "|", "█": "#",
    "▲": "^", "▼": "v", "−": "-", "–": "-", "µ": "u", "≈": "~", "→": "->", "≤": "<=", "≥": ">=", "∞": "inf",
}  # fmt: skip


def _substitute(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "registered for writing only"
    return "".join(_SUBSTITUTES.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(_ERRORS, _substitute)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal; a closed one is not."""
    return stream is not None and stream.isatty()


def stdin_is_terminal() -> bool:
    """Whether somebody can answer a question."""
    return is_terminal(sys.stdin)


def shows_colour(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal without NO_COLOR and TERM=dumb."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_utf8(stream: IO[str] | None) -> bool:
    """Whether the stream encodes every character; one that names no encoding does."""
    name = getattr(stream, "encoding", None)
    return name is None or codecs.lookup(name).name == "utf-8"


def substitute_unencodable(*streams: IO[str] | None) -> None:
    """Make these streams print substitutes for characters that they cannot encode, instead of raising."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def replace_closed() -> None:
    """Open the null device in place of closed standard streams.

    The next file would get the number of a closed one: a child would write its messages into a journal, and progress would be
    printed on standard output.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin = sys.stdin or os.fdopen(_STDIN, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", encoding="utf-8", closefd=False)


def was_closed(stream: IO[str] | None) -> bool:
    """Whether a standard stream is closed, or the null device that ``replace_closed`` opened: it is named by its number."""
    return stream is None or isinstance(getattr(stream, "name", ""), int)


def discard(*streams: IO[str] | None) -> None:
    """Point these streams at the null device: a flush at exit must not raise again."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (s for s in streams if s is not None):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        with contextlib.suppress(OSError, ValueError):
            os.dup2(null, stream.fileno())
