"""Exports under the other projects' own models, where their packages are installed: ``flashinfer-bench``, ``sol-execbench``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from export.test_export_formats import MODULE, export
from problem import format_files as files

from engine.export import formats
from engine.problem import catalog


def test_a_sol_solution_is_valid(tmp_path: Path) -> None:
    peer = pytest.importorskip("sol_execbench.core.data.solution")
    text = formats.sol_solution(export(catalog.find(str(files.write_sol(tmp_path))), MODULE))
    assert peer.Solution.model_validate_json(text).definition == "scale"
    assert set(json.loads(text)) <= set(peer.Solution.model_fields)


def test_a_flashinfer_solution_and_its_trace_are_valid(tmp_path: Path) -> None:
    peer = pytest.importorskip("flashinfer_bench.data")
    given = export(catalog.find(str(files.write_flashinfer(tmp_path))), MODULE)
    solution, trace = formats.flashinfer_solution(given), formats.flashinfer_trace(given)
    assert set(json.loads(solution)) <= set(peer.Solution.model_fields)
    found = peer.Trace.model_validate_json(trace)
    assert found.solution == peer.Solution.model_validate_json(solution).name
    assert found.is_successful()
