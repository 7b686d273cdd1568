"""A kernel in other projects' formats: the fields that their documentation demands, and code that runs as they call it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problem import format_files as files
from support import builders as b

from engine.domain.errors import ProblemError
from engine.domain.model import Problem
from engine.domain.state import Kernel
from engine.export import formats
from engine.problem import catalog

MODULE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, factor):\n        return x * factor\n"
SMOOTH = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, output):\n        return x.tanh()\n"


def kernel() -> Kernel:
    state = b.fold(*b.first_round())
    return next(k for k in state.kernels.values() if k.measurement is not None and k.verification is not None)


def export(problem: Problem, module: str) -> formats.FormatExport:
    workload = catalog.workload_for(problem, "small")
    versions = {"torch": "2.9"}
    return formats.FormatExport(problem, workload, kernel(), module, "openai:x", b.device(), versions, "eager", 1.7e9)


def run_source(solution: Mapping[str, Any]) -> Any:
    file, _, function = solution["spec"]["entry_point"].partition("::")
    (source,) = [one["content"] for one in solution["sources"] if one["path"] == file]
    space: dict[str, Any] = {}
    exec(compile(source, file, "exec"), space)
    return space[function]


def test_solutions_have_what_their_formats_demand_and_run(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_sol(tmp_path)))
    given = export(problem, MODULE)
    flashinfer, sol = json.loads(formats.flashinfer_solution(given)), json.loads(formats.sol_solution(given))
    for solution in (flashinfer, sol):
        assert solution["definition"] == "scale"
        assert {"name", "author", "spec", "sources"} <= solution.keys()
        assert solution["spec"]["destination_passing_style"] is False
        assert torch.equal(run_source(solution)(torch.ones(2, 8), 2.5), torch.full((2, 8), 2.5))
    assert flashinfer["spec"]["language"] in ("python", "triton", "cpp", "cuda", "tilelang")
    assert flashinfer["spec"]["target_hardware"]
    assert (sol["spec"]["languages"], sol["spec"]["target_hardware"]) == (["pytorch"], ["LOCAL"])


def test_a_trace_has_the_workload_and_our_interval(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_flashinfer(tmp_path)))
    given = export(problem, MODULE)
    trace = json.loads(formats.flashinfer_trace(given))
    evaluation = trace["evaluation"]
    assert trace["workload"] == files.workload()
    assert trace["solution"] == json.loads(formats.flashinfer_solution(given))["name"]
    assert evaluation["status"] == "PASSED"
    assert evaluation["environment"]["hardware"] == b.device().name
    measured = given.kernel.measurement
    assert measured is not None
    speedup = measured.speedup["eager"]
    assert evaluation["performance"]["speedup_factor"] == speedup.value
    assert evaluation["performance"]["latency_ms"] == pytest.approx(measured.time_us.value / 1000)
    assert evaluation["correctness"]["extra"]["speedup_95"] == [speedup.low, speedup.value, speedup.high]
    assert evaluation["correctness"]["extra"]["precision_class"] == b.verification().precision_class.value


def test_a_trace_has_both_regimes_where_both_were_measured(tmp_path: Path) -> None:
    given = export(catalog.find(str(files.write_flashinfer(tmp_path))), MODULE)
    assert given.kernel.measurement is not None
    both = replace(given.kernel, measurement=replace(given.kernel.measurement, sustained=b.sustained(1.1)))
    extra = json.loads(formats.flashinfer_trace(replace(given, kernel=both)))["evaluation"]["correctness"]["extra"]
    assert extra["sustained_speedup_95"][1] == 1.1
    assert (extra["sustained_sm_mhz"], extra["sustained_watts"], extra["sustained_corroborated"]) == (1410.0, 690.0, True)


def test_a_time_that_is_no_result_makes_no_trace(tmp_path: Path) -> None:
    given = export(catalog.find(str(files.write_flashinfer(tmp_path))), MODULE)
    assert given.kernel.measurement is not None
    doubted = replace(given.kernel, measurement=replace(given.kernel.measurement, corroborated=False))
    with pytest.raises(ProblemError, match="its time is no result"):
        formats.flashinfer_trace(replace(given, kernel=doubted))


def test_a_submission_takes_the_tasks_data(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_kernelbot(tmp_path)))
    text = formats.kernelbot_submission(export(problem, SMOOTH))
    space: dict[str, Any] = {}
    exec(compile(text, "submission.py", "exec"), space)
    x = torch.randn(3, 3)
    assert torch.equal(space["custom_kernel"]((x, torch.empty(3, 3))), x.tanh())


def test_a_problem_of_another_format_is_refused(tmp_path: Path) -> None:
    given = export(catalog.find(str(files.write_sol(tmp_path))), MODULE)
    with pytest.raises(ProblemError, match="came in sol-execbench: only one of kernelbot can be written so"):
        formats.kernelbot_submission(given)
