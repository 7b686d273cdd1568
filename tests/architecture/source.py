"""The program's modules, definitions and imports, for these tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
def definitions() -> tuple[tuple[Path, Definition], ...]:
    """Every class, function and method, with the module that defines it."""
    return tuple((path, node) for path in files() for node in _defined_in(ast.parse(path.read_text(encoding="utf-8"))))


def _defined_in(node: ast.AST) -> Iterator[Definition]:
    """Those of a module or a statement; expressions define nothing, and are most of a tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        if not isinstance(child, ast.expr):
            yield from _defined_in(child)
