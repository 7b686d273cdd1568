"""The files of a KernelBench checkout, and the candidates of a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import ProblemError

_LEVEL = re.compile(r"level_?(\d+)$")
_NUMBERED = re.compile(r"(\d+)_")
_SUFFIXES = (".py", ".cu", ".cpp")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One file: its level and number (0 where its name has none), and its name in results, e.g. ``level1/23_Softmax``."""

    level: int
    number: int
    name: str
    path: Path
    kernel: str = ""
    """The kernel to judge for it, instead of the one that all files have: ``own`` or a kernel's file."""


def chosen_entries(path: Path, levels: Sequence[int], numbers: Sequence[int], names: Sequence[str]) -> list[Entry]:
    """The chosen files, in order of level and number. Raises ProblemError if there are none."""
    files = [path] if path.is_file() else sorted(_problem_files(path))
    entries = sorted(map(_entry, files))
    kept = [
        entry for entry in entries
        if (not levels or entry.level in levels) and (not numbers or entry.number in numbers)
        and (not names or any(part.lower() in entry.name.lower() for part in names))
    ]  # fmt: skip
    if not kept:
        what = "no problem file" if not entries else f"none of {len(entries)} problem files is chosen"
        raise ProblemError(f"{path}: {what}; give a KernelBench checkout or one of its level folders")
    return kept


def _problem_files(path: Path) -> list[Path]:
    """The numbered files of a level folder, or of all level folders below ``path``."""
    for folder in (path, path / "KernelBench"):
        if own := [file for file in folder.glob("*.py") if _NUMBERED.match(file.name)]:
            return own
        if below := [file for file in folder.glob("level*/*.py") if _NUMBERED.match(file.name)]:
            return below
    return []


def _entry(file: Path) -> Entry:
    level, number = _LEVEL.search(file.resolve().parent.name), _NUMBERED.match(file.name)
    name = f"level{level.group(1)}/{file.stem}" if level else file.stem
    return Entry(int(level.group(1)) if level else 0, int(number.group(1)) if number else 0, name, file)


def candidate(folder: Path, name: str) -> Path | None:
    """The kernel for a problem: ``level1/NAME``, ``NAME``, or a file of a KernelBench run, with any suffix of a kernel."""
    level, _, stem = name.rpartition("/")
    number = _NUMBERED.match(stem)
    stems = [name, stem]
    if number and level:
        digits = level.removeprefix("level")
        stems += [f"level_{digits}_problem_{number.group(1)}_sample_{n}_kernel" for n in range(10)]
    paths = (folder / f"{one}{suffix}" for one in stems for suffix in _SUFFIXES)
    return next((path for path in paths if path.is_file()), None)
