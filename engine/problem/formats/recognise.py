"""Decides which format a folder or file is in, and reads it. Imports no torch and runs none of its code.

- kernelbot: a folder with ``task.yml``, or that file
- SOL-ExecBench: a folder with ``definition.json``, or that file
- FlashInfer trace set: a definition's file below ``definitions/``, or a set's root if it has one definition
- KernelBench-Hard: a folder with ``reference.py`` and ``shapes.py`` or ``problem.yaml``
"""

from __future__ import annotations

from pathlib import Path

from engine.domain.model import Problem
from engine.problem.formats import flashinfer, kernelbench_hard, kernelbot, sol


def read(path: Path) -> Problem | None:
    """The problem at ``path``; ``None`` if it is in none of these formats. Raises ProblemError if it is and cannot be read."""
    folder = path if path.is_dir() else path.parent
    named = None if path.is_dir() else path.name
    if named in (None, kernelbot.TASK) and (folder / kernelbot.TASK).is_file():
        return kernelbot.read(folder, str(path))
    if named in (None, sol.DEFINITION, sol.WORKLOADS) and (folder / sol.DEFINITION).is_file():
        return sol.read(folder, str(path))
    if named is None and (folder / flashinfer.DEFINITIONS).is_dir():
        return flashinfer.read_only(folder, str(path))
    if named is not None and path.suffix == ".json" and (root := flashinfer.root_of(path)) is not None:
        return flashinfer.read(root, path, str(path))
    if named in (None, "reference.py") and kernelbench_hard.is_one(folder):
        return kernelbench_hard.read(folder, str(path))
    return None
