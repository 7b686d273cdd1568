"""A shell in a process of its own that steers a session, one command after the other. Imports little: it is started often."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from espalier import main


def note(folder: Path, who: str, count: int) -> None:
    """``espalier session note`` as often as asked. Raises AssertionError if one is refused."""
    for number in range(count):
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["session", "note", str(folder), f"{who} {number}"]) == 0
