"""Building ``cuda`` kernels with the real nvcc; skipped without one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.domain.errors import ToolchainError
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import Confinement, LimitsOnly
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build
from engine.toolchain.inspection import InstructionMix, Uninspected, inspect

pytestmark = pytest.mark.usefixtures("cache_root")

PLAN = """\
#include "problem.h"
// @tune   BLOCK = 128
// @launch rows(x, out) grid(1) block(BLOCK)
extern "C" __global__ void rows(const float* x, float* out) {
    __shared__ float kept[BLOCK];
    kept[threadIdx.x] = x[threadIdx.x] * N;
    __syncthreads();
    out[threadIdx.x] = kept[BLOCK - 1 - threadIdx.x];
}
"""
HOST = """\
#include "problem.h"
__global__ void rows(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x] * N; }
extern "C" void launch(const float* x, float* out, void*, cudaStream_t stream) { rows<<<1, 32, 0, stream>>>(x, out); }
"""


def _request(source: str, contract: Contract = Contract.PLAN, arch: str = "sm_90a") -> BuildRequest:
    return BuildRequest(source, Dialect.CUDA, contract, "#define N 1024\n", {"BLOCK": 128}, arch, "mine.cu")


def _build(request: BuildRequest, confinement: Confinement) -> BuildOutcome:
    return asyncio.run(build(request, confinement))


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
def test_a_plan_becomes_device_code(confinement: Confinement) -> None:
    outcome = _build(_request(PLAN), confinement)
    assert isinstance(outcome, Artefact), outcome
    assert outcome.binary.name == "kernel.cubin"
    assert outcome.binary.read_bytes()[:4] == b"\x7fELF"
    (found,) = outcome.resources
    assert (found.function, found.shared_bytes, found.spill_bytes) == ("rows", 4 * 128, 0)
    assert found.registers > 0
    assert _build(_request(PLAN), confinement) == replace(outcome, cached=True)


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
def test_a_host_kernel_becomes_a_shared_object(confinement: Confinement) -> None:
    outcome = _build(_request(HOST, Contract.HOST), confinement)
    assert isinstance(outcome, Artefact), outcome
    assert outcome.binary.name == "kernel.so"
    assert b"libcudart.so" in outcome.binary.read_bytes()
    assert len(outcome.resources) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize(
    ("source", "contract", "reason"),
    [
        (
            PLAN.replace("* N", "* foo(N)"),
            Contract.PLAN,
            'mine.cu:6:42: error: identifier "foo" is undefined',
        ),
        (
            PLAN.replace('extern "C" ', ""),
            Contract.PLAN,
            "mine.cu:3:12: error: no entry 'rows' in the compiled code: declare it extern \"C\" __global__",
        ),
        (
            PLAN.replace("kept[BLOCK]", "kept[BLOCK * 1000]"),
            Contract.PLAN,
            "mine.cu: error: ptxas: Entry function 'rows' uses too much shared data",
        ),
        (PLAN.replace("__syncthreads();", 'asm("foo.bar;");'), Contract.PLAN, "mine.cu: error: ptxas: "),
        (PLAN.replace("@launch rows(x", "@launch rows(5"), Contract.PLAN, "mine.cu:3:17: error: expected an operand"),
        (HOST.replace('extern "C" ', ""), Contract.HOST, "mine.cu: error: no launch() with C linkage"),
        ('#include "absent.h"\n' + HOST, Contract.HOST, "mine.cu:1:10: error: absent.h: No such file or directory"),
    ],
)
def test_the_first_error_is_the_reason(source: str, contract: Contract, reason: str) -> None:
    outcome = _build(_request(source, contract), LimitsOnly())
    assert isinstance(outcome, BuildFailure)
    assert outcome.reason.startswith(reason)


@pytest.mark.usefixtures("nvcc")
def test_system_files_cannot_be_included(bubblewrap: Confinement) -> None:
    outcome = _build(_request('#include "/etc/passwd"\n' + PLAN), bubblewrap)
    assert isinstance(outcome, BuildFailure)
    assert "No such file or directory" in outcome.reason
    assert "root:" not in outcome.log


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
def test_each_gpu_architecture_has_a_build_of_its_own() -> None:
    with pytest.raises(ToolchainError, match="not for 'x86_64'"):
        _build(_request(PLAN, arch="x86_64"), LimitsOnly())
    older = _build(_request(PLAN, arch="sm_80"), LimitsOnly())
    assert isinstance(older, Artefact)
    assert older.key != getattr(_build(_request(PLAN), LimitsOnly()), "key", "")


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
def test_instructions_are_counted_or_a_reason_given(confinement: Confinement) -> None:
    outcome = _build(_request(PLAN), confinement)
    assert isinstance(outcome, Artefact)
    match asyncio.run(inspect(outcome.binary, confinement)):
        case InstructionMix(counts):
            assert counts["BAR"] >= 1
            assert counts["LDG"] >= 1
        case Uninspected(reason):
            assert reason.startswith("cuobjdump and nvdisasm are missing")


def test_no_nvcc_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.toolchain.compilers.DEFAULT_CUDA", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    with pytest.raises(ToolchainError, match="nvcc not found: kernels for the GPU need it; install the CUDA toolkit"):
        _build(_request(PLAN), LimitsOnly())


def test_cuda_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "nvcc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no licence\nexit 4\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match=rf"{broken} does not work: exit status 4"):
        _build(_request(PLAN), LimitsOnly())
