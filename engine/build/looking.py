"""What a look at a source finds: one line of it, and why it stands out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` is the name or the place as it is written; ``line`` counts from 1."""

    line: int
    what: str
    why: str

    def told(self, name: str) -> str:
        """One line for people."""
        return f"{name}:{self.line}: {self.what}: {self.why}"
