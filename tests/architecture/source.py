"""The program's modules, definitions and imports, for these tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "tui")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def files() -> list[Path]:
    """Every module of the program."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    """``engine/trial/bench.py`` → ``engine.trial.bench``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def definitions() -> tuple[tuple[Path, Definition], ...]:
    """Every class, function and method, with the module that defines it."""
    return tuple((path, node) for path in files() for node in ast.walk(tree(path)) if isinstance(node, Definition))
