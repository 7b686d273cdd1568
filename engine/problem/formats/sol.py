"""SOL-ExecBench problems: a folder with ``definition.json`` and ``workload.jsonl``; ``solution*.json`` are kernels.

https://github.com/NVIDIA/SOL-ExecBench, docs/definition.md and docs/workload.md. Each workload has its own tolerance.
"""

from __future__ import annotations

from pathlib import Path

from engine.domain.errors import ProblemError
from engine.domain.model import Problem
from engine.problem.formats import building
from engine.problem.formats.definition_json import DefinitionJson, ToleranceJson, WorkloadJson
from engine.problem.formats.definitions import Cases, checked
from engine.problem.formats.documents import json_file, json_lines

NAME = "sol-execbench"
DEFINITION = "definition.json"
WORKLOADS = "workload.jsonl"
_PEER = "SOL-ExecBench"


def read(folder: Path, origin: str) -> Problem:
    """The problem in a folder. Raises ProblemError."""
    file = folder / DEFINITION
    definition = checked(json_file(file, DefinitionJson), str(file), folder.resolve().name)
    cases = Cases(definition, building.stored_in(folder, shorter=True))
    rows = [(f"{folder / WORKLOADS}, line {number}", row) for number, row in json_lines(folder / WORKLOADS, WorkloadJson)]
    if not rows:
        raise ProblemError(f"{folder / WORKLOADS}: no workload")
    notes = building.add_workloads(cases, rows)
    return building.of_definition(cases, _PEER, NAME, origin, ToleranceJson().plain, folder, notes)
