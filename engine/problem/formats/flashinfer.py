"""FlashInfer trace sets: ``definitions/**.json``, ``workloads/**.jsonl``, ``solutions/**.json``, tensors below ``blob/``.

https://bench.flashinfer.ai/docs/flashinfer-trace. The tolerance is not in the data: its harness allows 0.01 absolute plus 0.01
relative, unless a configuration of the harness says otherwise.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.domain.errors import ProblemError
from engine.domain.model import Problem
from engine.domain.problem_format import FormatTolerance
from engine.problem.formats import building
from engine.problem.formats.definition_json import DefinitionJson, WorkloadJson
from engine.problem.formats.definitions import Cases, checked
from engine.problem.formats.documents import json_file, json_lines, shown

NAME = "flashinfer"
DEFINITIONS = "definitions"
_PEER = "FlashInfer-Bench"
_TOLERANCE = FormatTolerance(1e-2, 1e-2)
_MOST_FILES = 5000
_OP_TYPES = (
    "activation", "cascade", "dsa_paged", "fused_add_rmsnorm", "gdn", "gemm", "gemm_bf16", "gemm_fp4", "gemm_fp8", "gemm_mxfp8",
    "gqa_paged", "gqa_ragged", "grouped_gemm", "mamba_ssu", "mla_paged", "mla_ragged", "moe", "page", "quantize", "rmsnorm",
    "rope", "sampling", "generic",
)  # fmt: skip
"""How inputs are drawn depends on the category (``sampling``), so that a misspelt one would give other inputs."""


class _WorkloadLine(msgspec.Struct, frozen=True):
    """A line of a workloads' file."""

    definition: str
    workload: WorkloadJson


def root_of(definition: Path) -> Path | None:
    """The root of the set that a definition's file is in: the folder above ``definitions``."""
    return next((place.parent for place in definition.resolve().parents if place.name == DEFINITIONS), None)


def read_only(root: Path, origin: str) -> Problem:
    """The problem of a set with a single definition. Raises ProblemError listing the files of several."""
    files = _below(root / DEFINITIONS, "*.json")
    if not files:
        raise ProblemError(f"{root}: no definition below {DEFINITIONS}/: a FlashInfer trace set has *.json files there")
    if len(files) > 1:
        names = shown([str(path.relative_to(root)) for path in files], 6)
        raise ProblemError(f"{root}: {len(files)} definitions: name the file of one, {root}/… of {names}")
    return read(root, files[0], origin)


def read(root: Path, file: Path, origin: str) -> Problem:
    """The problem of one definition. Raises ProblemError."""
    written = json_file(file, DefinitionJson)
    if written.op_type not in _OP_TYPES:
        raise ProblemError(f"{file}: op_type: {_quoted(written.op_type)}: use {shown(_OP_TYPES, len(_OP_TYPES))} for any other")
    definition = checked(written, str(file), file.stem)
    twice = [p for p in _below(root / DEFINITIONS, f"{file.stem}.json") if p.resolve() != file.resolve()]
    if twice:
        raise ProblemError(f"{file}: a second definition of this name: {twice[0]}")
    cases = Cases(definition, building.stored_in(root, shorter=False))
    rows = []
    for path in _below(root / "workloads", "*.jsonl"):
        if path.stem != definition.name and not _mentions(path, definition.name):
            continue
        for number, trace in json_lines(path, _WorkloadLine):
            if trace.definition == definition.name:
                rows.append((f"{path}, line {number}: workload", trace.workload))
    if not rows:
        raise ProblemError(f"{root}: no workload of {definition.name} below workloads/")
    notes = building.add_workloads(cases, rows)
    return building.of_definition(cases, _PEER, NAME, origin, _TOLERANCE, root, notes)


def _quoted(op_type: str | None) -> str:
    return "missing" if op_type is None else f"{op_type[:60]!r} is unknown"


def _mentions(path: Path, name: str) -> bool:
    """Whether a file of another name may hold this definition's workloads. Cheap: the first line decides."""
    try:
        with path.open("rb") as file:
            return name.encode() in file.readline(1 << 16)
    except OSError:
        return False


def _below(folder: Path, pattern: str) -> list[Path]:
    if not folder.is_dir():
        return []
    found = []
    for path in folder.rglob(pattern):
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            found.append(path)
        if len(found) > _MOST_FILES:
            raise ProblemError(f"{folder}: more than {_MOST_FILES} files: name one definition's file")
    return sorted(found)
