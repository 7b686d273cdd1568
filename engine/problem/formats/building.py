"""Makes a ``Problem`` of what a reader has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.domain.errors import ProblemError
from engine.domain.model import Problem, Workload
from engine.domain.problem_format import FormatTolerance, ProblemFormat
from engine.problem.files import reference_code
from engine.problem.files.digest import content_digest
from engine.problem.formats import definitions, licences
from engine.problem.formats.definition_json import InputJson, TensorJson, WorkloadJson
from engine.problem.formats.definitions import Cases
from engine.problem.formats.documents import inside
from engine.problem.formats.safetensors import read_tensor

BENCHMARKS = "benchmarks"
"""The suite of what a format times and ranks."""
MOST_ATTACHED = 24 << 20
"""Characters of all attachments of a problem: they are in every session's journal."""


def default_workloads(sizes: Mapping[str, int], benchmarks: Sequence[str]) -> tuple[str, str]:
    """(the workload to judge unless one is named, the smallest one): the former is of the median size of the benchmarks."""
    ranked = sorted(benchmarks or sizes, key=lambda name: sizes[name])
    return ranked[len(ranked) // 2], min(sizes, key=lambda name: sizes[name])


def problem(
    name: str,
    title: str,
    origin: str,
    text: str,
    workloads: Sequence[Workload],
    attachments: Mapping[str, str],
    origin_format: ProblemFormat,
) -> Problem:
    """The problem, its generated reference checked to be a KernelBench one."""
    label = f"{origin} ({origin_format.name})"
    reference_code.check_entry_points(reference_code.parse(text, label), label)
    given = tuple(workloads)
    suites = {BENCHMARKS: origin_format.benchmarks} if len(origin_format.benchmarks) > 1 else {}
    return Problem(
        name=name, title=title or name.replace("_", " "), reference=text,
        digest=content_digest(text, given, {}, {}, attachments, suites), workloads=given, holdouts={}, origin=origin,
        attachments=attachments, origin_format=origin_format, suites=suites,
    )  # fmt: skip


def add_workloads(cases: Cases, rows: Sequence[tuple[str, WorkloadJson]]) -> tuple[str, ...]:
    """Add (place, workload) rows; returns what was left out, because its stored tensors are too large to keep."""
    left_out = 0
    for where, row in rows:
        if sum(map(len, cases.attachments.values())) > MOST_ATTACHED:
            left_out += 1
            continue
        cases.add(row, where)
    if not left_out:
        return ()
    return (f"{left_out} of {len(rows)} workloads left out: their stored tensors have more than {MOST_ATTACHED >> 20} MiB",)


def stored_in(root: Path, *, shorter: bool) -> definitions.StoredTensor:
    """Reads safetensors inputs below ``root``. With ``shorter`` a path may begin with folders that lie above ``root``."""

    def stored(how: InputJson, where: str, tensor: TensorJson, shape: tuple[int, ...]) -> str:
        assert how.path is not None, "checked by the caller"
        assert how.tensor_key is not None, "checked by the caller"
        path = _blob(root, how.path, f"{where}.path", shorter)
        return read_tensor(path, how.tensor_key, where, tensor.dtype, shape)

    return stored


def _blob(root: Path, relative: str, where: str, shorter: bool) -> Path:
    try:
        return inside(root, relative, where)
    except ProblemError:
        parts = Path(relative).parts
        for start in range(1, len(parts)) if shorter and ".." not in parts else ():
            shortened = str(Path(*parts[start:]))
            if (root / shortened).is_file():
                return inside(root, shortened, where)
        raise


def of_definition(
    cases: Cases, peer: str, format_name: str, origin: str, tolerance: FormatTolerance, folder: Path, notes: tuple[str, ...]
) -> Problem:
    """The problem of a definition with its workloads."""
    definition, written = cases.definition, cases.definition.written
    sizes = {case.workload.name: case.size for case in cases.cases}
    names = tuple(sizes)
    default, small = default_workloads(sizes, names)
    found = ProblemFormat(
        name=format_name, entry=definition.name, default=default, small=small, benchmarks=names, axes=definition.axes,
        inputs=definitions.tensors(written.inputs), outputs=definitions.tensors(written.outputs),
        ids={case.workload.name: case.uuid for case in cases.cases},
        rows={case.workload.name: case.row for case in cases.cases},
        tolerances={case.workload.name: case.tolerance or tolerance for case in cases.cases},
        licence=licences.find(folder), notes=notes, file=definition.file,
    )  # fmt: skip
    workloads = [case.workload for case in cases.cases]
    return problem(
        definition.name, written.description or "", origin, cases.reference(peer), workloads, cases.attachments, found
    )
