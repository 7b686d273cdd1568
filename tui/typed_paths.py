"""Paths as they come into a field: typed, pasted, or dropped by a file manager."""

from __future__ import annotations

import shlex


def typed_path(text: str) -> str:
    """The path without the quotes or backslashes that shells, terminals and file managers put around one with spaces."""
    text = text.strip()
    try:
        words = shlex.split(text)
    except ValueError:
        return text  # an apostrophe in a name
    return words[0] if len(words) == 1 else text
