"""KernelBench-Hard: a KernelBench ``reference.py`` with ``shapes.py`` (SHAPES: what a shape sets) and ``problem.yaml``.

https://github.com/Infatoshi/kernelbench.com. ``problem.yaml`` has a tolerance by the output's dtype (``float32`` or
``torch.float32``): a number, or atol and rtol. A shape's ``batch`` sets the reference's ``batch`` or ``BATCH``.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from engine.domain.errors import ProblemError
from engine.domain.model import Number, Problem, Workload
from engine.domain.problem_format import FormatTolerance, ProblemFormat
from engine.problem.files import reference_code
from engine.problem.formats import building, licences
from engine.problem.formats.documents import as_shape, literals, text_of, yaml_file

NAME = "kernelbench-hard"
FILES = _REFERENCE, _SHAPES, _PROBLEM = "reference.py", "shapes.py", "problem.yaml"
_DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "bfloat16", "fp8_e4m3": "bfloat16", "bfloat16": "bfloat16",
}  # fmt: skip


class _Devices(msgspec.Struct, frozen=True):
    """Read before the rest, which is another format's where there are several GPUs."""

    world_size: int = 1


class _Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tolerance whose parts differ."""

    atol: float = 0.0
    rtol: float = 0.0


class _ProblemYaml(msgspec.Struct, frozen=True):
    name: str = ""
    display_name: str = ""
    precision: str = ""
    tolerance: dict[str, float | _Limits] = {}
    hardware: list[str] = []


def is_one(folder: Path) -> bool:
    """Whether a folder is a problem of this kind."""
    if not (folder / _REFERENCE).is_file():
        return False
    return (folder / _SHAPES).is_file() or (folder / _PROBLEM).is_file()


def read(folder: Path, origin: str) -> Problem:
    """The problem in a folder. Raises ProblemError."""
    file = str(folder / _REFERENCE)
    text = text_of(folder / _REFERENCE)
    tree = reference_code.parse(text, file)
    reference_code.check_entry_points(tree, file)
    yaml = folder / _PROBLEM
    if yaml.is_file() and (count := yaml_file(yaml, _Devices).world_size) > 1:
        raise ProblemError(f"{yaml}: world_size: the problem needs {count} GPUs at once: only one device is supported")
    written = yaml_file(yaml, _ProblemYaml) if yaml.is_file() else _ProblemYaml()
    workloads = _workloads(folder / _SHAPES, reference_code.assigned_names(tree))
    names = tuple(w.name for w in workloads)
    sizes = {w.name: math.prod(max(1, abs(int(v))) for v in w.settings.values()) for w in workloads}
    default, small = building.default_workloads(sizes, names)
    found = ProblemFormat(
        name=NAME, entry=written.name or folder.resolve().name, default=default, small=small, benchmarks=names,
        tolerances=_tolerances(written, names), devices=tuple(written.hardware), licence=licences.find(folder),
    )  # fmt: skip
    return building.problem(folder.resolve().name, written.display_name, origin, text, workloads, {}, found)


def _workloads(shapes: Path, assigned: frozenset[str]) -> tuple[Workload, ...]:
    if not shapes.is_file():
        return (Workload("full"),)
    rows = as_shape(literals(shapes, "SHAPES"), list[dict[str, bool | int | float]], f"{shapes}: SHAPES")
    if not rows:
        raise ProblemError(f"{shapes}: SHAPES: empty")
    workloads: list[Workload] = []
    for number, row in enumerate(rows, 1):
        settings: dict[str, Number] = {}
        for name, value in row.items():
            own = name if name in assigned else name.upper()
            if own not in assigned:
                raise ProblemError(f"{shapes}: SHAPES.{number}.{name}: {_REFERENCE} does not assign this name at its top level")
            if own in settings:
                raise ProblemError(f"{shapes}: SHAPES.{number}.{name}: sets {own} a second time")
            if not reference_code.is_usable(value):
                raise ProblemError(f"{shapes}: SHAPES.{number}.{name}: not a finite number of at most 64 bits")
            settings[own] = int(value) if isinstance(value, bool) else value
        workloads.append(Workload(f"shape{number}", settings))
    return tuple(workloads)


def _tolerances(written: _ProblemYaml, names: tuple[str, ...]) -> dict[str, FormatTolerance]:
    if not written.tolerance:
        return {}
    dtype = _DTYPES.get(written.precision, written.precision)
    given = {
        name.removeprefix("torch."): one if isinstance(one, _Limits) else _Limits(one, one)
        for name, one in written.tolerance.items()
    }
    allowed = given.get(dtype) or max(given.values(), key=lambda one: (one.atol, one.rtol))
    return dict.fromkeys(names, FormatTolerance(allowed.atol, allowed.rtol))
