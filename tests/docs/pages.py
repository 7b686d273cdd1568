"""The documentation as data: its pages, the fenced blocks in them, and what the comment above a block says of it.

A comment such as ``<!-- slow, exits: 1 -->`` directly above a block can hold:

- ``needs: gpu``, ``needs: key`` or ``needs: terminal``: not run;
- ``slow``: run by the slow tests, with the real bench;
- ``fresh``: run on a new copy of the prepared session;
- ``exits: 3 0``: exit statuses of its commands in order (``0/1``: either), 0 where nothing is said;
- ``file: NAME``: no commands, but a file that later commands use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = tuple(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))
PAGES = (*ROOT_PAGES, *sorted((ROOT / "docs").rglob("*.md")))
SHELL = "sh"
NEEDS = frozenset({"gpu", "key", "terminal"})
WORDS = frozenset({"needs", "slow", "fresh", "exits", "file"})

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*?) -->\n)?(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)\n(?P=fence)$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block: ``note`` holds the comment above it as word → value."""

    page: Path
    line: int
    language: str
    text: str
    note: dict[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> list[str]:
        """One command a line; a line that ends in a backslash goes on in the next one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]

    @property
    def statuses(self) -> list[set[int]]:
        """The exit statuses that each command may have."""
        given = [{int(one) for one in word.split("/")} for word in self.note.get("exits", "").split()]
        return given + [{0}] * (len(self.commands) - len(given))

    @property
    def runs(self) -> bool:
        """Whether a test on any machine can run it."""
        return self.language == SHELL and "needs" not in self.note


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"], _note(found["note"]))
        for found in _BLOCK.finditer(text)
    ]


def _note(text: str | None) -> dict[str, str]:
    parts = [part.partition(":") for part in (text or "").split(",") if part.strip()]
    return {name.strip(): value.strip() for name, _, value in parts}


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def name(page: Path) -> str:
    """The page in the name of a test."""
    return str(page.relative_to(ROOT).with_suffix(""))
