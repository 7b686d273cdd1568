"""The problems of other formats below a folder, and the kernels that come with them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kernelbench_files import Entry
from engine.domain.errors import ProblemError
from engine.problem.formats import flashinfer, kernelbot, sol, solutions

OWN = "own"
_KERNELBOT_KERNELS = ("submission.py", "submissions/*.py", "solutions/**/*.py")


def chosen_entries(
    paths: Sequence[Path], names: Sequence[str], languages: Sequence[str], *, own: bool, solved: bool
) -> list[Entry]:
    """An entry for each problem with its own model as the kernel, and one for each solution. Raises ProblemError for none.

    ``names``: parts of entries' names, one of which each must contain. ``languages``: those of the solutions to judge.
    """
    found: dict[Path, Entry] = {}
    for path in paths:
        for problem in _problems(path):
            name = _name(problem, path)
            if own:
                found.setdefault(problem, Entry(0, 0, name, problem, OWN))
            for kernel in _solutions(problem, languages) if solved else ():
                found.setdefault(kernel, Entry(0, 0, f"{name} {_label(kernel, problem)}", problem, str(kernel)))
    kept = sorted(entry for entry in found.values() if not names or any(part.lower() in entry.name.lower() for part in names))
    if not kept:
        what = f"none of {len(found)} is chosen" if found else "no problem of FlashInfer, SOL-ExecBench or kernelbot"
        raise ProblemError(f"{', '.join(map(str, paths))}: {what}")
    return kept


def _problems(path: Path) -> Iterator[Path]:
    """The files of the problems at or below a path."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.name in (kernelbot.TASK, sol.DEFINITION) or (file.suffix == ".json" and _is_flashinfer(file)):
            yield file


def _is_flashinfer(file: Path) -> bool:
    return file.is_file() and flashinfer.root_of(file) is not None


def _name(problem: Path, root: Path) -> str:
    """The problem's place below the path that was given."""
    place = problem.parent if problem.name in (kernelbot.TASK, sol.DEFINITION) else problem.with_suffix("")
    base = root if root.is_dir() else root.parent
    relative = place.resolve().relative_to(base.resolve())
    return str(relative) if relative.parts else place.resolve().name


def _label(kernel: Path, problem: Path) -> str:
    folder = problem.parent
    return str(kernel.relative_to(folder).with_suffix("")) if kernel.is_relative_to(folder) else kernel.stem


def _solutions(problem: Path, languages: Sequence[str]) -> Iterator[Path]:
    """The kernels that come with a problem."""
    if problem.name == kernelbot.TASK:
        for pattern in _KERNELBOT_KERNELS:
            yield from (file for file in sorted(problem.parent.glob(pattern)) if _defines_kernel(file))
    elif problem.name == sol.DEFINITION:
        yield from (file for file in sorted(problem.parent.glob("solution*.json")) if _spoken(file, "", languages))
    elif (root := flashinfer.root_of(problem)) is not None:
        name = str(_plain(problem).get("name", problem.stem))
        yield from (file for file in sorted((root / "solutions").rglob("*.json")) if _spoken(file, name, languages))


def _defines_kernel(file: Path) -> bool:
    """Whether a file is a submission; one that does not parse is, and its refusal says why."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return True
    return any(getattr(node, "name", getattr(node, "id", "")) == solutions.SUBMISSION for node in ast.walk(tree))


def _spoken(file: Path, definition: str, languages: Sequence[str]) -> bool:
    """Whether a solution is for this definition, in these languages only."""
    plain = _plain(file)
    spec = plain.get("spec")
    if not isinstance(spec, dict) or (definition and plain.get("definition") != definition):
        return False
    return set(spec.get("languages") or [spec.get("language")]) <= set(languages)


def _plain(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
