"""Printing: lines with tones, objects as JSON, lines on a terminal that the next ones overwrite."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from engine.cli.streams import is_terminal, is_utf8, shows_colour
from engine.domain.errors import ProblemError, printable
from engine.domain.work import WorkKey
from engine.report.text.lines import Line, Span, Tone, cut, line, plain

STDOUT = Path("-")
"""What a command takes as the name of standard output where it writes a file."""
_STYLES: Mapping[Tone, Mapping[str, Any]] = {
    Tone.PLAIN: {},
    Tone.STRONG: {"bold": True},
    Tone.FAINT: {"dim": True},
    Tone.GOOD: {"fg": "green"},
    Tone.BAD: {"fg": "red"},
    Tone.WARN: {"fg": "yellow"},
}


def show(lines: Iterable[Line | str], *, err: bool = False) -> None:
    """Print lines on standard output, or on standard error."""
    stream = sys.stderr if err else sys.stdout
    coloured = shows_colour(stream)
    for entry in lines:
        spans = line(entry) if isinstance(entry, str) else entry
        click.echo(_painted(spans, coloured=coloured), file=stream, color=coloured)


def _painted(spans: Line, *, coloured: bool) -> str:
    if not coloured:
        return _shown(plain(spans))
    return "".join(click.style(_shown(s.text), **_STYLES[s.tone]) for s in spans)


def _shown(text: str) -> str:
    """A part of a line as it is printed: a name from elsewhere may hold line breaks and control characters."""
    return printable(text).replace("\n", " ").expandtabs(4)


def show_text(text: str) -> None:
    """Print a text whole: on a terminal printable, else as it is, in UTF-8 whatever the locale, as it would be in a file."""
    sys.stdout.flush()
    click.echo(printable(text) if is_terminal(sys.stdout) else text.encode(), nl=False)


def show_json(value: object) -> None:
    """Print one object: dataclasses by their fields, ``null`` for infinities and NaN."""
    click.echo(_as_json(value, indent=2), file=sys.stdout)


def show_json_line(value: object) -> None:
    """Print one object on one line, now: a reader gets each result when it is there."""
    click.echo(_as_json(value), file=sys.stdout)
    sys.stdout.flush()


def _as_json(value: object, indent: int | None = None) -> str:
    """As JSON in which no character controls a terminal: JSON itself escapes those of ASCII only."""
    text = json.dumps(as_data(value), ensure_ascii=not is_utf8(sys.stdout), indent=indent, allow_nan=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_CONTROLS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Controls beyond ASCII's, separators of lines, and marks that change the direction of text."""


def as_data(value: object) -> Any:
    """Plain data for JSON."""
    match value:
        case StrEnum():
            return value.value
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): as_data(inner) for key, inner in value.items()}
        case WorkKey():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {f.name: as_data(getattr(value, f.name)) for f in fields(value)}
        case list() | tuple():
            return [as_data(inner) for inner in value]
        case _:
            return str(value)


def timestamped(spans: Line, seconds: float) -> Line:
    """The line with a time before it."""
    return (Span(f"{max(0.0, seconds):7.1f} s  ", Tone.FAINT), *spans)


def terminal_width() -> int:
    """The columns of the terminal that standard output is; 0 if it is none."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else 0


class TransientLines:
    """Lines at the end of standard error that the next ones overwrite; prints nothing on a stream that is no terminal."""

    def __init__(self) -> None:
        self.active = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._shown = 0

    @property
    def room(self) -> int:
        """How many lines the terminal holds, with one left for what stands above."""
        return max(1, shutil.get_terminal_size().lines - 1)

    def show(self, lines: Sequence[Line]) -> None:
        """Replace what is shown by these lines, cut to the terminal's width. More than there is room for are left out."""
        if not self.active or not lines:
            return
        width, coloured = max(20, shutil.get_terminal_size().columns - 1), shows_colour(sys.stderr)
        kept = [_painted(cut(spans, width), coloured=coloured) for spans in lines[: self.room]]
        sys.stderr.write(f"{self._erasure()}{chr(10).join(kept)}")
        sys.stderr.flush()
        self._shown = len(kept)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(self._erasure())
            sys.stderr.flush()
            self._shown = 0

    def _erasure(self) -> str:
        """The escape sequence that erases what is shown, with the cursor in its last line."""
        up = f"\x1b[{self._shown - 1}A" if self._shown > 1 else ""
        return f"\r{up}\x1b[J" if self._shown > 1 else "\r\x1b[2K"


def output_file(output: Path | None, default: str, force: bool, *, is_folder: bool = False) -> Path:
    """The file to write, or the folder. Raises ProblemError if it exists and is not to be overwritten."""
    target = output or Path(default)
    refuse_target(target, force, is_folder=is_folder)
    return target


def refuse_json_on_stdout(output: Path | None, as_json: bool) -> None:
    """Raises ProblemError if a file and ``--json`` would share standard output."""
    if output == STDOUT and as_json:
        raise ProblemError("--output - and --json both print on standard output: leave one of them out")


def refuse_target(target: Path, force: bool, *, is_folder: bool = False) -> None:
    """Raises ProblemError if the file exists and is not to be overwritten, or if no file can be there.

    ``is_folder``: the target is a folder to write into, which need not exist.
    """
    if target == STDOUT:
        return
    if not is_folder:
        if target.is_dir():
            raise ProblemError(f"{target} is a folder: name a file with --output")
        if not target.parent.is_dir():
            raise ProblemError(f"{target} cannot be written (no folder {target.parent}): choose another file with --output")
    if target.exists() and not force:
        raise ProblemError(f"{target} already exists: choose another file with --output, or overwrite it with --force")


def write_output(target: Path, text: str) -> None:
    """Write a file that the user named. Raises ProblemError if it cannot be written; leaves no part of a new file then."""
    if target == STDOUT:
        show_text(text)
        return
    is_new = not os.path.lexists(target)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        if is_new:
            with contextlib.suppress(OSError):  # a read-only file system
                target.unlink(missing_ok=True)
        raise ProblemError(f"{target} cannot be written ({error.strerror}): choose another file with --output") from error
