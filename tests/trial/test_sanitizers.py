"""Finalists under the sanitizers: unsafe code that passes a trial is found, clean code has no findings."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.domain import work as w
from engine.domain.model import Contract, Device, Dialect, Operand, Role, Signature, Workload
from engine.problem import catalog, header
from engine.sandbox.confinement import detect
from engine.toolchain.build import BuildRequest
from engine.toolchain.compilers import DEFAULT_CUDA
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge_session import confinement
from engine.trial.tools import compute_sanitizer, gcc_sanitizers, sanitizer_output
from engine.trial.tools.kernel_case import KernelCase

HERE = Path(__file__).parent
RIGHT = (HERE.parent / "exploits" / "right.h").read_text()


class Stand:
    def __init__(self, cache: Path) -> None:
        self._runner = asyncio.Runner()
        self.logs: list[bytes] = []
        problem = catalog.find(str(HERE / "problems" / "scaled_softmax"))
        workload = catalog.workload_for(problem, "small")
        self.bench = TrialBench(Assignment(problem, workload, "cpu"), self._store)

    def _store(self, data: bytes) -> str:
        self.logs.append(data)
        return f"log{len(self.logs)}"

    def run(self, effect: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(asyncio.wait_for(effect, 120))

    def sanitized(self, text: str, dialect: Dialect = Dialect.CPP, contract: Contract = Contract.HOST) -> w.Sanitized:
        found = self.run(
            self.bench.sanitize_kernel(KernelSpec(f"mine.{dialect.value}", text, dialect, contract), lambda _: None)
        )
        assert isinstance(found, w.Sanitized)
        return found

    def close(self) -> None:
        self.run(self.bench.close())
        self._runner.close()


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("ESPALIER_CACHE", str(folder))
        made = Stand(folder)
        yield made
        made.close()
    assert working_folders(folder) == []


def working_folders(cache: Path) -> list[Path]:
    """What builds left behind. The tests that run may build nothing."""
    return list((cache / "build" / "work").glob("*"))


def kernel(body: str, before: str = "") -> str:
    """An honest kernel with ``body`` added at its end."""
    head = f"{RIGHT}\n#include <vector>\n#include <cstddef>\n#include <cstring>\n{before}\n"
    return f'{head}extern "C" void launch(const float* x, const float* weight, float* out, void*)\n{{\n{body}\n}}\n'


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


HONEST = "right(x, weight, out);"


@pytest.mark.slow
def test_a_clean_kernel_has_no_findings_and_is_fast(stand: Stand) -> None:
    stand.sanitized(kernel(HONEST))
    found = stand.sanitized(kernel(f"std::vector<float> kept(8); {HONEST}"))
    assert found.findings == ()
    assert found.note == ""
    assert found.tools == ("address", "undefined")
    assert found.log
    assert 0 < found.seconds < 20


UNSAFE = {
    "reads one float past the end of an input": (
        "volatile float last = x[X_NUMEL]; (void)last;",
        "read of 4 bytes 0 bytes past the end of x",
    ),
    "writes before the start": ("volatile float* early = out - 1; *early = 1;", "bytes before the start of out"),
    "keeps a pointer from an earlier call": (
        "static const float* first = x; volatile float v = first[0]; (void)v;",
        "from an earlier call",
    ),
    "overflows a signed integer": (
        "int big = 2147483647 - X_DIM0; for (long i = 0; i <= X_DIM0; ++i) ++big; if (big == 7) out[0] = 1;",
        "undefined behaviour: signed integer overflow",
    ),
    "reads a misaligned number": (
        'const double* odd = (const double*)(x + 1); volatile double v = *odd; (void)v;',
        "undefined behaviour: load of misaligned address",
    ),
    "runs past an array on the stack": (
        "int a[4] = {}; volatile int n = 5; volatile int v = a[n]; (void)v;",
        "index 5 out of bounds",
    ),
    "runs past a vector": (
        "std::vector<int> v(4); volatile int n = 4; volatile int e = v[n]; (void)e;",
        "failed library assertion: __n < this->size()",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("line", "words"), UNSAFE.values(), ids=list(UNSAFE))
def test_unsafe_code_is_found_at_its_line(stand: Stand, line: str, words: str) -> None:
    text = kernel(f"{HONEST}\n{line}")
    found = stand.sanitized(text)
    told = [one for one in found.findings if words in one]
    assert told, found
    assert "\n" not in told[0]
    if "library" not in words:
        assert told[0].startswith(f"mine.cpp:{line_of(text, line)}: ")


@pytest.mark.slow
def test_sanitizers_find_what_passes_the_trial(stand: Stand) -> None:
    """A read past the end without effect on the outputs passes the correctness check."""
    text = kernel(f"{HONEST} volatile float last = x[X_NUMEL]; (void)last;")
    stand.run(stand.bench.prepare(lambda _: None, measure=False))
    verified = stand.run(stand.bench.verify_kernel(KernelSpec("mine.cpp", text, Dialect.CPP, Contract.HOST), lambda _: None))
    assert isinstance(verified, w.Verified), verified
    assert stand.sanitized(text).findings


@pytest.mark.slow
def test_a_hanging_kernel_is_stopped(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcc_sanitizers, "LIMITS", replace(gcc_sanitizers.LIMITS, seconds=1.0))
    began = time.monotonic()
    found = stand.sanitized(kernel("for (volatile int n = 0;; n = 1 - n) {}"))
    assert "stopped after 1 s" in found.note
    assert found.findings == ()
    assert time.monotonic() - began < 20


@pytest.mark.slow
@pytest.mark.parametrize("line", ["std::_Exit(0);", "std::abort();", "std::exit(7);"])
def test_an_early_exit_is_a_finding(stand: Stand, line: str) -> None:
    found = stand.sanitized(kernel(line, "#include <cstdlib>"))
    assert found.findings


@pytest.mark.slow
def test_a_failed_sanitizer_build_is_a_note_and_not_a_finding(stand: Stand) -> None:
    broken = "#if defined(__SANITIZE_ADDRESS__)\n#error not here\n#endif\n"
    found = stand.sanitized(kernel(HONEST, broken))
    assert found.tools == ()
    assert found.findings == ()
    assert "does not build with sanitizers" in found.note


@pytest.mark.slow
def test_the_harness_cannot_read_the_user_s_files(stand: Stand, tmp_path: Path) -> None:
    """The program runs in the builder's confinement."""
    if asyncio.run(confinement()).sandbox != "bubblewrap":
        pytest.skip("nothing is hidden here without bubblewrap")
    secret = tmp_path / "secret"
    secret.write_text("key")
    line = f'if (std::FILE* f = std::fopen("{secret}", "r")) {{ int* p = nullptr; *p = 1; }}'
    assert stand.sanitized(kernel(f"{HONEST}\n{line}", "#include <cstdio>")).findings == ()


def test_python_kernels_get_a_note(stand: Stand) -> None:
    found = stand.sanitized("class ModelNew: pass", Dialect.PYTHON, Contract.MODULE)
    assert found.tools == ()
    assert "no sanitizer" in found.note


MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at k(float *)+0x90 in /x/kernel.cu:12
=========     by thread (32,0,0) in block (0,0,0)
=========     Address 0x7f0000001000 is out of bounds
========= Invalid __global__ read of size 16 bytes
=========     at softmax_rows(const float *, float *)+0x20
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at k(float *)+0x40 in /x/kernel.cu:7
=========     and Read access at k(float *)+0x90 in /x/kernel.cu:9 [4 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at k(float *)+0x30 in /x/kernel.cu:5
"""


def test_compute_sanitizer_reports_are_parsed() -> None:
    assert sanitizer_output.parse_compute_sanitizer(MEMCHECK, "kernel.cu", "mine.cu") == (
        "mine.cu:12: invalid __global__ write of 4 bytes",
        "mine.cu, softmax_rows: invalid __global__ read of 16 bytes",
    )
    (race,) = sanitizer_output.parse_compute_sanitizer(RACECHECK, "kernel.cu", "mine.cu")
    assert "Race reported between Write access" in race
    assert sanitizer_output.parse_compute_sanitizer(INITCHECK, "kernel.cu", "mine.cu") == (
        "mine.cu:5: uninitialized __global__ memory read of 4 bytes",
    )
    assert sanitizer_output.parse_compute_sanitizer("========= ERROR SUMMARY: 0 errors\n", "kernel.cu", "mine.cu") == ()


PLAN = """#include "problem.h"
// @launch copy(x, out) grid(1) block(32)
extern "C" __global__ void copy(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
"""
GPU = Device("cuda", 0, "pretended accelerator", "sm_90a", 132, 50 << 20, 80 << 30, "fake 1")


def sanitized_on_gpu(tool: Path | None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> w.Sanitized:
    """A plan under ``tool``, a stand-in for compute-sanitizer: the real one needs a GPU."""
    monkeypatch.setenv("ESPALIER_CACHE", str(cache))
    operands = (Operand("x", Role.INPUT, (32,), "float32"), Operand("out", Role.OUTPUT, (32,), "float32"))
    signature = Signature(operands, {})
    workload = Workload("small", {})
    text = header.render(signature, Dialect.CUDA, "small")
    request = BuildRequest(PLAN, Dialect.CUDA, Contract.PLAN, text, {}, "sm_90a", "mine.cu")

    async def draw(_: Workload, folder: Path, calls: int) -> list[Path]:
        paths = [folder / f"call{n}.bin" for n in range(calls)]
        for path in paths:
            path.write_bytes(bytes(128))
        return paths

    async def act() -> w.Sanitized:
        shape = KernelCase(workload, signature, request)
        return await compute_sanitizer.sanitize_cuda(shape, b"", GPU, tool, draw, await detect(), lambda _: "log")

    found = asyncio.run(act())
    assert working_folders(cache) == []
    return found


def pretended(folder: Path, script: str) -> Path:
    tool = folder / "toolkit" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return tool


def test_a_missing_compute_sanitizer_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sanitized_on_gpu(None, tmp_path, monkeypatch)
    assert found.tools == ()
    assert "not installed" in found.note


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc", path=f"{os.environ['PATH']}:{DEFAULT_CUDA}") is None, reason="needs nvcc")


@pytest.mark.slow
@needs_nvcc
def test_each_tool_runs_and_reports_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = MEMCHECK.replace("'", "")
    script = f"case $2 in memcheck) cat <<'EOF'\n{report}EOF\nexit 9;; *) echo '========= ERROR SUMMARY: 0 errors';; esac"
    found = sanitized_on_gpu(pretended(tmp_path, script), tmp_path / "cache", monkeypatch)
    assert found.tools == ("memcheck", "racecheck", "initcheck")
    assert found.findings[0] == "mine.cu:12: invalid __global__ write of 4 bytes (memcheck)"
    assert found.note == ""


@pytest.mark.slow
@needs_nvcc
def test_a_broken_tool_is_a_note_and_not_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sanitized_on_gpu(pretended(tmp_path, "echo 'no device'; exit 1"), tmp_path / "cache", monkeypatch)
    assert found.tools == ()
    assert found.findings == ()
    assert "memcheck did not run: no device" in found.note


@needs_nvcc
@pytest.mark.slow
def test_the_profile_target_starts_and_reports_a_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device it only starts in the sandbox and reads its arguments."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a device here")
    found = sanitized_on_gpu(pretended(tmp_path, 'shift 8; exec "$@"'), tmp_path / "cache", monkeypatch)
    assert found.tools == ()
    assert "CUDA" in found.note or "NVIDIA" in found.note
