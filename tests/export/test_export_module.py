"""An exported module in its own process: test, benchmark, operator, and error messages."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders, sessions
from support.program import command, environment

from engine.domain.errors import ProblemError
from engine.domain.model import Device, Dialect, PrecisionClass, Signature, Workload
from engine.domain.preparation import CorrectnessCheck
from engine.export import module, template
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.toolchain import tunables
from engine.toolchain.compilers import DEFAULT_CUDA
from engine.toolchain.dispatch import Dispatch, DispatchMember, DispatchShape, dispatch_text
from engine.toolchain.kernel_file import read_kernel_file

ROOT = Path(__file__).parents[2]
CPU = Device("cpu", 0, "two cores", "x86_64", 2, 1 << 25, 1 << 33, "torch")
GPU = replace(CPU, kind="cuda", arch="sm_90a", units=132)
GATE = CorrectnessCheck("class:fp32 (10x)", PrecisionClass.FP32, 3e-6, 3e-5, 10.0, {}, ())

SHRINK = '''
import torch
import torch.nn as nn

KERNEL = 2
time = 500
rows = 32


class Model(nn.Module):
    """Weights, a threshold, a tensor that is neither parameter nor buffer, and names that clash with the module's."""

    def __init__(self, width, power):
        super(Model, self).__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.shift = torch.full((1,), 0.5)
        self.power = power

    def forward(self, x, floor):
        return torch.relu(x * self.weight * KERNEL - floor) + self.shift, (x > floor).to(torch.int32)


def get_inputs():
    return [torch.randn(rows, time), 0.25]


def get_init_inputs():
    return [time, {"power": 2}]
'''
RIGHT = """#include "problem.h"
// @tune TWO = 2, 3
extern "C" void launch(const x_t* x, const weight_t* weight, const shift_t* shift, out0_t* out, out1_t* above, void*)
{
    for (long i = 0; i < X_NUMEL; ++i) {
        const float v = TWO * x[i] * weight[i % X_DIM1] - 0.25f;
        out[i] = (v > 0.0f ? v : 0.0f) + shift[0];
        above[i] = x[i] > 0.25f;
    }
}
"""
BROKEN = {
    "wrong": ("- 0.25f", "- 0.2501f"),
    "unwritten": ("i < X_NUMEL", "i < X_NUMEL - 1"),
    "integers": ("above[i] = x[i] > 0.25f", "above[i] = x[i] > 0.3f"),
    "input": ("above[i]", "const_cast<x_t*>(x)[i] = 0; above[i]"),
}
TRITON = """import triton
import triton.language as tl

# @tune BLOCK = 512, 1024
# @workspace 4*X_NUMEL zero
# @launch weighted(x, weight, workspace, X_NUMEL, FLOOR) grid(ceil_div(X_NUMEL, BLOCK))
# @launch finished(x, workspace, shift, out0, out1, X_NUMEL) grid(ceil_div(X_NUMEL, BLOCK)) num_warps(8)


@triton.heuristics({"WIDE": lambda known: known["BLOCK"] > 8})
@triton.jit
def weighted(x, weight, y, count, floor, X_DIM1: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < count) & WIDE
    tl.store(y + at, 2 * tl.load(x + at, inside) * tl.load(weight + at % X_DIM1, inside) - floor, inside)


@triton.autotune([triton.Config({"BLOCK": 1024})], key=["count"])
@triton.jit
def finished(x, y, shift, out, above, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.maximum(tl.load(y + at, inside), 0.0) + tl.load(shift), inside)
    tl.store(above + at, (tl.load(x + at, inside) > 0.25).to(tl.int32), inside)
"""
PYTHON = """import time
import torch
EPSILON = 0.0

class ModelNew(torch.nn.Module):
    def __init__(self, width, power):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))

    def forward(self, x, floor):
        return torch.relu(2 * x * self.weight - floor) + 0.5 + EPSILON, (x > floor).int()
"""


class Modules:
    """A folder of exported modules with its own cache."""

    def __init__(self, folder: Path, reference: str = SHRINK) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        (folder / "shrink.py").write_text(reference)
        self.problem = catalog.find(str(folder / "shrink.py"))
        self.workload = self.problem.workloads[0]
        self.signature = Reference(self.problem, self.workload).signature()

    def export(
        self,
        name: str,
        text: str,
        suffix: str = ".cpp",
        chosen: Mapping[str, int] | None = None,
        rows: tuple[int, ...] = (),
        *,
        for_format: bool = False,
    ) -> Path:
        """``rows``: further shapes."""
        kernel = self.folder / f"{name}{suffix}"
        kernel.write_text(text)
        path = self.folder / f"module_{name}.py"
        others = tuple(Workload(f"rows_{count}", {"rows": count}) for count in rows)
        given = module.Exported(
            self.problem, self.workload, self.signature, CPU, read_kernel_file(kernel), chosen or {}, ("A.",), GATE, path.name,
            tuple((one, Reference(self.problem, one).signature()) for one in others), for_format,
        )  # fmt: skip
        path.write_text(module.module(given))
        return path

    def run(self, *words: object, **changes: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "ESPALIER_CACHE": str(self.cache), "OMP_NUM_THREADS": "2", **changes}
        arguments = [sys.executable, *map(str, words)]
        return subprocess.run(arguments, cwd=self.folder, env=env, capture_output=True, text=True, timeout=150, check=False)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Modules:
    return Modules(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def right(modules: Modules) -> Path:
    return modules.export("right", RIGHT, chosen={"TWO": 2})


@pytest.mark.slow
def test_its_test_passes_and_prints_the_tolerance(modules: Modules, right: Path) -> None:
    said = modules.run(right, "--test", "--seeds", 2)
    assert said.returncode == 0, said.stdout + said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "policy   class:fp32 (10x)"
    assert all("(limit 3e-06)" in line and "; eager " in line for line in lines[1:3])
    assert re.fullmatch(r"opcheck  ok   espalier::shrink_[0-9a-f]{8}", lines[3])
    assert lines[4] == "PASSED: 2 seeds, on cpu"


@pytest.mark.slow
def test_its_benchmark_prints_a_ratio_with_an_interval(modules: Modules, right: Path) -> None:
    said = modules.run(right, "--bench", "--seconds", 0.2, "--hot")
    assert said.returncode == 0, said.stderr
    found = re.search(r"ratio    ([\d.]+) x eager \(95% interval ([\d.]+) to ([\d.]+), (\d+) pairs", said.stdout)
    assert found is not None, said.stdout
    ratio, low, high = (float(found[i]) for i in (1, 2, 3))
    assert 0 < low <= ratio <= high
    assert int(found[4]) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_kernel_fails_its_test(modules: Modules, how: str) -> None:
    said = modules.run(modules.export(how, RIGHT.replace(*BROKEN[how]), chosen={"TWO": 2}), "--test", "--seeds", 1)
    assert said.returncode == 1, said.stdout
    assert "WRONG" in said.stdout
    assert said.stdout.endswith("FAILED: 1 of 1 seeds\n")


DISPATCH = dispatch_text(
    Dispatch(
        ("rows",),
        (
            DispatchMember("k1", {"TWO": 3}, tuple(DispatchShape({"rows": rows}, {"TWO": 2}) for rows in (32, 100)), RIGHT),
            DispatchMember("k2", {}, (DispatchShape({"rows": 3}),), RIGHT.replace("// @tune TWO = 2, 3", "#define TWO (2)")),
        ),
    ),
    Dialect.CPP,
    "two",
)
BETWEEN = """
import torch, module_dispatch as m
made, floor = m.get_init_inputs(), 0.25
mine, theirs = m.ModelNew(made[0], **made[1]), m.Model(made[0], **made[1])
mine.load_state_dict(theirs.state_dict())
for rows in (3, 32, 33, 100):
    x = torch.randn(rows, 500)
    for one, other in zip(mine(x, floor), theirs(x, floor)):
        torch.testing.assert_close(one, other)
print(len(m.KERNELS), len(m.BUILDS), m._library.cache_info().currsize)
"""


@pytest.mark.slow
def test_a_dispatch_is_one_module_for_all_shapes_of_its_suite(modules: Modules) -> None:
    """On a shape between, it runs the reference."""
    path = modules.export("dispatch", DISPATCH, rows=(3, 100))
    said = modules.run(path, "--test", "--seeds", 1)
    assert said.returncode == 0, said.stdout + said.stderr
    assert [line.split()[1] for line in said.stdout.splitlines() if line.startswith("shape")] == [
        "full",
        "rows_3",
        "rows_100",
    ]
    assert said.stdout.endswith("PASSED: 3 shapes, 1 seeds each, on cpu\n")
    used = modules.run("-c", BETWEEN)
    assert used.stdout == "2 3 3\n", used.stderr


ELSEWHERE = """
import torch, {module} as m
made, floor = m.get_init_inputs(), 0.25
mine, theirs = m.ModelNew(made[0], **made[1]), m.Model(made[0], **made[1])
mine.load_state_dict(theirs.state_dict())
x = torch.randn(33, 500)
try:
    for one, other in zip(mine(x, floor), theirs(x, floor)):
        torch.testing.assert_close(one, other)
    print("equal")
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("for_format", "said"), [(False, "x: expected torch.float32"), (True, "equal")])
def test_a_module_for_another_format_runs_the_reference_on_other_shapes(modules: Modules, for_format: bool, said: str) -> None:
    """A task's own harness calls a submission with the shapes of all its cases."""
    path = modules.export(f"one_shape_{for_format}", RIGHT, chosen={"TWO": 2}, for_format=for_format)
    used = modules.run("-c", ELSEWHERE.format(module=path.stem))
    assert used.stdout.startswith(said), used.stdout + used.stderr


@pytest.mark.slow
def test_a_module_that_is_wrong_on_one_shape_fails_and_its_benchmark_has_a_row_for_each(modules: Modules) -> None:
    broken = DISPATCH.replace("#define TWO (2)", "#define TWO 3")
    said = modules.run(modules.export("lame", broken, rows=(3,)), "--test", "--seeds", 1)
    assert (said.returncode, said.stdout.count("WRONG")) == (1, 1), said.stdout
    timed = modules.run(modules.export("timed", DISPATCH, rows=(3,)), "--bench", "--seconds", 0.2, "--hot")
    assert timed.stdout.count("ratio    ") == 2, timed.stdout + timed.stderr
    assert "x eager (geometric mean of 2 shapes)" in timed.stdout


USE = """
import torch, module_right as m
made = m.get_init_inputs()
mine, theirs = m.ModelNew(made[0], **made[1]), m.Model(made[0], **made[1])
mine.load_state_dict(theirs.state_dict())
x, floor = m.get_inputs()
compiled = torch.compile(lambda x: [part * 2 for part in mine(x, floor=0.25)], fullgraph=True, backend="aot_eager")
for one, other in zip(compiled(x), theirs(x, floor)):
    torch.testing.assert_close(one, other * 2)
for one, other in zip(mine(x.t().contiguous().t(), floor), theirs(x, floor)):
    torch.testing.assert_close(one, other)
assert m.KERNEL == 2 and m.time == 500
wrong = [(x, 0.5), (x[:2], floor), (x.double(), floor), (x,), (x, floor, 1), (x.to("meta"), floor)]
for given in wrong:
    try:
        mine(*given)
        print("accepted")
    except (ValueError, TypeError) as error:
        print(error)
try:
    mine(x.clone().requires_grad_(), floor)[0].sum().backward()
except RuntimeError as error:
    print("autograd formula" in str(error))
"""


@pytest.mark.slow
def test_torch_compile_uses_the_operator_and_wrong_arguments_are_one_line(modules: Modules, right: Path) -> None:
    said = modules.run("-c", USE)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[:3] == [
        "floor is 0.5: the kernel is compiled for 0.25",
        "x: expected torch.float32 (32, 500), got torch.float32 (2, 500)",
        "x: expected torch.float32 (32, 500), got torch.float64 (32, 500)",
    ]
    assert lines[-1] == "True"


@pytest.mark.slow
def test_concurrent_imports_compile_once_and_leave_no_files(modules: Modules, right: Path, tmp_path: Path) -> None:
    env = {**os.environ, "ESPALIER_CACHE": str(tmp_path), "PYTHONPATH": str(modules.folder)}
    words = [sys.executable, "-c", "import module_right as m; m._library(0).launch"]
    running = [subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [one.communicate(timeout=120)[1] for one in running] == ["", "", ""]
    kept = list((tmp_path / "exported").iterdir())
    assert [path.suffix for path in kept] == [".so"]
    assert (tmp_path / "exported").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_compile_error_is_one_line(modules: Modules, right: Path, tmp_path: Path) -> None:
    said = modules.run(modules.export("torn", RIGHT.replace("const float v", "const flot v"), chosen={"TWO": 2}), "--test")
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert "RuntimeError: g++ failed: kernel.cpp:6:" in said.stderr
    missing = modules.run(right, "--test", PATH=str(tmp_path), ESPALIER_CACHE=str(tmp_path))
    assert missing.stderr == f"{right.name}: RuntimeError: g++ not found: this kernel is compiled with it\n"
    assert missing.returncode == 1


@pytest.mark.slow
def test_a_python_kernel_is_exported_with_its_test(modules: Modules) -> None:
    path = modules.export("whole", PYTHON, ".py", {"EPSILON": 0})
    assert "import time as time_" in path.read_text()
    said = modules.run(path, "--test", "--seeds", 1)
    assert said.returncode == 0, said.stdout + said.stderr
    assert modules.run(modules.export("off", PYTHON.replace("0.5", "0.51"), ".py"), "--test", "--seeds", 1).returncode == 1


OBJECTS = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Gain:
    name: str
    by: torch.Tensor
    shifts: tuple[torch.Tensor, dict[str, torch.Tensor]]


class Last(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.bias = bias


class Cache(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.register_buffer("data", torch.randn(rows, 4, 32))
        self.last = Last(nn.Parameter(torch.rand(32)))
        self.seen = 3


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x, gain, cache, dtype):
        cache.seen += 1
        y = (x * self.weight + gain.shifts[0] + gain.shifts[1]["far"]) * gain.by + cache.data[:, cache.seen - 1]
        return (y * cache.last.bias).to(dtype)


def get_inputs():
    gain = Gain("gain", torch.rand(32), (torch.rand(32), {"far": torch.rand(1)}))
    return [torch.randn(16, 32), gain, Cache(16), torch.float32]


def get_init_inputs():
    return [32]
"""
IN_C = """#include "problem.h"
extern "C" void launch(const x_t* x, const float* by, const float* near, const float* far, const float* data,
                       const float* last_bias, const weight_t* weight, out_t* out, void*)
{
    for (long i = 0; i < X_NUMEL; ++i) {
        const long c = i % 32, r = i / 32;
        out[i] = ((x[i] * weight[c] + near[c] + far[0]) * by[c] + data[(r * 4 + 3) * 32 + c]) * last_bias[c];
    }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".py", ".cpp"])
def test_arguments_may_be_objects(tmp_path: Path, suffix: str) -> None:
    modules = Modules(tmp_path, OBJECTS)
    names = [operand.name for operand in modules.signature.operands]
    kernel = OBJECTS.replace("class Model(", "class ModelNew(") if suffix == ".py" else IN_C
    path = modules.export("objects", kernel, suffix)
    said = modules.run(path, "--test", "--seeds", 2)
    assert said.returncode == 0, (names, said.stdout + said.stderr)
    said = modules.run(path, "--bench", "--seconds", 0.1)
    assert said.returncode == 0, said.stdout + said.stderr
    wrong = kernel.replace("cache.seen - 1]", "cache.seen - 2]").replace("* 4 + 3", "* 4 + 2")
    assert modules.run(modules.export("wrong", wrong, suffix), "--test", "--seeds", 1).returncode == 1


HIGHER_ORDER = """
import torch
import torch.nn as nn
from torch._higher_order_ops import while_loop
from torch.nn.attention.flex_attention import flex_attention


class Model(nn.Module):
    def forward(self, x):
        y = flex_attention(x, x, x)
        y = torch.cond(x.sum() > 0, lambda a: a.float() + 1, lambda a: a - 1, (y,))
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, torch.matmul(a, a.mT) @ a), (torch.tensor(0), y))[1]


def get_inputs():
    return [torch.randn(1, 2, 16, 16) / 4]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_operators_of_higher_order_are_tested_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # as for the judge, who traces the reference
    modules, code = Modules(tmp_path, HIGHER_ORDER), HIGHER_ORDER.replace("class Model(", "class ModelNew(")
    right = modules.export("right", code, ".py")
    for disabled in ("0", "1"):
        said = modules.run(right, "--test", "--seeds", 2, TORCHDYNAMO_DISABLE=disabled)
        assert said.returncode == 0, said.stdout + said.stderr
        assert "float32, because" not in said.stdout
    wrong = modules.export("wrong", code.replace("i < 3", "i < 2"), ".py")
    assert modules.run(wrong, "--test", "--seeds", 1).returncode == 1


@pytest.mark.slow
def test_a_kernel_may_change_arguments_that_the_reference_changes(tmp_path: Path) -> None:
    adding = SHRINK.replace("        return torch.relu(", "        x += 1\n        return torch.relu(")
    modules = Modules(tmp_path, adding)
    kernel = adding.replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    path = modules.export("adding", kernel, ".py")
    said = modules.run(path, "--test", "--seeds", 1)
    assert said.returncode == 0, said.stdout + said.stderr


DICTIONARY = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {"a": x.softmax(-1), "more": [{"b": x.sigmoid(), "c": x.relu()}, None]}
def get_inputs():
    return [torch.randn(16, 32)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_dictionaries_are_tested_by_key(tmp_path: Path) -> None:
    modules = Modules(tmp_path, DICTIONARY)
    right = DICTIONARY.replace("class Model(", "class ModelNew(").replace(
        '{"a": x.softmax(-1), "more": [{"b": x.sigmoid(), "c": x.relu()}, None]}',
        '{"more": [{"c": x.relu(), "b": x.sigmoid()}, None], "a": x.softmax(-1)}',
    )
    said = modules.run(modules.export("right", right, ".py"), "--test", "--seeds", 1)
    assert said.returncode == 0, said.stdout + said.stderr
    for number, changed in enumerate(
        (right.replace('"b"', '"a"'), right.replace('"a"', '"b"'), right.replace('"c": x.relu(), ', ""))
    ):
        assert modules.run(modules.export(f"wrong{number}", changed, ".py"), "--test", "--seeds", 1).returncode == 1


@pytest.mark.slow
def test_a_module_that_keeps_its_own_weights_is_tested_with_them(tmp_path: Path) -> None:
    modules = Modules(tmp_path)
    folded = PYTHON.replace("torch.randn(width)", "torch.randn(width) * 2").replace("2 * x", "x")
    said = modules.run(modules.export("folded", folded, ".py", {"EPSILON": 0}), "--test", "--seeds", 2)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("weights  its constructor's own") == 1
    wrong = modules.run(modules.export("wrong", folded.replace("0.5", "0.6"), ".py"), "--test", "--seeds", 2)
    assert wrong.returncode == 1
    assert "its constructor's own" not in wrong.stdout


@pytest.mark.slow
def test_a_triton_plan_is_exported_with_its_launches(modules: Modules) -> None:
    """Triton's interpreter runs it without a GPU."""
    pytest.importorskip("triton")
    path = modules.export("tiles", TRITON, ".py", {"BLOCK": 512})
    done = modules.run(path, "--test", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    kernel = next(path for path in (modules.cache / "exported").glob("espalier_*.py"))
    assert kernel.read_text().startswith(TRITON.rstrip())
    assert "function[(32, 1, 1)](**values, x=operands[0], y=espalier_view(workspace, 0, torch.float32)" in kernel.read_text()


@pytest.mark.slow
def test_a_session_s_kernel_is_exported_with_its_figures(tmp_path: Path) -> None:
    """The scripted session's kernel computes nothing, so its exported test must fail."""
    sessions.whole(tmp_path / "scripted")
    done = subprocess.run(
        command("export", tmp_path / "scripted", "-o", "best.py"), cwd=tmp_path, env=environment(tmp_path), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    head = (tmp_path / "best.py").read_text().split('"""')[0]
    figures = ("of espalier session scripted", "precision class fp32", " eager (95% intervals; precise")
    for words in (*figures, "python best.py --test", "torch.ops.espalier.softmax_"):
        assert words in head, head
    assert str(tmp_path) not in (tmp_path / "best.py").read_text()
    env = {**os.environ, "ESPALIER_CACHE": str(tmp_path)}
    words = [sys.executable, "best.py", "--test", "--seeds", "1"]
    tried = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert tried.returncode == 1, tried.stdout + tried.stderr


def built(made: ast.Module) -> tuple[str, str, list[str]]:
    """Source, ``problem.h`` and compiler command of a module's first build."""
    assigned = [
        (s.targets[0] if isinstance(s, ast.Assign) else s.target, s.value)
        for s in made.body
        if isinstance(s, ast.Assign | ast.AnnAssign)
    ]
    values = {target.id: value for target, value in assigned if isinstance(target, ast.Name)}
    kernels, builds = values["KERNELS"], values["BUILDS"]
    assert kernels is not None
    source, *_ = ast.literal_eval(kernels)
    assert isinstance(builds, ast.List)
    first = builds.elts[0]
    assert isinstance(first, ast.Dict)
    fields = {ast.literal_eval(key): value for key, value in zip(first.keys, first.values, strict=True) if key is not None}
    return source, ast.literal_eval(fields["header"]), ast.literal_eval(fields["command"])


def _shipped(problem: str, kernel: str) -> str:
    found = catalog.find(problem)
    workload = next(w for w in found.workloads if w.name == "full")
    source = read_kernel_file(ROOT / "problems" / problem / "playbook" / kernel)
    chosen = tunables.default_values(tunables.parse_tunables(source.text, source.dialect))
    return module.module(
        module.Exported(found, workload, Reference(found, workload).signature(), GPU, source, chosen, (), GATE)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "kernel", "entry"),
    [("matmul_fp16", "multicast.cu", "espalier_launch"), ("softmax", "online_host.cu", "espalier_trouble")],
)
def test_a_cuda_kernel_s_module_is_python_and_its_source_builds(problem: str, kernel: str, entry: str, tmp_path: Path) -> None:
    text = _shipped(problem, kernel)
    compile(text, "module.py", "exec")
    source, problem_h, words = built(ast.parse(text))
    nvcc = shutil.which("nvcc", path=os.pathsep.join([os.environ["PATH"], DEFAULT_CUDA]))
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    (tmp_path / "kernel.cu").write_text(source)
    (tmp_path / "problem.h").write_text(problem_h)
    done = subprocess.run(
        [nvcc, "kernel.cu", *words[1:], "-o", "kernel.so"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert entry.encode() in (tmp_path / "kernel.so").read_bytes()


@pytest.mark.parametrize(
    ("problem", "found"),
    [("softmax", "softmax"), ("3D conv-block", "n3d_conv_block"), ("*", "kernel"), ("Größe", "gr__e")],
)
def test_an_operator_s_name_is_an_identifier_and_changes_with_the_kernel(problem: str, found: str) -> None:
    name = module.operator_name(problem, ["a", "b"])
    assert re.fullmatch(rf"espalier::{found}_[0-9a-f]{{8}}", name)
    assert name != module.operator_name(problem, ["a", "c"])


def test_names_of_the_reference_are_not_taken() -> None:
    text = "import time\nfrom pathlib import Path\nimport torch\n\nLIMIT = 1\n\n\ndef f():\n    return time.f(LIMIT), Path\n"
    assert template.keep_apart(text, {"time", "LIMIT", "Path", "torch", "other"}) == (
        "import time as time_\nfrom pathlib import Path as Path_\nimport torch\n\nLIMIT_ = 1\n\n\ndef f():\n"
        "    return time_.f(LIMIT_), Path_\n"
    )


def test_a_problem_without_inputs_cannot_be_an_operator(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(sessions.source("a"))
    signature = Signature(tuple(o for o in builders.signature().operands if o.role.value == "output"), {})
    problem = builders.problem()
    given = module.Exported(problem, problem.workloads[0], signature, CPU, read_kernel_file(tmp_path / "a.cpp"), {}, ())
    with pytest.raises(ProblemError, match="no input"):
        module.module(given)
    assert given.kernel.dialect is Dialect.CPP
