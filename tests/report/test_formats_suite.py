"""The benchmark of other formats' problems: what is chosen, with which kernels, and what is printed."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path

import pytest
from problem import format_files as files

from benchmarks import formats, kernelbench
from benchmarks.formats_files import chosen_entries
from benchmarks.kernelbench_judging import Request, Result, Status, candidate_text, find_problem, judge, refusal
from engine.domain.errors import ProblemError
from engine.domain.model import Contract

PYTHON = ("python", "pytorch")


def solution(definition: str, **spec: object) -> str:
    source = {"path": "kernel.py", "content": "def run(x, factor):\n    return x * factor\n"}
    base = {"entry_point": "kernel.py::run", "destination_passing_style": False}
    return json.dumps({"name": "mine", "definition": definition, "spec": base | spec, "sources": [source]})


@pytest.fixture
def checkouts(tmp_path: Path) -> Path:
    task = files.write_kernelbot(tmp_path / "bot")
    for place in ("solutions/correct/ref.py", "solutions/wrong/notes.py"):
        (task / place).parent.mkdir(parents=True)
        (task / place).write_text(files.SUBMISSION_PY if "ref" in place else "x = 1\n")
    sol = files.write_sol(tmp_path / "sol" / "scale")
    (sol / "solution_python.json").write_text(solution("scale", languages=["pytorch"]))
    (sol / "solution_cute.json").write_text(solution("scale", languages=["cute_dsl"]))
    files.write_flashinfer(tmp_path / "trace")
    for name, definition in (("one", "scale"), ("two", "other")):
        path = tmp_path / "trace" / "solutions" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(solution(definition, language="python"))
    return tmp_path


def test_problems_are_found_with_the_kernels_that_come_with_them(checkouts: Path) -> None:
    """A file that defines no submission, another language and another definition's solution are left out."""
    found = chosen_entries([checkouts], (), PYTHON, own=True, solved=True)
    assert [entry.name for entry in found] == [
        "bot/problems/smooth", "bot/problems/smooth solutions/correct/ref", "bot/problems/smooth submission",
        "sol/scale", "sol/scale solution_python",
        "trace/definitions/generic/scale", "trace/definitions/generic/scale one",
    ]  # fmt: skip
    assert {entry.kernel == "own" for entry in found if " " not in entry.name} == {True}


def test_names_and_kernels_are_chosen(checkouts: Path) -> None:
    chosen = chosen_entries(
        [checkouts / "bot", checkouts / "sol" / "scale"], ("smooth", "nothing"), PYTHON, own=False, solved=True
    )
    assert [entry.name for entry in chosen] == ["problems/smooth solutions/correct/ref", "problems/smooth submission"]
    assert [entry.name for entry in chosen_entries([checkouts / "sol" / "scale"], (), PYTHON, own=True, solved=False)] == [
        "scale"
    ]
    with pytest.raises(ProblemError, match="none of 7 is chosen"):
        chosen_entries([checkouts], ("nothing",), PYTHON, own=True, solved=True)
    with pytest.raises(ProblemError, match="no problem of FlashInfer"):
        chosen_entries([checkouts / "nowhere"], (), PYTHON, own=True, solved=True)


def test_every_chosen_kernel_is_a_module(checkouts: Path) -> None:
    """The reference of a kernelbot task brings the files that it imports with it."""
    for entry in chosen_entries([checkouts], (), PYTHON, own=True, solved=True):
        request = Request(str(entry.path), entry.name, "cpu", entry.kernel, "small", {}, 0.0)
        code = candidate_text(request, find_problem(request)[0])
        assert code is not None
        assert code.contract is Contract.MODULE
        assert "from utils import" not in code.text
        assert "from task import" not in code.text


def test_a_suite_is_judged_where_the_problem_has_it(checkouts: Path) -> None:
    path = checkouts / "sol" / "scale"
    _, suite = find_problem(Request(str(path), "scale", "cpu", "own", "small", {}, 0.0, suite="benchmarks"))
    _, one = find_problem(Request(str(path), "scale", "cpu", "own", "small", {}, 0.0, suite="unheard"))
    assert (len(suite), len(one)) == (3, 1)


def test_what_does_not_fit_lacks_memory() -> None:
    assert refusal("mla with workload b1 does not fit: it needs 29 GB of memory") is Status.OUT_OF_MEMORY
    assert refusal("CUDA out of memory") is Status.OUT_OF_MEMORY
    assert refusal("a trivial model passes") is Status.REFUSED


def test_no_kernel_starts_after_the_deadline(checkouts: Path) -> None:
    entries = chosen_entries([checkouts], (), PYTHON, own=True, solved=False)
    plan = kernelbench.Plan("", "small", {}, 60.0, 0.0, deadline=time.monotonic() - 1)
    results = checkouts / "results.jsonl"
    assert asyncio.run(kernelbench.run(entries, ["cpu"], plan, results)) == []
    assert not results.exists()
    assert math.isinf(kernelbench.Plan("", "small", {}, math.inf, 0.0).seconds())


def test_results_of_kernels_of_their_own_are_read_back(tmp_path: Path) -> None:
    found = [Result("t", "cpu", "own", Status.MEASURED), Result("t submission", "cpu", "/t/submission.py", Status.MISMATCH)]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(one.to_json()) + "\n" for one in found))
    assert kernelbench.known_results(file, kernelbench.Plan("", "full", {}, 60.0, 0.0), "cpu") == found


def test_the_summary_tells_problems_from_solutions() -> None:
    found = [
        Result("t", "cpu", "own", Status.MEASURED, speedup=(1.0, 0.9, 1.1), workloads=3, worst="b1 0.990 [0.900, 1.100]"),
        Result("u", "cpu", "own", Status.REFUSED, "needs several GPUs"),
        Result("t submission", "cpu", "/t/submission.py", Status.MISMATCH, "call 1"),
    ]
    said = "\n".join(formats.summary(found))
    assert said.index("2 files: 1 verified") < said.index("solutions that came with them")
    assert "u: refused: needs several GPUs" in said
    assert "t submission: mismatch: call 1" in said
    assert kernelbench.row(found[0])[7] == "1.000 [0.900, 1.100]; worst of 3: b1 0.990 [0.900, 1.100]"


@pytest.mark.slow
def test_a_task_passes_with_its_reference_as_the_kernel(checkouts: Path) -> None:
    (entry,) = chosen_entries([checkouts / "bot"], (), PYTHON, own=True, solved=False)
    found = asyncio.run(judge(Request(str(entry.path), entry.name, "cpu", entry.kernel, "small", {}, 0.0)))
    assert found.status in (Status.MEASURED, Status.NOT_CORROBORATED), found.reason
    assert found.speedup is not None
