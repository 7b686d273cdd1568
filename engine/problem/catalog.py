"""Finds problems and reads them from disk: shipped, a folder, or a single file. Runs nothing, never imports torch."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from engine.domain.errors import ProblemError
from engine.domain.model import Dialect, Number, Problem, Workload
from engine.journal.shipped import shipped_folder
from engine.problem.files import reference_code, strict_toml
from engine.problem.files.digest import content_digest
from engine.problem.files.strict_toml import TomlError
from engine.problem.formats import recognise

REFERENCE = "reference.py"
TABLE = "problem.toml"
_LARGEST_FILE = 1 << 20
_LONGEST_QUOTE = 80


def problems_root() -> Path:
    """The folder of the shipped problems."""
    return shipped_folder("problems")


def shipped_names() -> tuple[str, ...]:
    """Names of the shipped problems, sorted."""
    root = problems_root()
    if not root.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in root.iterdir() if (entry / REFERENCE).is_file()))


def shipped() -> tuple[Problem, ...]:
    """The shipped problems, sorted by name."""
    return tuple(_from_folder(problems_root() / name, name) for name in shipped_names())


def find(spec: str) -> Problem:
    """The problem that ``spec`` names: a shipped name, a folder with a ``reference.py``, a KernelBench file, or a folder or
    file of another format (see ``formats.recognise``).

    A shipped name takes precedence over a folder of that name; ``./name`` means the folder. A file called ``reference.py``
    means its folder. Raises ProblemError when there is none, or when it is not a problem, with the reason.
    """
    if spec in shipped_names():
        return _from_folder(problems_root() / spec, spec)
    try:
        path = Path(spec).expanduser()
        if spec and path.exists() and (found := recognise.read(path)) is not None:
            return found
        if spec and path.is_dir():
            return _from_folder(path, str(path))
        if spec and path.is_file():
            return _from_folder(path.parent, str(path)) if path.name == REFERENCE else _from_file(path)
        exists = bool(spec) and path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise ProblemError(f"cannot look up problem {_quoted(spec)} ({_reason(error)}): {_ADVICE}") from error
    raise ProblemError(_unknown(spec, exists))


def folder(problem: Problem) -> Path | None:
    """The folder of a problem's playbook and seeds; ``None`` for a single file, or if it is not on this machine."""
    if problem.origin in shipped_names():
        return problems_root() / problem.origin
    path = Path(problem.origin)
    try:
        if path.name == REFERENCE:
            path = path.parent
        return path if problem.origin and (path / REFERENCE).is_file() else None
    except (OSError, ValueError):
        return None


def workload_for(problem: Problem, name: str) -> Workload:
    """The workload called ``name``; ``full`` if the problem has no ``small`` one.

    A problem of another format has neither: ``full`` is its default workload then, ``small`` its smallest. Raises ProblemError
    listing the problem's workloads.
    """
    workload = problem.workload(name)
    if workload is None and problem.origin_format is not None and name in ("full", "small"):
        workload = problem.workload(problem.origin_format.default if name == "full" else problem.origin_format.small)
    if workload is None and name == "small":
        workload = problem.workload("full")
    if workload is None:
        there = ", ".join(w.name for w in problem.workloads)
        raise ProblemError(f"unknown workload {_quoted(name)} of problem {problem.name}: choose one of {there}")
    return workload


def suite_for(problem: Problem, name: str) -> tuple[Workload, ...]:
    """The workloads of the suite called ``name``. Raises ProblemError listing the problem's suites."""
    if name not in problem.suites:
        there = ", ".join(f"{suite} ({len(names)} workloads)" for suite, names in problem.suites.items())
        advice = f"choose one of {there}" if there else "it has none; name one in problem.toml, [suites]"
        raise ProblemError(f"unknown suite {_quoted(name)} of problem {problem.name}: {advice}")
    return tuple(workload_for(problem, workload) for workload in problem.suites[name])


def workloads_for(problem: Problem, workload: str, suite: str, default: str) -> tuple[Workload, ...]:
    """What a kernel is judged on: the suite's workloads, else the one workload, else the one called ``default``.

    Raises ProblemError if both are named, or either is unknown.
    """
    if suite and workload:
        raise ProblemError("--suite and --workload exclude each other: a suite names its workloads")
    return suite_for(problem, suite) if suite else (workload_for(problem, workload or default),)


_ADVICE = "`espalier problems` lists those that ship; a folder with reference.py or a KernelBench file works too"

_FORMATS = (
    "a problem is a Python file in KernelBench's format, a folder with reference.py, task.yml or definition.json, "
    "or a FlashInfer definition below definitions/"
)
_DATA = (".json", ".jsonl", ".yml", ".yaml", ".toml", ".md", ".ipynb")
_NOT_PYTHON = frozenset((*_DATA, *(dialect.suffix for dialect in Dialect if not dialect.in_python)))


def _unknown(spec: str, exists: bool) -> str:
    if exists:
        return f"problem {_quoted(spec)} is neither a file nor a folder: {_ADVICE}"
    if spec.endswith(".py") or "/" in spec or "\\" in spec:
        return f"problem file or folder {_quoted(spec)} not found: {_ADVICE}"
    near = difflib.get_close_matches(spec.lower(), shipped_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else _ADVICE
    return f"unknown problem {_quoted(spec)}: {hint}"


def _quoted(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST_QUOTE else f"{shown[: _LONGEST_QUOTE - 2]}…'"


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


class _ProblemToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``problem.toml``."""

    title: str = ""
    """A line that says what the problem computes."""
    workloads: dict[str, dict[str, Number]] = {}
    """Workload → values of the module-level numbers of ``reference.py``, its settings."""
    holdouts: dict[str, list[dict[str, Number]]] = {}
    """Workload → further settings on which its kernels are verified, not timed."""
    bounds: dict[str, dict[str, list[Number]]] = {}
    """Workload → setting → lowest and highest value, and a step if given, of the hold-out shape drawn at random."""
    suites: dict[str, list[str]] = {}
    """Suite → the workloads that it judges together."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """The declarations of ``problem.toml``; empty without the file."""

    title: str = ""
    workloads: tuple[Workload, ...] = ()
    holdouts: Mapping[str, tuple[Workload, ...]] = field(default_factory=dict)
    bounds: Mapping[str, Mapping[str, tuple[Number, ...]]] = field(default_factory=dict)
    suites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _from_folder(path: Path, origin: str) -> Problem:
    if not (path / REFERENCE).is_file():
        inner = recognise.problem_in(path)
        if inner is not None:
            raise ProblemError(f"folder {_quoted(str(path))} is not a problem but contains some: name one, such as {inner}")
        raise ProblemError(f"folder {_quoted(str(path))} has no {REFERENCE}: add one to make it a problem")
    text = _read(path / REFERENCE)
    table_path = path / TABLE
    declared = _declared(_read(table_path), str(table_path)) if table_path.is_file() else _Declared()
    return _problem(path.resolve().name, origin, text, declared, (str(path / REFERENCE), str(table_path)))


def _from_file(path: Path) -> Problem:
    if path.suffix.lower() in _NOT_PYTHON:
        raise ProblemError(f"{path}: no problem: {_FORMATS}")
    return _problem(path.stem, str(path), _read(path), _Declared(), (str(path), ""))


def _problem(name: str, origin: str, text: str, declared: _Declared, files: tuple[str, str]) -> Problem:
    reference, table_file = files
    if not text.strip():
        raise ProblemError(f"{reference}: empty file: a problem defines {', '.join(reference_code.ENTRY_POINTS)}")
    tree = reference_code.parse(text, reference)
    reference_code.check_entry_points(tree, reference)
    assigned = reference_code.assigned_names(tree)
    for workload in (*declared.workloads, *(h for hs in declared.holdouts.values() for h in hs)):
        for setting in workload.settings:
            if setting not in assigned:
                raise ProblemError(
                    f"{table_file}: workload {workload.name} sets {setting}, which {REFERENCE} does not assign "
                    "at its top level: correct the name in one of them"
                )
    for bounded, bounds in declared.bounds.items():
        for setting in bounds:
            if setting not in assigned:
                raise ProblemError(
                    f"{table_file}: bounds.{bounded} sets {setting}, which {REFERENCE} does not assign at its top level: "
                    "correct the name in one of them"
                )
    workloads = declared.workloads or (Workload("full", reference_code.plain_numbers(tree)),)
    return Problem(
        name=name,
        title=declared.title or name.strip("_").replace("_", " "),
        reference=text,
        digest=content_digest(text, workloads, declared.holdouts, declared.bounds, {}, declared.suites),
        workloads=workloads,
        holdouts=declared.holdouts,
        origin=origin,
        bounds=declared.bounds,
        suites=declared.suites,
    )


def _read(path: Path) -> str:
    """A text file's contents with Unix line ends; ProblemError when it is not text or cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ProblemError(f"{path}: cannot read the file ({_reason(error)}): check its permissions") from error
    if len(data) > _LARGEST_FILE:
        raise ProblemError(f"{path}: larger than 1 MiB: too large for a reference")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ProblemError(f"{path}: UTF-16 text: save it as UTF-8")
    if b"\0" in data:
        raise ProblemError(f"{path}: a binary file: a problem is Python text in KernelBench's format")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProblemError(f"{path}, line {line}: not UTF-8 text: save it as UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _declared(text: str, origin: str) -> _Declared:
    try:
        written = strict_toml.decode(text, _ProblemToml)
        workloads = {
            name: Workload(name, _finite(settings, f"workloads.{name}")) for name, settings in written.workloads.items()
        }
        holdouts: dict[str, tuple[Workload, ...]] = {}
        for name, entries in written.holdouts.items():
            if name not in workloads:
                raise TomlError(f"holdouts.{name} has no workload: add [workloads.{name}] or rename it")
            holdouts[name] = tuple(
                Workload(
                    f"{name}-holdout-{number}",
                    {**workloads[name].settings, **_finite(settings, f"holdouts.{name}.{number}")},
                )
                for number, settings in enumerate(entries, 1)
            )
        bounds = {name: _bounds(name, limits, workloads) for name, limits in written.bounds.items()}
        suites = {name: _suite(name, members, workloads) for name, members in written.suites.items()}
    except TomlError as error:
        raise ProblemError(f"{origin}: {error}") from error
    return _Declared(written.title, tuple(workloads.values()), holdouts, bounds, suites)


def _suite(name: str, members: Sequence[str], workloads: Mapping[str, Workload]) -> tuple[str, ...]:
    if not members:
        raise TomlError(f"suites.{name} is empty: name its workloads, or remove it")
    for place, member in enumerate(members):
        if member not in workloads:
            raise TomlError(f"suites.{name}: no workload is called {_quoted(member)}: add [workloads.{member}] or rename it")
        if member in members[:place]:
            raise TomlError(f"suites.{name} names the workload {_quoted(member)} twice: remove one")
    return tuple(members)


def _bounds(
    name: str, written: Mapping[str, Sequence[Number]], workloads: Mapping[str, Workload]
) -> dict[str, tuple[Number, ...]]:
    if name not in workloads:
        raise TomlError(f"bounds.{name} has no workload: add [workloads.{name}] or rename it")
    found: dict[str, tuple[Number, ...]] = {}
    for setting, limits in written.items():
        rising = len(limits) in _LIMITS and all(map(reference_code.is_usable, limits)) and limits[0] <= limits[1]
        if not rising or any(step <= 0 for step in limits[2:]):
            raise TomlError(
                f"bounds.{name}.{setting}: expected [lowest, highest] or [lowest, highest, step], got "
                f"{[number if reference_code.is_usable(number) else '…' for number in limits]}"
            )
        found[setting] = tuple(limits)
    return found


_LIMITS = (2, 3)
"""Numbers that state bounds: the lowest value, the highest, and perhaps the step."""


def _finite(settings: dict[str, Number], where: str) -> dict[str, Number]:
    for name, number in settings.items():
        if not reference_code.is_usable(number):
            shown = "more" if isinstance(number, int) else number
            raise TomlError(f"{where}.{name}: expected a finite number of at most 64 bits, got {shown}")
    return settings
