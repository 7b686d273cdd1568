"""Decides which format a folder or file is in, and reads it. Imports no torch and runs none of its code.

- kernelbot: a folder with ``task.yml``, or that file or ``reference.py`` in it
- SOL-ExecBench: a folder with ``definition.json``, or that file, ``workload.jsonl`` or ``reference.py`` in it
- FlashInfer trace set: a definition's file below ``definitions/``, or a set's root if it has one definition
- KernelBench-Hard: a folder with ``reference.py`` and ``shapes.py`` or ``problem.yaml``, or one of these files
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from engine.domain.model import Problem
from engine.journal.regular_file import open_regular
from engine.problem.formats import flashinfer, kernelbench_hard, kernelbot, sol

_REFERENCE = "reference.py"
_MOST_LOOKED_AT = 200


def read(path: Path) -> Problem | None:
    """The problem at ``path``; ``None`` if it is in none of these formats. Raises ProblemError if it is and cannot be read."""
    folder = path if path.is_dir() else path.parent
    named = None if path.is_dir() else path.name
    if named in (None, kernelbot.TASK, _REFERENCE) and (folder / kernelbot.TASK).is_file():
        return kernelbot.read(folder, str(path))
    if named in (None, sol.DEFINITION, sol.WORKLOADS, _REFERENCE) and (folder / sol.DEFINITION).is_file():
        return sol.read(folder, str(path))
    if named is None and (folder / flashinfer.DEFINITIONS).is_dir():
        return flashinfer.read_only(folder, str(path))
    if named is not None and path.suffix == ".json" and (root := flashinfer.root_of(path)) is not None:
        return flashinfer.read(root, path, str(path))
    if named in (None, *kernelbench_hard.FILES) and kernelbench_hard.is_one(folder):
        return kernelbench_hard.read(folder, str(path if named in (None, _REFERENCE) else folder))
    return None


def problem_in(folder: Path) -> Path | None:
    """A problem that a folder contains, to name as an example; ``None`` if none shows at once. Names decide, and few bytes."""
    return next(_problems_in(folder), None)


def _problems_in(folder: Path) -> Iterator[Path]:
    if flashinfer.root_of(folder / "definition") is not None:
        yield from sorted(islice(folder.rglob("*.json"), _MOST_LOOKED_AT))
    for name in (kernelbot.TASK, sol.DEFINITION, _REFERENCE):
        yield from (file.parent for file in sorted(islice(folder.glob(f"*/{name}"), _MOST_LOOKED_AT)))
    yield from (file for file in sorted(islice(folder.glob("*.py"), _MOST_LOOKED_AT)) if _is_kernelbench(file))


def _is_kernelbench(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            return b"def get_init_inputs" in opened.read(1 << 16)
    except OSError:
        return False
