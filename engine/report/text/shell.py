"""Names of files and sessions in commands that the user may copy."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from engine.journal import store


def quoted(path: str) -> str:
    """The path as one word of a command line. One that begins with a dash would be read as an option: it gets ``./``.

    One that is not printable is written in bytes, as bash and zsh read them (``$'a\\x0ab'``): printed as it is, it would
    lose its control characters, and the command would name another file.
    """
    path = f"./{path}" if path.startswith("-") else path
    return quote(path) if path.isprintable() else f"$'{''.join(map(_escaped, os.fsencode(path)))}'"


def _escaped(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}"


def shell_name(folder: Path) -> str:
    """A session's short name, quoted for a shell. One that begins with a dash stands with its folder."""
    name = store.short_name(folder)
    return quoted(str(folder) if name.startswith("-") else name)
