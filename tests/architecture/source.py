"""The program's modules, definitions and imports, for these tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "tui")

_DEFINITION = re.compile(r"\s*(?:async )?(?P<kind>def|class) (?P<name>\w+)[\[(:]")


@dataclass(frozen=True, slots=True)
class Definition:
    """A class, a function or a method."""

    name: str
    line: int
    is_class: bool


def files() -> list[Path]:
    """Every module of the program."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """``engine/trial/bench.py`` → ``engine.trial.bench``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def definitions() -> tuple[tuple[Path, Definition], ...]:
    """Every class, function and method, with the module that defines it. Found as text: parsing takes eight seconds."""
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if named := _DEFINITION.match(line):
                found.append((path, Definition(named["name"], number, named["kind"] == "class")))
    return tuple(found)
