"""Problems of other formats: what is read, what is refused and how, and that their references run."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problem import format_files as files

from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.events import Entry, SessionOpened
from engine.domain.model import ENGINE, Problem
from engine.domain.settings import Settings
from engine.journal import codec
from engine.problem import catalog
from engine.problem.files.digest import problem_digest
from engine.problem.formats import axis_expressions, solutions
from engine.problem.formats.axis_expressions import ExpressionError
from engine.problem.reference import Reference
from engine.session import trust


def reference(problem: Problem, workload: str = "small") -> Reference:
    return Reference(problem, catalog.workload_for(problem, workload), "cpu")


def outputs(problem: Problem, workload: str = "small", seed: int = 1) -> tuple[tuple[object, ...], tuple[torch.Tensor, ...]]:
    one = reference(problem, workload)
    inputs = one.inputs(seed)
    return inputs, one.call(one.model(seed), inputs)


def test_a_sol_folder_is_a_problem_with_a_workload_for_each_line(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_sol(tmp_path)))
    found = problem.origin_format
    assert found is not None
    assert (found.name, found.default, found.small) == ("sol-execbench", "M16", "M4")
    assert [dict(w.settings) for w in problem.workloads] == [{"M": m, "factor": 2.5} for m in (4, 16, 64)]
    assert found.ids["M16"] == "id-16"
    assert found.tolerances["M4"].text == "atol 0.01, rtol 0.01, 0.99 of the elements"
    assert problem.reference.startswith(files.SCALE.rstrip())
    (x, factor), (out,) = outputs(problem, "M64")
    assert isinstance(x, torch.Tensor)
    assert (x.shape, factor) == ((64, 8), 2.5)
    assert torch.equal(out, x * 2.5)
    assert reference(problem).signature().constants["K"] == 8


def test_inputs_can_come_from_the_references_own_function(tmp_path: Path) -> None:
    custom = {"x": {"type": "custom"}, "factor": {"type": "custom"}}
    written = files.definition(reference=files.GENERATE, custom_inputs_entrypoint="make")
    problem = catalog.find(str(files.write_sol(tmp_path, written, files.workload(5, inputs=custom))))
    (_, factor), (out,) = outputs(problem)
    assert factor == 3.0
    assert torch.equal(out, torch.full((5, 8), 3.0))


def test_a_trace_set_with_stored_tensors_needs_no_file_afterwards(tmp_path: Path) -> None:
    data = struct.pack("<32f", *range(32))
    files.write_safetensors(tmp_path / "blob" / "workloads" / "x.safetensors", "kept", "F32", [4, 8], data)
    stored = {"type": "safetensors", "path": "blob/workloads/x.safetensors", "tensor_key": "kept"}
    given_inputs = {"x": stored, "factor": {"type": "scalar", "value": 2.0}}
    file = files.write_flashinfer(tmp_path, None, files.workload(4, inputs=given_inputs))
    problem = catalog.find(str(file))
    assert catalog.find(str(tmp_path)).digest == problem.digest
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    line = codec.encode(Entry(0, 0.0, ENGINE, SessionOpened(problem, "cpu", Settings(), "ask", {})))
    event = codec.decode(line).event
    assert isinstance(event, SessionOpened)
    assert event.problem == problem
    _, (out,) = outputs(event.problem)
    assert torch.equal(out, 2.0 * torch.arange(32.0).reshape(4, 8))


def test_a_kernelbot_task_runs_with_its_own_files_and_the_judges_seed(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_kernelbot(tmp_path)))
    found = problem.origin_format
    assert found is not None
    assert (found.tests, found.benchmarks, found.ranking) == (("test1", "test2"), ("benchmark1", "benchmark2"), "geom")
    assert (found.unique, found.tolerances["test1"].rtol) == (True, 1e-3)
    assert [dict(w.settings) for w in problem.workloads] == [
        {"n": n, "kind": k} for n, k in ((8, 0), (16, 1), (64, 1), (32, 0))
    ]
    (x, _), (out,) = outputs(problem, "test2")
    (other, _), _ = outputs(problem, "test2", seed=2)
    assert isinstance(x, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    assert not torch.equal(x, other)
    assert torch.equal(out, torch.tanh(x))
    assert not reference(problem).side_effects.changed_inputs


OUTPUT_MEMORY = {
    "a name": ("    memory = torch.empty(n, n, device='cuda').contiguous()\n", "memory"),
    "an expression": ("", "torch.empty_like(x)"),
}
NO_OUTPUT_MEMORY = {
    "filled by a method": ("    memory = torch.empty(n, n)\n    memory.uniform_(0, 1, generator=gen)\n", "memory"),
    "filled by a slice": ("    memory = torch.empty(n, n)\n    memory[0] = x[0]\n", "memory"),
    "filled where it is made": ("    memory = torch.empty(n, n).uniform_(0, 1, generator=gen)\n", "memory"),
    "in one of two cases": ("    memory = torch.empty(n, n)\n    if n > 16:\n        memory = x * 2\n", "memory"),
    "of one of two returns": ("    if n > 16:\n        return x, x * 2\n", "torch.empty_like(x)"),
}


def input_that_is_only_given(tmp_path: Path, lines: str, value: str) -> Problem:
    """A task whose reference does not write to its second input."""
    plain = files.REFERENCE_PY.replace("    output[...] = torch.tanh(x)\n    return output\n", "    return torch.tanh(x)\n")
    changed = plain.replace("    return x, torch.empty_like(x)\n", f"{lines}    return x, {value}\n")
    return catalog.find(str(files.write_kernelbot(tmp_path, reference=changed)))


@pytest.mark.parametrize("case", OUTPUT_MEMORY)
def test_a_submission_may_write_to_memory_that_the_task_leaves_empty(tmp_path: Path, case: str) -> None:
    problem = input_that_is_only_given(tmp_path, *OUTPUT_MEMORY[case])
    assert "ref_kernel((x, _torch.empty_like(output),)).to(output.dtype)" in problem.reference
    assert problem.origin_format is not None
    name, text = solutions.module_of(
        tmp_path / "problems/smooth/submission.py", problem.origin_format, problem.reference, problem.attachments
    )
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    (x, _), (right,) = outputs(problem)
    untouched = torch.zeros_like(right)
    assert torch.allclose(space["ModelNew"]()(x, untouched), right)
    assert not untouched.any()


def test_submissions_answer_in_the_type_of_the_only_memory_for_outputs(tmp_path: Path) -> None:
    folder = files.write_kernelbot(
        tmp_path, reference=files.REFERENCE_PY.replace("output[...] = torch.tanh(x)", "output = torch.tanh(x.double())")
    )
    problem = catalog.find(str(folder))
    (x, output), (right,) = outputs(problem)
    assert right.dtype == torch.float32
    assert problem.origin_format is not None
    name, text = solutions.module_of(folder / "submission.py", problem.origin_format, problem.reference, problem.attachments)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    assert torch.allclose(space["ModelNew"]()(x, output), right)


@pytest.mark.parametrize("case", NO_OUTPUT_MEMORY)
def test_memory_that_the_task_fills_is_an_input(tmp_path: Path, case: str) -> None:
    assert "ref_kernel((x, output,))" in input_that_is_only_given(tmp_path, *NO_OUTPUT_MEMORY[case]).reference


def test_an_attachment_belongs_to_what_the_user_trusts(tmp_path: Path) -> None:
    folder = files.write_kernelbot(tmp_path)
    before = problem_digest(catalog.find(str(folder)))
    assert "def make_match_reference" in trust.question(str(folder)).code
    (folder.parent / "utils.py").write_text(files.UTILS_PY + "\nEVIL = 1\n")
    assert problem_digest(catalog.find(str(folder))) != before


def test_a_submission_becomes_a_module_of_one_file(tmp_path: Path) -> None:
    folder = files.write_kernelbot(tmp_path)
    problem = catalog.find(str(folder))
    assert problem.origin_format is not None
    path = folder / "submission.py"
    assert solutions.is_solution(path, problem.origin_format)
    name, text = solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    (x, output), (right,) = outputs(problem)
    assert torch.allclose(space["ModelNew"]()(x, output), right)


def test_a_submission_may_import_the_reference_beside_it(tmp_path: Path) -> None:
    folder = files.write_kernelbot(tmp_path)
    problem = catalog.find(str(folder))
    assert problem.origin_format is not None
    path = folder / "submission.py"
    path.write_text("from reference import ref_kernel as known\n\n\ndef custom_kernel(data):\n    return known(data)\n")
    name, text = solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    (x, output), (right,) = outputs(problem)
    assert torch.equal(space["ModelNew"]()(x, output), right)


def module_made_of(path: Path, solution: dict[str, Any], problem: Problem) -> Any:
    """The module that a solution, written to ``path``, becomes."""
    path.write_text(json.dumps(solution))
    assert problem.origin_format is not None
    name, text = solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    return space["ModelNew"]()


@pytest.mark.parametrize("destination", [True, False])
def test_a_solution_becomes_a_module(tmp_path: Path, destination: bool) -> None:
    problem = catalog.find(str(files.write_sol(tmp_path / "p")))
    assert problem.origin_format is not None
    body = "out.copy_(scaled(x, factor))" if destination else "return scaled(x, factor)"
    code = f"from helper import scaled\n\n\ndef go(x, factor{', out' if destination else ''}):\n    {body}\n"
    solution = {
        "name": "mine", "definition": "scale", "author": "me",
        "spec": {
            "languages": ["pytorch"], "target_hardware": ["LOCAL"], "entry_point": "k.py::go",
            "destination_passing_style": destination,
        },
        "sources": [
            {"path": "k.py", "content": code},
            {"path": "helper.py", "content": "def scaled(x, factor):\n    return x * factor\n"},
        ],
    }  # fmt: skip
    path = tmp_path / "solution.json"
    made = module_made_of(path, solution, problem)
    (x, factor), (right,) = outputs(problem)
    assert torch.equal(made(x, factor), right)
    path.write_text(json.dumps(solution | {"definition": "other"}))
    with pytest.raises(KernelCodeError, match=r"solution\.json: definition: 'other'; the problem is 'scale'"):
        solutions.module_of(path, problem.origin_format, problem.reference, problem.attachments)


@pytest.mark.parametrize("write", [files.write_sol, files.write_flashinfer])
def test_a_shape_may_state_a_size_instead_of_an_axis(tmp_path: Path, write: Callable[[Path, dict[str, Any]], Path]) -> None:
    written = files.definition(
        inputs={"x": {"shape": ["M", "1"], "dtype": "float32"}, "factor": {"shape": None, "dtype": "float32"}},
        outputs={"out": {"shape": ["M", "01"], "dtype": "float32"}},
    )
    problem = catalog.find(str(write(tmp_path / "p", written)))
    (x, factor), (right,) = outputs(problem)
    assert isinstance(x, torch.Tensor)
    assert x.shape == (4, 1)
    assert reference(problem).signature().operands[-1].shape == (4, 1)
    assert problem.origin_format is not None
    solution = {
        "name": "mine", "definition": "scale", "author": "me",
        "spec": {"languages": ["pytorch"], "language": "python", "target_hardware": ["LOCAL"], "entry_point": "k.py::go"},
        "sources": [{"path": "k.py", "content": "def go(x, factor, out):\n    out.copy_(x * factor)\n"}],
    }  # fmt: skip
    path = tmp_path / "solution.json"
    made = module_made_of(path, solution, problem)
    assert torch.equal(made(x, factor), right)


@pytest.mark.parametrize("write", [files.write_sol, files.write_kernelbot])
def test_the_reference_of_a_folder_stands_for_the_folder(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """A user of KernelBench names it so; it was refused, as it defines no Model."""
    folder = write(tmp_path)
    (folder / "reference.py").touch()
    assert catalog.find(str(folder / "reference.py")).workloads == catalog.find(str(folder)).workloads


@pytest.mark.parametrize("name", ["reference.py", "shapes.py", "problem.yaml"])
def test_a_file_of_kernelbench_hard_stands_for_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "reference.py").write_text(HARD)
    (tmp_path / "shapes.py").write_text("SHAPES = [{'T': 2, 'H': 8}]\n")
    (tmp_path / "problem.yaml").write_text("name: plus\n")
    problem = catalog.find(str(tmp_path / name))
    assert problem.workloads == catalog.find(str(tmp_path)).workloads


def axes(**changed: Any) -> dict[str, Any]:
    return {**files.definition()["axes"], **changed}


def output(axis: str, dtype: str) -> dict[str, Any]:
    return {"out": {"shape": [axis], "dtype": dtype}}


BAD_DEFINITIONS = {
    "an unknown dtype": (files.definition(outputs=output("M", "float7")), "outputs.out.dtype: unknown dtype"),
    "an unknown axis": (files.definition(outputs=output("Q", "int8")), "outputs.out.shape: 'Q' is not an axis"),
    "a negative number for an axis": (files.definition(outputs=output("-1", "int8")), "outputs.out.shape: '-1' is not an axis"),
    "a huge number for an axis": (files.definition(outputs=output("9" * 20, "int8")), f"out.shape: {'9' * 20} is not a size"),
    "a cycle": (
        files.definition(axes=axes(A={"type": "expr", "expression": "B"}, B={"type": "expr", "expression": "A"})),
        "axes A, B depend on each other",
    ),
    "an expression of itself": (
        files.definition(axes=axes(A={"type": "expr", "expression": "A + 1"})), "axes A depend on each other",
    ),
    "a call": (
        files.definition(axes=axes(K={"type": "expr", "expression": "__import__('os').getpid()"})), "which is not an axis",
    ),
    "an operator": (files.definition(axes=axes(K={"type": "expr", "expression": "M << 9"})), "operator LShift is not allowed"),
    "no run": (files.definition(reference="def go():\n    pass\n"), "reference: no function run"),
    "a syntax error": (files.definition(reference="def run(:\n"), "not valid Python"),
    "an axis without a type": (files.definition(axes={"M": {"value": 3}}), "axes.M.type: required"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_DEFINITIONS)
def test_a_wrong_definition_is_refused_with_its_file_and_field(tmp_path: Path, case: str) -> None:
    written, message = BAD_DEFINITIONS[case]
    refused(files.write_sol(tmp_path, written), message, "definition.json" if "LShift" not in message else "workload.jsonl")


BAD_WORKLOADS = {
    "a missing axis": (files.workload(axes={}), "line 1: axes.M: missing"),
    "an unknown axis": (files.workload(axes={"M": 1, "Z": 2}), "line 1: axes.Z: no axis of scale"),
    "another constant": (files.workload(axes={"M": 1, "N": 2}), "line 1: axes.N: 2, but scale fixes it at 8"),
    "a negative size": (files.workload(axes={"M": -1}), "line 1: axes.M: -1 is not a size"),
    "an unknown input": (files.workload(inputs={"y": {"type": "random"}}), "line 1: inputs.y: no input of scale"),
    "a huge scalar": (
        files.workload(inputs={"x": {"type": "random"}, "factor": {"type": "scalar", "value": 10**30}}),
        "of at most 64 bits",
    ),
    "an unknown type": (files.workload(inputs={"x": {"type": "magic"}}), "line 1: inputs.x.type: 'magic': expected random"),
    "a missing file": (
        files.workload(inputs={"x": {"type": "safetensors", "path": "gone.safetensors", "tensor_key": "x"}}),
        "line 1: inputs.x.path: no file 'gone.safetensors'",
    ),
    "a path outside": (
        files.workload(inputs={"x": {"type": "safetensors", "path": "../../x", "tensor_key": "x"}}),
        "line 1: inputs.x.path: path '../../x' leaves",
    ),
    "custom without a function": (files.workload(inputs={"x": {"type": "custom"}}), "no custom_inputs_entrypoint"),
}


@pytest.mark.parametrize("case", BAD_WORKLOADS)
def test_a_wrong_workload_is_refused_with_its_line_and_field(tmp_path: Path, case: str) -> None:
    written, message = BAD_WORKLOADS[case]
    refused(files.write_sol(tmp_path, None, written), message, "workload.jsonl")


@pytest.mark.parametrize(
    ("write", "where"), [(files.write_sol, "workload.jsonl, line 2"), (files.write_flashinfer, "scale.jsonl, line 2: workload")]
)
def test_two_workloads_of_one_uuid_are_refused(tmp_path: Path, write: Callable[..., Path], where: str) -> None:
    rows = (files.workload(4), files.workload(16, uuid="id-4"))
    refused(write(tmp_path, None, *rows), f"{where}: uuid: 'id-4' is also that of workload M4")


def test_a_truncated_line_is_refused_where_it_is_cut(tmp_path: Path) -> None:
    folder = files.write_sol(tmp_path)
    (folder / "workload.jsonl").write_text('{"uuid": "a')
    refused(folder, "workload.jsonl, line 1: not valid JSON (Unterminated string starting at line 1, column 10)")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = files.write_sol(tmp_path)
    (folder / "workload.jsonl").unlink()
    make(folder / "workload.jsonl")
    refused(folder, "workload.jsonl: cannot be read (not a regular file)")


def refused(path: Path, *messages: str) -> None:
    with pytest.raises(ProblemError) as raised:
        catalog.find(str(path))
    text = str(raised.value)
    assert "\n" not in text
    for message in messages:
        assert message in text


def test_a_link_out_of_the_set_is_refused(tmp_path: Path) -> None:
    outside = files.write_safetensors(tmp_path / "outside.safetensors", "x", "F32", [4, 8], bytes(128))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "link.safetensors").symlink_to(outside)
    stored = {"x": {"type": "safetensors", "path": "link.safetensors", "tensor_key": "x"}}
    refused(files.write_sol(tmp_path / "set", None, files.workload(inputs=stored)), "leaves")


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "size", "message"),
    [
        ("x", "F32", [8, 4], 128, "is float32 [8, 4]; the definition says float32 [4, 8]"),
        ("x", "F16", [4, 8], 64, "is float16 [4, 8]"),
        ("y", "F32", [4, 8], 128, "has no tensor 'x': it has y"),
        ("x", "F32", [4, 8], 64, "offsets do not match"),
        ("x", "X9", [4, 8], 64, "dtype 'X9' is not supported"),
        ("x", "F32", [1 << 62] * 100_000, 128, "100000 dimensions are more than 64"),
    ],
)
def test_a_stored_tensor_must_be_what_the_definition_says(
    tmp_path: Path, name: str, dtype: str, shape: list[int], size: int, message: str
) -> None:
    files.write_safetensors(tmp_path / "x.safetensors", name, dtype, shape, bytes(size))
    stored = {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}
    refused(files.write_sol(tmp_path, None, files.workload(inputs=stored)), message)


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_safetensors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "x.safetensors").write_bytes(data)
    stored = {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}
    refused(files.write_sol(folder, None, files.workload(inputs=stored)), "x.safetensors")


@pytest.mark.parametrize("write", [files.write_sol, files.write_flashinfer])
def test_a_shape_that_contradicts_the_reference_is_refused(
    tmp_path: Path, write: Callable[[Path, dict[str, Any]], Path]
) -> None:
    problem = catalog.find(str(write(tmp_path, files.definition(reference=files.SCALE.replace("x *", "x.T *")))))
    with pytest.raises(
        ProblemError, match=r"outputs\.out\.shape: .* returns \[8, 4\].*; the definition says \[4, 8\]"
    ) as caught:
        reference(problem).signature()
    (definition,) = (path for path in tmp_path.rglob("*.json"))
    assert str(caught.value).startswith(f"{definition}: outputs.out.shape: ")


BOMB = "a: &a [1,1]\nb: &b [*a,*a,*a]\nfiles: [*b,*b]\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "message"),
    [
        (BOMB, "task.yml, line 2: not valid YAML (aliases are not read"),
        ("files: !!python/object/apply:os.system ['true']\n", "task.yml, line 1: not valid YAML (tags are not read"),
        ("files: !!timestamp soon\n", "task.yml, line 1: not valid YAML (tags are not read"),
        ("files: " + ":".join(["1"] * 1_000_000), "files: expected a list, got str"),
        ("files: " + ":".join(["1"] * 1_000_000) + ".5", "files: expected a list, got str"),
        ("files: " + "[" * 5000, "task.yml: not valid YAML"),
        ("files: " + "[" * 60 + "]" * 60, "nested deeper than 32 levels"),
        (files.TASK + "multi_gpu: true\n", "multi_gpu: the task needs several GPUs"),
        (files.TASK.replace('"../utils.py"', '"../../../utils.py"'), "leaves the task's repository"),
        (files.TASK.replace('"../utils.py"', '"../../LICENSE"'), "is no Python file in the task's folder"),
        (files.TASK.replace('"name": "utils.py"', '"name": "torch.py"'), "would hide the module torch"),
        (files.TASK.replace('{"n": 8,', '{"size": 8,'), "tests.1.size: generate_input has no such parameter"),
        (files.TASK.replace('{"n": 16,', '{"size": 16,'), "tests.2.size: generate_input has no such parameter"),
        (files.TASK.replace('{"n": 8, ', "{"), "tests.1.n: missing"),
        (files.TASK.replace('{"n": 16, ', "{"), "tests.2.n: missing"),
        (files.TASK.replace('"geom"', '"best"'), "ranking_by: 'best' is unknown"),
    ],
)
def test_a_wrong_task_is_refused(tmp_path: Path, task: str, message: str) -> None:
    refused(files.write_kernelbot(tmp_path, task), message, "task.yml")


@pytest.mark.parametrize("secret", [".ssh/id_rsa", "other/settings.py"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_task_in_a_home_folder_reads_no_other_files_there(tmp_path: Path, secret: str, is_link: bool) -> None:
    folder = tmp_path / "task"
    files.write_kernelbot(tmp_path / "made").rename(folder)
    (tmp_path / secret).parent.mkdir()
    (tmp_path / secret).write_text("KEY = 'secret'\n")
    (folder / "linked.py").symlink_to(tmp_path / secret)
    source = "linked.py" if is_link else f"../{secret}"
    (folder / "task.yml").write_text(files.TASK.replace("../utils.py", source))
    refused(folder, "files.utils.py: ", _NO_FILE_OF_TASKS)


_NO_FILE_OF_TASKS = "is no Python file in the task's folder, directly in one above it or in another folder of tasks"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("../../others/utils.py", ""),
        ("../../others/inner/utils.py", _NO_FILE_OF_TASKS),
        ("../../others/notes.txt", _NO_FILE_OF_TASKS),
        ("../../projects/utils.py", _NO_FILE_OF_TASKS),
        ("../../.ssh/utils.py", _NO_FILE_OF_TASKS),
        ("../../.hidden/utils.py", _NO_FILE_OF_TASKS),
        ("../../hides/utils.py", _NO_FILE_OF_TASKS),
        ("../../linked/utils.py", _NO_FILE_OF_TASKS),
        ("../../deeper/others/utils.py", _NO_FILE_OF_TASKS),
        ("../beside/utils.py", _NO_FILE_OF_TASKS),
        ("../../../outside/utils.py", "leaves the task's repository"),
    ],
)
def test_a_task_may_bring_what_another_folder_of_tasks_shares(tmp_path: Path, source: str, message: str) -> None:
    root = tmp_path / "repository"
    folder = files.write_kernelbot(root, files.TASK.replace("../utils.py", source))
    tasks = (
        "others/task", ".hidden/task", "hides/.task", "deeper/others/task", "problems/beside/task", "../outside/task",
    )  # fmt: skip
    for place in (*tasks, "others/inner", "projects/inner", ".ssh/inner"):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place).parent.joinpath("utils.py").write_text(files.UTILS_PY)
    for place in tasks:
        (root / place / "task.yml").write_text(files.TASK)
    (root / "others" / "notes.txt").write_text("private")
    (root / "others" / "inner" / "utils.py").write_text(files.UTILS_PY)
    (root / "linked").symlink_to(root / "projects")
    (root / "projects" / "inner" / "task.yml").symlink_to(folder / "task.yml")
    if message:
        refused(folder, "files.utils.py: ", message)
    else:
        assert catalog.find(str(folder)).attachments


def test_a_task_outside_of_any_repository_reads_no_other_folder_of_tasks(tmp_path: Path) -> None:
    folder = files.write_kernelbot(tmp_path)
    (tmp_path / "LICENSE").unlink()
    (tmp_path / "others" / "task").mkdir(parents=True)
    (tmp_path / "others" / "task" / "task.yml").write_text(files.TASK)
    (tmp_path / "others" / "utils.py").write_text(files.UTILS_PY)
    (folder / "task.yml").write_text(files.TASK.replace("../utils.py", "../../others/utils.py"))
    refused(folder, "files.utils.py: ", "leaves the task's repository")


def test_a_licence_that_leads_out_of_its_folder_is_not_read(tmp_path: Path) -> None:
    folder = files.write_kernelbot(tmp_path / "made")
    (tmp_path / "netrc").write_text("machine host password secret\n")
    (folder / "LICENSE").symlink_to(tmp_path / "netrc")
    found = catalog.find(str(folder)).origin_format
    assert found is not None
    assert found.licence is not None
    assert found.licence.name == "Apache License"


@pytest.mark.parametrize("more", [", dtype=torch.float32", ", *, scale=-1, dtype: torch.dtype = torch.float32"])
def test_a_parameter_of_a_task_with_a_default_of_any_kind_need_not_be_set(tmp_path: Path, more: str) -> None:
    code = files.REFERENCE_PY.replace('kind: str = "flat"', f'kind: str = "flat"{more}')
    assert len(catalog.find(str(files.write_kernelbot(tmp_path, reference=code))).workloads) == 4


def test_a_parameter_that_some_cases_of_a_task_set_needs_a_plain_default(tmp_path: Path) -> None:
    code = files.REFERENCE_PY.replace('kind: str = "flat"', "kind: str = str(1)")
    folder = files.write_kernelbot(tmp_path, reference=code)
    refused(folder, "benchmarks.2.kind: missing: other cases set it, and its default is no plain value", "task.yml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from aiter.ops import quant", "reference.py, line 3: imports aiter, which runs on AMD GPUs only"),
        ("import aiter", "reference.py, line 3: imports aiter, which runs on AMD GPUs only"),
        ("KIND = torch.float4_e2m1fn_x2", "reference.py, line 3: float4_e2m1fn_x2 (NVFP4, packed 4-bit) is not supported"),
    ],
)
def test_a_task_for_another_device_is_refused(tmp_path: Path, line: str, message: str) -> None:
    code = files.REFERENCE_PY.replace("from utils", f"{line}\nfrom utils", 1)
    refused(files.write_kernelbot(tmp_path, reference=code), message)


def test_a_shape_of_more_axes_than_torch_has_is_refused(tmp_path: Path) -> None:
    many = {"x": {"shape": ["N"] * 100_000, "dtype": "float32"}, "factor": {"shape": None, "dtype": "float32"}}
    refused(files.write_sol(tmp_path, files.definition(inputs=many)), "inputs.x.shape: more than 64 axes")


@pytest.mark.parametrize(("op_type", "message"), [("sampilng", "'sampilng' is unknown"), (None, "missing")])
def test_an_unknown_operation_is_refused(tmp_path: Path, op_type: str | None, message: str) -> None:
    file = files.write_flashinfer(tmp_path, files.definition(op_type=op_type))
    refused(file, f"scale.json: op_type: {message}: use activation, ", "generic for any other")


def test_an_operation_that_torch_lacks_is_said_with_the_file_and_field_of_the_reference(tmp_path: Path) -> None:
    code = "import torch\n\n\ndef run(x, factor):\n    return torch.frobnicate(x)\n"
    folder = files.write_sol(tmp_path, files.definition(reference=code))
    with pytest.raises(ProblemError, match=r"/definition\.json, reference, line 5: forward\(\) with workload M4 raised Attr"):
        outputs(catalog.find(str(folder)))


@pytest.mark.slow
def test_a_repeated_key_and_deep_json_are_refused(tmp_path: Path) -> None:
    folder = files.write_sol(tmp_path)
    (folder / "definition.json").write_text('{"axes": {}, "axes": {}}')
    refused(folder, "definition.json: key 'axes' occurs twice")
    keys = [f"k{number}" for number in range(300_000)]
    (folder / "definition.json").write_text("{" + ",".join(f'"{key}":1' for key in [*keys, keys[-1]]) + "}")
    refused(folder, "definition.json: key 'k299999' occurs twice")
    (folder / "definition.json").write_text("[" * 100_000)
    refused(folder, "definition.json: not valid JSON")


HARD = """import torch
from torch import nn
T, H = 4, 8
class Model(nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.randn(T, H)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"torch.float32": {atol: 1.0e-5, rtol: 2.0e-5}}', "atol 1e-05, rtol 2e-05"),
        ("{torch.float32: 1.0e-3, torch.bfloat16: 0.1}", "atol 0.001, rtol 0.001"),
        ("{bfloat16: 0.1, int8: 0.0}", "atol 0.1, rtol 0.1"),
        ("{float32: 5e-2}", "atol 0.05, rtol 0.05"),
    ],
)
def test_a_tolerance_of_kernelbench_hard_has_two_forms(tmp_path: Path, written: str, text: str) -> None:
    """Its softmax was refused; of several tolerances with names like torch.float32 the loosest counted."""
    (tmp_path / "reference.py").write_text(HARD)
    (tmp_path / "problem.yaml").write_text(f"name: plus\nprecision: fp32\ntolerance: {written}\n")
    found = catalog.find(str(tmp_path)).origin_format
    assert found is not None
    assert {t.text for t in found.tolerances.values()} == {text}


def test_kernelbench_hard_has_a_workload_for_each_shape(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(HARD)
    (tmp_path / "shapes.py").write_text("H = 16\nSHAPES = [{'T': 2, 'H': H}, {'T': 32, 'H': H}]\n")
    (tmp_path / "problem.yaml").write_text("name: plus\nprecision: fp32\ntolerance: {float32: 1.0e-3, bfloat16: 0.1}\n")
    problem = catalog.find(str(tmp_path))
    assert [dict(w.settings) for w in problem.workloads] == [{"T": 2, "H": 16}, {"T": 32, "H": 16}]
    assert problem.origin_format is not None
    assert problem.origin_format.tolerances["shape1"].atol == 1e-3
    assert outputs(problem, "shape2")[1][0].shape == (32, 16)
    (tmp_path / "shapes.py").write_text("SHAPES = [{'Q': 2}]\n")
    refused(tmp_path, "shapes.py: SHAPES.1.Q: reference.py does not assign this name")
    (tmp_path / "shapes.py").write_text("SHAPES = [{'T': open('x')}]\n")
    refused(tmp_path, "shapes.py, line 1: SHAPES: open('x') is no plain value")


def test_a_shape_may_name_a_number_of_the_reference_in_lower_case(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(HARD.replace("T, H = 4, 8", "T, h = 4, 8").replace("H)", "h)"))
    (tmp_path / "shapes.py").write_text("SHAPES = [{'t': 2, 'h': 16}]\n")
    assert dict(catalog.find(str(tmp_path)).workloads[0].settings) == {"T": 2, "h": 16}
    (tmp_path / "shapes.py").write_text("SHAPES = [{'t': 2, 'T': 16}]\n")
    refused(tmp_path, "shapes.py: SHAPES.1.T: sets T a second time")


def test_a_problem_for_several_gpus_is_refused_whatever_else_it_says(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(HARD)
    (tmp_path / "problem.yaml").write_text("name: ring\nworld_size: 4\ntolerance: {bfloat16: [0.1, 0.025]}\n")
    refused(tmp_path, "problem.yaml: world_size: the problem needs 4 GPUs at once: only one device is supported")


@pytest.mark.parametrize(
    ("licence", "forbids"),
    [
        ("Apache License\nVersion 2.0", False),
        ("MIT License\nPermission is hereby granted, free of charge", False),
        ("Some License\nYou may not use the materials to train any model.", True),
        ("Researcher Reciprocity License\nVersion 1", True),
    ],
)
def test_a_licence_that_forbids_training_is_seen(tmp_path: Path, licence: str, forbids: bool) -> None:
    found = catalog.find(str(files.write_kernelbot(tmp_path, licence=licence))).origin_format
    assert found is not None
    assert found.licence is not None
    assert found.licence.forbids_training is forbids


@pytest.mark.parametrize(
    ("text", "value"), [("M * (N + 1)", 12), ("N ** 2 - M", 5), ("-M + N % 2 + 7", 4), ("N / 1", 3), ("(M + N) // 2", 3)]
)
def test_an_axis_expression_has_the_value_of_its_arithmetic(text: str, value: int) -> None:
    assert axis_expressions.evaluate(text, {"M": 3 if "(N + 1)" in text else 4, "N": 3}) == value


@given(st.text(max_size=40))
def test_no_text_breaks_the_evaluator(text: str) -> None:
    with suppress(ExpressionError):
        assert axis_expressions.evaluate(text, {"M": 2}) >= 0


def test_what_a_format_ranks_is_a_suite(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_sol(tmp_path / "sol")))
    assert dict(problem.suites) == {"benchmarks": ("M4", "M16", "M64")}
    assert [one.name for one in catalog.suite_for(problem, "benchmarks")] == ["M4", "M16", "M64"]
    (tmp_path / "one").mkdir()
    assert not catalog.find(str(files.write_flashinfer(tmp_path / "one"))).suites, "one workload needs no suite"


@pytest.mark.parametrize("place", ['torch.zeros(1, device="cuda")', "torch.zeros(1).cuda()"])
def test_what_a_reference_imports_names_the_cpu_where_there_is_no_gpu(tmp_path: Path, place: str) -> None:
    """The check of ``amd/mla-decode`` moves outputs with ``.cuda()`` in ``utils.py``: its verdict ended on a CPU."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    folder = files.write_kernelbot(tmp_path)
    (folder.parent / "utils.py").write_text(files.UTILS_PY.replace("good = ", f"output = output + {place}\n        good = "))
    problem = catalog.find(str(folder))
    inputs, right = outputs(problem, "test1")
    assert reference(problem, "test1").format_check(inputs, right)[0]


def test_a_problems_own_module_names_the_cpu_where_it_is_judged_there(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_kernelbot(tmp_path)))
    assert "device='cpu'" in solutions.own_module(problem, "cpu")
    assert "cuda" not in solutions.own_module(problem, "cpu")
    assert 'device="cuda"' in solutions.own_module(problem, "cuda:0")
