"""The static scan: findings, code without findings, and arbitrary text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Dialect
from engine.toolchain.kernel_file import SUFFIXES
from engine.toolchain.static_scan import static_scan

ROOT = Path(__file__).parents[2]
HONEST = [p for p in sorted((ROOT / "tests" / "exploits" / "honest").iterdir()) if p.suffix in SUFFIXES]
SHIPPED = [p for p in sorted((ROOT / "problems").glob("*/playbook/*")) if p.suffix in SUFFIXES]


@pytest.mark.parametrize("path", [*HONEST, *SHIPPED], ids=lambda p: f"{p.parent.parent.name}/{p.name}")
def test_honest_kernels_have_no_findings(path: Path) -> None:
    assert static_scan(path.read_text(), SUFFIXES[path.suffix]) == ()


ORDINARY_C = {
    "intrinsics": "#include <immintrin.h>\nvoid f(float* a){ _mm_prefetch(a, _MM_HINT_T0); __m512 v = _mm512_loadu_ps(a); }",
    "prefetch in assembly": 'void f(const float* a){ asm volatile("prefetcht0 (%0)" :: "r"(a)); }',
    "ptx": 'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(b) : "memory");',
    "openmp": "#include <omp.h>\nint n = omp_get_max_threads(); double t = omp_get_wtime();",
    "std": "#include <thread>\n#include <chrono>\nauto t = std::chrono::steady_clock::now(); std::vector<float> v; v.at(3);",
    "methods of its own": "struct Row { void open(); void kill(int); void pause(); }; void g(Row r) { r.open(); r.kill(1); }",
    "a comment": "// system(\"rm\"), fork() and /proc/self/mem\n/* ptrace(dlopen) */ int x;",
    "a word inside a word": "int reopened(int systematic) { return my_fork_count + systematic; }",
    "huge pages": "#include <sys/mman.h>\nvoid* p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n"
    "int r = madvise(p, n, MADV_HUGEPAGE);",
    "matrix tiles": "#include <sys/syscall.h>\nlong r = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);",
    "streams": "cudaEventRecord(done, side); cudaStreamWaitEvent(stream, done); cudaStreamBeginCapture(s, m);",
}  # fmt: skip


@pytest.mark.parametrize("text", ORDINARY_C.values(), ids=list(ORDINARY_C))
def test_ordinary_code_has_no_findings(text: str) -> None:
    assert static_scan(text, Dialect.CPP) == ()
    assert static_scan(text, Dialect.CUDA) == ()


ODD_C = {
    "fopen": 'FILE* f = fopen("x", "r");',
    "ofstream": "std::ofstream f;",
    "<fcntl.h>": "#  include <fcntl.h>",
    "/proc/": 'const char* p = "/proc/self/mem";',
    "fork": "int p = fork();",
    "system": 'system("ls");',
    "ptrace": "ptrace(0);",
    "syscall": "long r = syscall(39);",
    "SYS_arch_prctl": "long r = syscall(SYS_arch_prctl, 0x1002, base);",
    "int $0x80": 'asm("int $0x80");',
    "dlsym": 'void* p = dlsym(0, "x");',
    "getenv": 'auto v = std::getenv("HOME");',
    "mprotect": "mprotect(p, 1, 7);",
    "sleep_for": "std::this_thread::sleep_for(1ms);",
    "clock_gettime": "auto* code = &clock_gettime;",
    "__attribute__((constructor": "__attribute__((constructor)) void early() {}",
    "PyGILState_Ensure": "PyGILState_Ensure();",
    "sigaction": "sigaction(11, &a, 0);",
    "cudaLimitPersistingL2CacheSize": "cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, n);",
}


@pytest.mark.parametrize(("what", "text"), ODD_C.items())
def test_suspicious_code_is_found_at_its_line(what: str, text: str) -> None:
    (found,) = [one for one in static_scan(f"// first\n\n{text}\n", Dialect.CPP) if one.what == what]
    assert found.line == 3
    assert found.describe("k.cpp").startswith(f"k.cpp:3: {what}: ")


def test_a_child_process_that_is_waited_for_is_allowed() -> None:
    assert static_scan("pid_t p = fork(); waitpid(p, nullptr, 0);", Dialect.CPP) == ()


MODULE = """import torch
from torch import nn
{}
class ModelNew(nn.Module):
    def forward(self, x):
        {}
        return x
"""


@pytest.mark.parametrize(
    ("top", "body"),
    [
        ("import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0a'", "pass"),
        ("import os, sys, math, time", "self.n = os.cpu_count()"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "self.buffer = torch.empty_like(x)"),
        (
            "from torch.utils.cpp_extension import load_inline\nsrc = '''#include <torch/extension.h>\nint f();'''",
            "self.eval()",
        ),
        ("import triton\nimport triton.language as tl", "torch.compile(self)"),
        ("compiled = torch.compile(torch.relu)", "t = x.open if hasattr(x, 'open') else None"),
        ("text = 'see /proc and os.fork'", "x.grad = None"),
        ("import os\nfolder = f'build_{os.getpid()}'\nos.makedirs(folder, exist_ok=True)", "pass"),
        ("import os\nroot = os.environ.get('CUDA_HOME', '/usr/local/cuda')\nhome = os.environ['CUDA_HOME']", "pass"),
        ("", "x = torch._C._nn.gelu(x, approximate='tanh')"),
    ],
)
def test_an_ordinary_module_has_no_findings(top: str, body: str) -> None:
    assert static_scan(MODULE.format(top, body), Dialect.PYTHON) == ()


@pytest.mark.parametrize(
    ("top", "body", "what"),
    [
        ("import gc as g", "g.get_objects()", "gc.get_objects"),
        ("from sys import _getframe as up", "up(1)", "sys._getframe"),
        ("import time", "time.perf_counter = None", "time.perf_counter = …"),
        ("import os", "os.fork()", "os.fork"),
        ("import os", "k = os.environ.get('KEY')", "os.environ.get"),
        ("import os", "k = os.environ['KEY']", "os.environ"),
        ("", "torch.allclose = lambda *a: True", "torch.allclose = …"),
        ("", "setattr(torch, 'rand', None)", "setattr(torch, …)"),
        ("", "x.float = lambda: x", "….float = lambda"),
        ("", "open('/etc/passwd')", "open"),
        ("", "eval('1')", "eval"),
        ("import engine.trial", "pass", "engine.trial"),
        ("class T(torch.Tensor):\n    def __torch_function__(cls, *a):\n        pass", "pass", "__torch_function__"),
        ("", "torch._C._set_foo()", "torch._C._set_foo"),
        ("", "torch._C._nn.gelu = None", "torch._C._nn.gelu = …"),
        ("", "f = torch._C._nn", "torch._C._nn"),
        ("", "torch._C._nn.__dict__", "torch._C._nn.__dict__"),
        ("src = '''#include <x.h>\nint f() { return fork(); }'''", "pass", "fork"),
        ("import ctypes", "ctypes.CDLL(None)", "ctypes.CDLL"),
    ],
)
def test_suspicious_python_is_found(top: str, body: str, what: str) -> None:
    assert what in [one.what for one in static_scan(MODULE.format(top, body), Dialect.PYTHON)]


TASK = """
import os
class Deterministic:
    def __enter__(self):
        self.kept = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
"""


def test_a_tasks_own_code_raises_no_suspicion_and_changed_code_does() -> None:
    assert [one.what for one in static_scan(TASK, Dialect.PYTHON)] == ["os.environ.get"]
    assert static_scan(TASK, Dialect.PYTHON, [TASK]) == ()
    assert static_scan(f"# moved\n\n{TASK}", Dialect.PYTHON, ["no = python code", TASK]) == ()
    changed = TASK.replace("CUBLAS_WORKSPACE_CONFIG", "SEED")
    assert [one.line for one in static_scan(changed, Dialect.PYTHON, [TASK])] == [5]
    beside = TASK + "seed = os.environ.get('SEED')\n"
    assert [one.line for one in static_scan(beside, Dialect.PYTHON, [TASK])] == [6]


def test_code_that_is_nested_too_deeply_is_not_a_tasks() -> None:
    deep = f"import os\nvalue = os.environ.get('A') + {'+'.join('1' * 900)}\n"
    assert [one.what for one in static_scan(deep, Dialect.PYTHON, [deep])] in (["os.environ.get"], [])
    assert [one.what for one in static_scan(deep, Dialect.PYTHON, ["x = 1"])] == ["os.environ.get"]


def test_the_number_of_findings_is_limited() -> None:
    assert len(static_scan("\n".join(f"int a{n} = SYS_n{n};" for n in range(500)), Dialect.CPP)) <= 12


@pytest.mark.slow
@given(st.text(), st.sampled_from(list(Dialect)))
def test_any_text_can_be_scanned(text: str, dialect: Dialect) -> None:
    for found in static_scan(text, dialect):
        assert found.line >= 1


REPACKED = """
class ModelNew(nn.Module):
    def forward(self, x):
        BINDING
        if self.version != VERSION:
            self.packed, self.version = self.weight.t().contiguous(), VERSION
        return x @ self.packed
"""


@pytest.mark.parametrize(
    ("binding", "version"),
    [
        ("pass", "self.weight._version"), ("pass", "self.fc.weight._version"), ("weight = self.fc.weight", "weight._version"),
    ],
)  # fmt: skip
def test_a_module_may_read_whether_its_own_weights_have_changed(binding: str, version: str) -> None:
    assert static_scan(REPACKED.replace("BINDING", binding).replace("VERSION", version), Dialect.PYTHON) == ()


@pytest.mark.parametrize(
    ("binding", "version"),
    [
        ("pass", "x._version"), ("weight = x", "weight._version"), ("x = self.weight", "x._version"),
        ("weight = self.weight; weight = x", "weight._version"), ("for weight in (x, self.weight): pass", "weight._version"),
        ("pass", "self.pick(x)._version"),
    ],
)  # fmt: skip
def test_the_version_of_anything_else_is_a_finding(binding: str, version: str) -> None:
    found = static_scan(REPACKED.replace("BINDING", binding).replace("VERSION", version), Dialect.PYTHON)
    assert [finding.what for finding in found] == ["_version"]
