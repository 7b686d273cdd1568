"""Paths as they come into a field: typed, pasted, or dropped by a file manager."""

from __future__ import annotations


def typed_path(text: str) -> str:
    """The path without the quotes that shells and file managers put around one with spaces."""
    text = text.strip()
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"" else text
