"""A kernel in other projects' formats: the fields that their documentation demands, and code that runs as they call it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from export import published_formats as published
from problem import format_files as files
from support import builders as b

from engine.domain import suite
from engine.domain.errors import ProblemError
from engine.domain.mismatch import Mismatch, WrongElement
from engine.domain.model import Dialect, Failure, FailureKind, Problem
from engine.domain.state import Kernel
from engine.export import formats
from engine.problem import catalog
from engine.problem.formats import solutions

MODULE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, factor):\n        return x * factor\n"
SMOOTH = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, output):\n        return x.tanh()\n"


def kernel() -> Kernel:
    state = b.fold(*b.first_round())
    return next(k for k in state.kernels.values() if k.measurement is not None and k.verification is not None)


def export(problem: Problem, module: str) -> formats.FormatExport:
    workload = catalog.workload_for(problem, "small")
    versions = {"torch": "2.9"}
    return formats.FormatExport(problem, (workload,), kernel(), module, "openai:x", b.device(), versions, "eager", 1.7e9)


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
    trace = json.loads(formats.flashinfer_traces(given))
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
    extra = json.loads(formats.flashinfer_traces(replace(given, kernel=both)))["evaluation"]["correctness"]["extra"]
    assert extra["sustained_speedup_95"][1] == 1.1
    assert (extra["sustained_sm_mhz"], extra["sustained_watts"], extra["sustained_corroborated"]) == (1410.0, 690.0, True)


def suite_export(problem: Problem) -> formats.FormatExport:
    """A kernel measured on a suite: twice the time and speedup on each further workload."""
    given = export(problem, MODULE)
    timed, proof = given.kernel.measurement, given.kernel.verification
    assert timed is not None
    assert proof is not None
    workloads = catalog.suite_for(problem, "benchmarks")
    times = {one.name: replace(timed, time_us=b.interval(100.0 * 2**n)) for n, one in enumerate(workloads)}
    proofs = {one.name: proof for one in workloads}
    burst = suite.sustained({one.name: b.sustained(1.5 + n) for n, one in enumerate(workloads)}, {})
    measured = replace(suite.measurement(times), sustained=burst)
    kernel = replace(given.kernel, measurement=measured, verification=suite.verification(proofs))
    return replace(given, workloads=workloads, kernel=kernel)


def test_a_kernel_of_a_suite_has_a_trace_for_each_workload_with_its_own_time(tmp_path: Path) -> None:
    rows = (files.workload(4), files.workload(16), files.workload(64))
    plain = files.definition(axes={"M": {"type": "var"}, "N": {"type": "const", "value": 8}})
    given = suite_export(catalog.find(str(files.write_flashinfer(tmp_path, plain, *rows))))
    found = published.traces(formats.flashinfer_traces(given))
    assert [trace.workload.axes for trace in found] == [{"M": 4}, {"M": 16}, {"M": 64}]
    timed = [trace.evaluation.performance for trace in found if trace.evaluation is not None]
    assert [one.latency_ms for one in timed if one is not None] == [0.1, 0.2, 0.4]
    extras = [trace.evaluation.correctness.extra or {} for trace in found if trace.evaluation and trace.evaluation.correctness]
    assert [extra["sustained_speedup_95"][1] for extra in extras] == [1.5, 2.5, 3.5]
    description = json.loads(formats.flashinfer_solution(given))["description"]
    assert description == "Espalier, compiled for workloads M4, M16, M64"


def test_a_trace_cannot_name_inputs_of_the_problems_own_function(tmp_path: Path) -> None:
    written = files.definition(custom_inputs_entrypoint="make", reference=files.GENERATE)
    own = {"x": {"type": "custom"}, "factor": {"type": "custom"}}
    rows = [files.workload(m, inputs=own) for m in (4, 16, 64)]
    given = export(catalog.find(str(files.write_sol(tmp_path, written, *rows))), MODULE)
    assert json.loads(formats.sol_solution(given))["definition"] == "scale"
    with pytest.raises(ProblemError, match="workload M4: x, factor: inputs of the problem's own function"):
        formats.flashinfer_traces(given)


@pytest.mark.parametrize(
    "row", ["", "{", "[]", "null", "{}", '{"inputs":[]}', '{"inputs":{"x":{}}}', '{"inputs":{"x":1}}', "[" * 100_000]
)
def test_a_trace_of_a_damaged_row_is_refused_in_one_line(tmp_path: Path, row: str) -> None:
    """The row is the journal's: of a session from elsewhere it can be anything."""
    problem = catalog.find(str(files.write_flashinfer(tmp_path)))
    assert problem.origin_format is not None
    rows = {name: row for name in problem.origin_format.rows if row}
    damaged = replace(problem, origin_format=replace(problem.origin_format, rows=rows))
    with pytest.raises(ProblemError, match=r"^workload \w+: the session's copy of its row is damaged .*: restore it$"):
        formats.flashinfer_traces(export(damaged, MODULE))


WRONG = Mismatch("out", (4, 8), 3, 32, 1e-3, (), (WrongElement((0, 1), 2.0, 2.5, 0.25), WrongElement((0, 2), 1.0, 1.1, 0.1)))
FAILURES = {
    "INCORRECT_NUMERICAL": Failure(FailureKind.MISMATCH, "wrong", "", (WRONG,)),
    "COMPILE_ERROR": Failure(FailureKind.BUILD_FAILED, "no semicolon"),
    "TIMEOUT": Failure(FailureKind.TIMED_OUT, "too long"),
    "RUNTIME_ERROR": Failure(FailureKind.REJECTED, "changed its input"),
}


@pytest.mark.parametrize("status", FAILURES)
def test_a_trace_of_a_failure_says_what_the_format_demands(tmp_path: Path, status: str) -> None:
    given = export(catalog.find(str(files.write_flashinfer(tmp_path))), MODULE)
    failed = replace(given.kernel, verification=None, measurement=None, failure=FAILURES[status])
    (found,) = published.traces(formats.flashinfer_traces(replace(given, kernel=failed)))
    assert found.evaluation is not None
    assert (found.evaluation.status, found.evaluation.log) == (status, FAILURES[status].reason)
    if found.evaluation.correctness is not None:
        assert found.evaluation.correctness.max_absolute_error == 0.5
        assert found.evaluation.correctness.max_relative_error == 0.25


def test_an_infinite_error_is_a_word(tmp_path: Path) -> None:
    given = export(catalog.find(str(files.write_flashinfer(tmp_path))), MODULE)
    worst = replace(WRONG, examples=(WrongElement((0, 0), 1.0, float("nan"), float("inf")),))
    failure = Failure(FailureKind.MISMATCH, "not finite", "", (worst,))
    failed = replace(given.kernel, verification=None, measurement=None, failure=failure)
    (found,) = published.traces(formats.flashinfer_traces(replace(given, kernel=failed)))
    assert found.evaluation is not None
    assert found.evaluation.correctness is not None
    assert found.evaluation.correctness.max_absolute_error == "NaN"
    assert found.evaluation.correctness.max_relative_error == "Infinity"


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("write", [files.write_sol, files.write_flashinfer])
def test_exports_are_valid_by_the_published_descriptions(tmp_path: Path, write: Callable[..., Path], dialect: Dialect) -> None:
    problem = catalog.find(str(write(tmp_path)))
    given = export(problem, MODULE)
    given = replace(given, kernel=replace(given.kernel, dialect=dialect))
    definition = files.definition()
    published.sol_solution(formats.sol_solution(given), definition)
    solution = published.flashinfer_solution(formats.flashinfer_solution(given), definition)
    (trace,) = published.traces(formats.flashinfer_traces(given))
    assert (trace.definition, trace.solution) == (solution.definition, solution.name)


def test_a_time_that_is_no_result_makes_no_trace(tmp_path: Path) -> None:
    given = export(catalog.find(str(files.write_flashinfer(tmp_path))), MODULE)
    assert given.kernel.measurement is not None
    doubted = replace(given.kernel, measurement=replace(given.kernel.measurement, corroborated=False))
    with pytest.raises(ProblemError, match="its time is no result"):
        formats.flashinfer_traces(replace(given, kernel=doubted))


def test_a_submission_takes_the_tasks_data(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_kernelbot(tmp_path)))
    text = formats.kernelbot_submission(export(problem, SMOOTH))
    space: dict[str, Any] = {}
    exec(compile(text, "submission.py", "exec"), space)
    x = torch.randn(3, 3)
    assert torch.equal(space["custom_kernel"]((x, torch.empty(3, 3))), x.tanh())


@pytest.mark.parametrize("ours", [False, True], ids=["written by hand", "our own export"])
def test_a_kernel_that_came_as_a_submission_is_exported_as_one(tmp_path: Path, ours: bool) -> None:
    """Its own ``custom_kernel`` is not the one that calls the module: it called itself without end."""
    folder = files.write_kernelbot(tmp_path)
    problem = catalog.find(str(folder))
    assert problem.origin_format is not None
    path = folder / "submission.py"
    if ours:
        path.write_text(formats.kernelbot_submission(export(problem, SMOOTH)))
    _, module = solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)
    space: dict[str, Any] = {}
    exec(compile(formats.kernelbot_submission(export(problem, module)), "submission.py", "exec"), space)
    x = torch.randn(3, 3)
    assert torch.equal(space["custom_kernel"]((x, torch.empty(3, 3))), x.tanh())


@pytest.mark.parametrize("kind", ["submission.py", "solution.json"])
def test_a_kernel_is_read_and_exported_again_and_again(tmp_path: Path, kind: str) -> None:
    folder = files.write_kernelbot(tmp_path) if kind == "submission.py" else files.write_sol(tmp_path)
    write = formats.kernelbot_submission if kind == "submission.py" else formats.sol_solution
    problem = catalog.find(str(folder))
    assert problem.origin_format is not None
    path, module = folder / kind, SMOOTH if kind == "submission.py" else MODULE
    for _ in range(4):
        path.write_text(write(export(problem, module)))
        _, module = solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)
    text = write(export(problem, module))
    if kind == "submission.py":
        space: dict[str, Any] = {}
        exec(compile(text, kind, "exec"), space)
        x = torch.randn(3, 3)
        assert torch.equal(space["custom_kernel"]((x, torch.empty(3, 3))), x.tanh())
    else:
        assert torch.equal(run_source(json.loads(text))(torch.ones(2, 8), 2.5), torch.full((2, 8), 2.5))


def test_a_problem_of_another_format_is_refused(tmp_path: Path) -> None:
    given = export(catalog.find(str(files.write_sol(tmp_path))), MODULE)
    with pytest.raises(ProblemError, match=r"came in sol-execbench: only kernels of kernelbot problems .* use --format module"):
        formats.kernelbot_submission(given)
