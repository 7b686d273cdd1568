"""Finding problems and reading them without running anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.domain.errors import ProblemError
from engine.domain.model import Workload
from engine.problem import catalog
from engine.problem.files import reference_code

SHIPPED = (
    "attention_fp16",
    "conv2d",
    "conv2d_relu_maxpool",
    "gemm_fp8",
    "gqa_decode_bf16",
    "layernorm",
    "matmul_fp16",
    "matmul_fp32",
    "rmsnorm_bf16",
    "softmax",
)
GOOD = """
import torch
from torch import nn
dim = 8
hidden = dim * 4
class Model(nn.Module):
    def forward(self, x):
        return x
def get_inputs():
    return [torch.rand(dim, hidden)]
def get_init_inputs():
    return []
"""


def write(folder: Path, text: str | bytes, table: str | None = None) -> str:
    folder.mkdir(exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    (folder / "reference.py").write_bytes(data)
    if table is not None:
        (folder / "problem.toml").write_text(table)
    return str(folder)


def error(spec: str) -> str:
    with pytest.raises(ProblemError) as caught:
        catalog.find(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


def refusal(spec: str, otherwise: str) -> str:
    """The error of ``find`` for ``spec``, or ``otherwise`` without an error."""
    try:
        catalog.find(spec)
    except ProblemError as refused:
        return str(refused)
    return otherwise


def test_ten_problems_ship() -> None:
    assert tuple(p.name for p in catalog.shipped()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_problem_has_both_workloads_and_holdouts(name: str) -> None:
    problem = catalog.find(name)
    assert (problem.origin, problem.name) == (name, name)
    assert problem.title
    assert [w.name for w in problem.workloads][:2] == ["full", "small"]
    assert {name: len(members) for name, members in problem.suites.items()} == {"models": 8, "small": 8}
    for workload in problem.workloads[:2]:
        holdouts = problem.holdouts[workload.name]
        assert 2 <= len(holdouts) <= 3
        assert all(h.settings.keys() == workload.settings.keys() for h in holdouts)
        assert all(dict(h.settings) != dict(workload.settings) for h in holdouts)
    assert catalog.folder(problem) == catalog.problems_root() / name


def test_every_workload_has_a_holdout_with_odd_sizes() -> None:
    for problem in catalog.shipped():
        for holdouts in problem.holdouts.values():
            assert any(any(int(v) % 2 for k, v in h.settings.items() if k in ODD[problem.name]) for h in holdouts)


ODD = {
    "attention_fp16": {"sequence"},
    "conv2d": {"height"},
    "conv2d_relu_maxpool": {"height"},
    "gemm_fp8": {"m"},
    "gqa_decode_bf16": {"length"},
    "layernorm": {"dim1"},
    "matmul_fp16": {"k"},
    "matmul_fp32": {"k"},
    "rmsnorm_bf16": {"tokens"},
    "softmax": {"dim"},
}


def test_a_foreign_file_has_one_workload_as_written(tmp_path: Path) -> None:
    path = tmp_path / "1_Thing_.py"
    path.write_text(GOOD)
    problem = catalog.find(str(path))
    assert problem.name == "1_Thing_"
    assert problem.title == "1 Thing"
    assert problem.workloads == (Workload("full", {"dim": 8}),)
    assert not problem.holdouts
    assert catalog.workload_for(problem, "small").name == "full"
    assert catalog.folder(problem) is None


def test_an_unknown_workload_lists_the_known_ones() -> None:
    with pytest.raises(ProblemError, match="unknown workload 'huge' of problem softmax: choose one of full, small"):
        catalog.workload_for(catalog.find("softmax"), "huge")


def test_a_folder_and_its_reference_are_the_same_problem(tmp_path: Path) -> None:
    spec = write(tmp_path / "mine", GOOD, "[workloads.small]\ndim = 4\n[[holdouts.small]]\nhidden = 5\n")
    by_folder, by_file = catalog.find(spec), catalog.find(f"{spec}/reference.py")
    assert by_folder.name == by_file.name == "mine"
    assert by_folder.digest == by_file.digest
    assert by_folder.holdouts["small"] == (Workload("small-holdout-1", {"dim": 4, "hidden": 5}),)
    assert catalog.folder(by_folder) == catalog.folder(by_file) == Path(spec)


def test_the_digest_covers_text_workloads_and_holdouts(tmp_path: Path) -> None:
    tables = (
        "",
        "[workloads.a]\ndim = 1",
        "[workloads.a]\ndim = 1.0",
        "[workloads.b]\ndim = 1",
        "[workloads.a]\ndim = 1\n[[holdouts.a]]\ndim = 2",
    )
    digests = [catalog.find(write(tmp_path / "p", GOOD, t)).digest for t in tables]
    digests.append(catalog.find(write(tmp_path / "p", GOOD + "\n# more", "")).digest)
    assert len(set(digests)) == len(digests)
    assert catalog.find(write(tmp_path / "q", GOOD, tables[0])).digest == digests[0]


def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    plain = catalog.find(write(tmp_path / "p", GOOD)).digest
    assert catalog.find(write(tmp_path / "p", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())).digest == plain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        (" \n\t\n", "empty"),
        (b"\x7fELF\x00\x00", "binary"),
        (b"x = 1\ny = '\xff'\n", "line 2: not UTF-8"),
        ("x = 1\ndef broken(:\n", "line 2: not valid Python"),
        ("return 3", "line 1: not valid Python"),
        ("x = " + "(" * 5000, "Python"),
        (GOOD.replace("class Model", "class Other"), "no class Model"),
        (GOOD.replace("get_inputs", "inputs"), "no function get_inputs"),
        (GOOD.replace("get_init_inputs", "init"), "no function get_init_inputs"),
        ("#" * (1 << 21), "larger than"),
    ],
)
def test_an_invalid_reference_is_rejected_with_the_reason(tmp_path: Path, text: str | bytes, said: str) -> None:
    message = error(write(tmp_path / "p", text))
    assert said in message
    assert "reference.py" in message


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[workloads", "not valid TOML"),
        ("title = 3", "title: expected str, got int"),
        ("tolerance = 3", "unknown key 'tolerance': use bounds, holdouts, suites, title, workloads"),
        ("workloads = 3", "workloads: expected a table, got int"),
        ("[workloads]\nfull = 3", "workloads.full: expected a table, got int"),
        ("[workloads.full]\ndim = 'x'", "workloads.full.dim: expected int | float, got str"),
        ("[workloads.full]\ndim = true", "dim: expected int | float, got bool"),
        ("[workloads.full]\ndim = inf", "workloads.full.dim: expected a finite number of at most 64 bits, got inf"),
        (f"[workloads.full]\ndim = {10**30}", "workloads.full.dim: expected a finite number of at most 64 bits, got more"),
        (f"[workloads.full]\ndim = {'9' * 4000}", "workloads.full.dim: expected a finite number of at most 64 bits, got more"),
        ("[workloads.full]\nwidth = 3", "sets width, which reference.py does not assign"),
        ("[workloads.full]\nget_inputs = 3", "sets get_inputs"),
        ("[[holdouts.full]]\ndim = 3", "has no workload"),
        ("[workloads.full]\n[holdouts]\nfull = 3", "holdouts.full: expected a list, got int"),
        ("[workloads.full]\n[[holdouts.full]]\nwidth = 3", "full-holdout-1 sets width"),
        ("[suites]\nall = []", "suites.all is empty"),
        ("[workloads.full]\n[suites]\nall = ['fall']", "suites.all: no workload is called 'fall': add [workloads.fall]"),
        ("[workloads.full]\n[suites]\nall = ['full', 'full']", "suites.all names the workload 'full' twice"),
        ("[suites]\nall = 'full'", "suites.all: expected a list, got str"),
    ],
)
def test_an_invalid_table_is_rejected_with_the_reason(tmp_path: Path, table: str, said: str) -> None:
    message = error(write(tmp_path / "p", GOOD, table))
    assert said in message
    assert "problem.toml" in message


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("sofmax", "did you mean 'softmax'"),
        ("Conv2D", "did you mean 'conv2d'"),
        ("zzz", "unknown problem 'zzz': `espalier problems`"),
        ("", "unknown problem ''"),
        ("no/such.py", "'no/such.py' not found"),
        ("other.py", "'other.py' not found"),
        ("/dev/null", "neither a file nor a folder"),
        ("a\0b", "problem"),
        ("x" * 5000, "problem"),
        ("~nobody-of-this-name/x", "problem"),
    ],
)
def test_an_unknown_problem_is_rejected_with_advice(spec: str, said: str) -> None:
    message = error(spec)
    assert said in message
    assert "did you mean" in message or "`espalier problems`" in message


def test_an_empty_folder_is_rejected(tmp_path: Path) -> None:
    assert "has no reference.py" in error(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "kernel.cu", "README.md", "problems.yaml"])
def test_a_file_of_no_known_format_is_not_read_as_python(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("__global__ 1st\n")
    assert f"{name}: no problem: a problem is a Python file in KernelBench's format" in error(str(tmp_path / name))


@pytest.mark.parametrize("inner", ["level1/1_relu.py", "tasks/sort/task.yml", "set/definitions/gemm/g.json"])
def test_a_folder_of_problems_is_refused_with_one_of_them(tmp_path: Path, inner: str) -> None:
    file = tmp_path / inner
    file.parent.mkdir(parents=True)
    file.write_text("def get_init_inputs():\n    return []\n")
    named = file.parent if file.suffix == ".yml" else file
    folder = file.parent if file.suffix == ".py" else file.parent.parent
    assert error(str(folder)).endswith(f"is not a problem but contains some: name one, such as {named}")


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("nowhere")],
    ids=["pipe", "folder", "device", "dangling"],
)
def test_a_folder_is_looked_through_past_what_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "0_first.py")
    assert "has no reference.py" in error(str(tmp_path))
    (tmp_path / "1_relu.py").write_text("def get_init_inputs():\n    return []\n")
    assert error(str(tmp_path)).endswith(f"name one, such as {tmp_path / '1_relu.py'}")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_any_bytes_are_a_problem_or_one_clear_line(tmp_path: Path, data: bytes) -> None:
    for name, table in (("reference.py", None), ("problem.toml", data)):
        spec = write(tmp_path / "p", GOOD if table is not None else data)
        (tmp_path / "p" / "problem.toml").unlink(missing_ok=True)
        if table is not None:
            (tmp_path / "p" / name).write_bytes(table)
        said = refusal(spec, name)
        assert name in said
        assert "\n" not in said


@given(spec=st.text(max_size=40))
def test_any_name_is_a_problem_or_one_clear_line(spec: str) -> None:
    assert "\n" not in refusal(spec, "")


@given(
    first=st.integers(-(10**6), 10**6),
    second=st.floats(allow_nan=False, allow_infinity=False),
    names=st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), unique=True),
)
def test_settings_apply_to_later_code(first: int, second: float, names: list[str]) -> None:
    text = "a = 1\nb = c = a + 1\n(d, e) = (b * 2, a)\nif a:\n    e += 1\nlast = [a, b, c, d, e]\n"
    chosen = {name: (first if i % 2 else second) for i, name in enumerate(names)}
    scope: dict[str, object] = {}
    tree = reference_code.with_settings(reference_code.parse(text, "t.py"), chosen)
    exec(compile(tree, "t.py", "exec"), scope)
    expected: dict[str, float] = {"a": 1, **chosen}
    a = chosen.get("a", 1)
    b, c = chosen.get("b", a + 1), chosen.get("c", a + 1)
    e = chosen.get("e", a + 1 if a else a)
    expected_list = [a, b, c, chosen.get("d", b * 2), e]
    assert scope["last"] == expected_list
    assert expected["a"] == scope["a"]


@pytest.mark.slow
def test_the_catalog_and_the_header_load_no_torch() -> None:
    code = "import sys; from engine.problem import catalog, header; catalog.shipped(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(catalog.__file__).parents[2])


def test_a_suite_names_its_workloads_in_order(tmp_path: Path) -> None:
    table = "[workloads.full]\n[workloads.tiny]\ndim = 2\n[suites]\nboth = ['tiny', 'full']"
    problem = catalog.find(str(write(tmp_path / "p", GOOD, table)))
    assert [one.name for one in catalog.suite_for(problem, "both")] == ["tiny", "full"]
    assert catalog.workloads_for(problem, "", "both", "full") == catalog.suite_for(problem, "both")
    assert [one.name for one in catalog.workloads_for(problem, "", "", "tiny")] == ["tiny"]
    with pytest.raises(ProblemError, match=r"unknown suite 'none' of problem p: choose one of both \(2 workloads\)"):
        catalog.suite_for(problem, "none")
    with pytest.raises(ProblemError, match="--suite and --workload exclude each other"):
        catalog.workloads_for(problem, "full", "both", "full")
