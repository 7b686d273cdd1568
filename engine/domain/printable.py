"""Text of strangers for a terminal: what a compiler quotes of a kernel, what a kernel's exception says, the name of a file."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with everything but line feeds and tabs that a terminal would act on shown as a question mark."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
