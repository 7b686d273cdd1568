"""Names of files in commands that the user may copy."""

from __future__ import annotations

from shlex import quote


def quoted(path: str) -> str:
    """The path as one word of a command line. One that begins with a dash would be read as an option: it gets ``./``."""
    return quote(f"./{path}" if path.startswith("-") else path)
