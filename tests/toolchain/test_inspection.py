"""Instruction families in listings and in shipped kernels."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.problem import catalog, header
from engine.problem.reference import Reference
from engine.sandbox.confinement import Confinement, LimitsOnly
from engine.toolchain import inspection, tunables
from engine.toolchain.build import Artefact, BuildRequest, build
from engine.toolchain.inspection import InstructionMix, Uninspected, count_native, count_sass, inspect
from engine.toolchain.kernel_file import read_kernel_file

PROBLEMS = Path(__file__).parents[2] / "problems"


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ("HGMMA.64x128x16.F32 R24, gdesc[UR4], R24, gsb0", "HGMMA"),
        ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8]", "UTCMMA"),
        ("HMMA.16816.F32 R4, R8, R12, R4", "HMMA"),
        ("IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4", "IMMA"),
        ("DMMA.884 R4, R8, R12, R4", "DMMA"),
        ("LDGSTS.E.BYPASS.128 [R9], desc[UR8][R4.64]", "LDGSTS"),
        ("UTMALDG.2D [UR8], [UR4], desc[UR6]", "TMA"),
        ("UBLKCP.S.G [UR8], [UR4], UR6", "TMA"),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "LDG LDG.128"),
        ("LDG.E.64 R4, desc[UR4][R2.64]", "LDG"),
        ("LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64]", "LDG LDG.128"),
        ("STG.E.128 desc[UR4][R2.64], R4", "STG STG.128"),
        ("LDS.128 R4, [R2]", "LDS LDS.128"),
        ("STS [R2], R4", "STS"),
        ("LDSM.16.M88.4 R4, [R2]", "LDSM"),
        ("LDL.LU R4, [R1+0x10]", "LDL"),
        ("STL.64 [R1+0x10], R4", "STL"),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "BAR"),
        ("UCGABAR_ARV", "BAR"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", "SYNCS"),
        ("FFMA R0, R4, R5, R0", "FFMA"),
        ("MUFU.EX2 R0, R4", "MUFU"),
        ("HFMA2.MMA R4, R5, R6, R7", "HFMA2"),
        ("HFMA2.MMA R4, -RZ, RZ, 0, 0", ""),
        ("ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR4][R2.64], R6", "ATOM"),
        ("LDC.64 R6, c[0x0][0x210]", ""),
        ("IMAD.MOV.U32 R12, RZ, RZ, R0", ""),
    ],
)
@pytest.mark.parametrize("guard", ["", "@!P0 ", "@!UP0 "])
def test_families_of_device_instructions(text: str, families: str, guard: str) -> None:
    found = count_sass([f"        /*0a80*/  {guard}{text} ;   /* 0x00000a00ff017b82 */"])
    assert found == {"total": 1, **dict.fromkeys(families.split(), 1)}


@pytest.mark.parametrize(
    ("text", "families"),
    [
        ("vfmadd231ps (%rdi),%zmm1,%zmm2", "zmm fma"),
        ("vfnmadd132ss %xmm0,%xmm1,%xmm2", "xmm fma fma.scalar"),
        ("vmovups %ymm0,0x40(%rsp)", "ymm stack"),
        ("mov %rax,0x40(%rsp)", ""),
        ("vgatherdps (%rax,%ymm1,4),%ymm0{%k1}", "ymm gather"),
        ("vpscatterdd %zmm0,(%rax,%zmm1,4){%k1}", "zmm scatter"),
        ("prefetcht0 0x400(%rdi)", "prefetch"),
        ("vmovntps %zmm0,-0x40(%rcx)", "zmm stream"),
        ("call 1030 <expf@plt>", "call"),
        ("bl 730 <expf@plt>", "call"),
        ("fmla v0.4s, v1.4s, v2.4s", "fma"),
        ("blt 730 <launch+0x10>", ""),
    ],
)
def test_families_of_cpu_instructions(text: str, families: str) -> None:
    assert count_native([f"    1130:\t{text}"]) == {"total": 1, **dict.fromkeys(families.split(), 1)}


def test_other_lines_are_not_counted() -> None:
    assert not count_native(
        ["0000000000001130 <launch>:", "    1145:\tnopw   0x0(%rax,%rax,1)", "    1147:\tcs nopw 0x0(%rax)"]
    )
    assert not count_sass(["convolve:", ".text.convolve:", "        /*0070*/  NOP ;", '\t.headerflags\t@"EF_CUDA_SM90"'])


def shipped(problem: str, kernel: str, arch: str) -> BuildRequest:
    source = read_kernel_file(PROBLEMS / problem / "playbook" / kernel)
    found = catalog.find(problem)
    workload = next(w for w in found.workloads if w.name == ("full" if source.dialect.value == "cuda" else "small"))
    text = header.render(Reference(found, workload).signature(), source.dialect, workload.name)
    chosen = tunables.default_values(tunables.parse_tunables(source.text, source.dialect))
    return BuildRequest(source.text, source.dialect, source.contract, text, chosen, arch, kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "some", "none"),
    [
        ("naive.cpp", "call", "zmm prefetch stream gather fma"),
        ("vector_exp.cpp", "zmm fma", "prefetch stream gather"),
        ("prefetch.cpp", "zmm fma prefetch", "stream"),
        ("stream_out.cpp", "zmm fma stream", ""),
    ],
)
def test_shipped_cpu_kernels_contain_the_instructions_of_their_idea(kernel: str, some: str, none: str, tmp_path: Path) -> None:
    """Built for a named processor: the result is the same on every machine."""
    request = shipped("softmax", kernel, "x86_64")
    (tmp_path / kernel).write_text(request.code)
    (tmp_path / "problem.h").write_text(request.header)
    flags = ["-std=c++20", "-O3", "-march=x86-64-v4", "-mprefer-vector-width=512", "-ffp-contract=fast", "-fopenmp", "-fPIC"]
    if kernel == "naive.cpp":
        flags.append("-fno-tree-vectorize")
    words = [
        "g++",
        *flags,
        "-shared",
        *(f"-D{name}={value}" for name, value in request.tunables.items()),
        kernel,
        "-o",
        "kernel.so",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "x86-64-v4" in done.stderr:
        pytest.skip("this compiler builds for another kind of processor")
    assert done.returncode == 0, done.stderr
    mix = asyncio.run(inspect(tmp_path / "kernel.so", LimitsOnly()))
    assert isinstance(mix, InstructionMix)
    assert {family for family in some.split() if not mix.counts.get(family)} == set()
    assert {family for family in none.split() if mix.counts.get(family)} == set()


@pytest.mark.parametrize(
    ("problem", "kernel", "some", "none"),
    [
        ("softmax", "naive.cu", "LDG STG FFMA MUFU BAR", "LDG.128 STG.128 HMMA HGMMA LDGSTS TMA LDL STL HFMA2"),
        ("softmax", "vectorise.cu", "LDG.128 STG.128 MUFU", "LDGSTS TMA"),
        ("softmax", "bulk_prefetch.cu", "TMA SYNCS STG.128", "LDG LDGSTS"),
        ("softmax", "online_host.cu", "LDG.128 FFMA BAR", "zmm xmm call"),
        ("conv2d", "async_channels.cu", "LDGSTS FFMA LDS.128", "HMMA HGMMA TMA"),
        ("conv2d", "tensor_cores.cu", "HMMA LDGSTS", "HGMMA"),
        ("conv2d", "warpgroup.cu", "HGMMA LDGSTS", "HMMA FFMA"),
    ],
)
def test_shipped_gpu_kernels_contain_the_instructions_of_their_idea(
    problem: str, kernel: str, some: str, none: str, cache_root: Path, confinement: Confinement
) -> None:
    if not shutil.which("nvcc") or not shutil.which("cuobjdump"):
        pytest.skip("nvcc or cuobjdump is not installed")
    built = asyncio.run(build(shipped(problem, kernel, "sm_90a"), confinement))
    assert isinstance(built, Artefact)
    mix = asyncio.run(inspect(built.binary, confinement))
    if isinstance(mix, Uninspected):
        assert mix.reason.startswith(("cuobjdump and nvdisasm are missing", "cuobjdump is missing"))
        pytest.skip(mix.reason)
    assert {family for family in some.split() if not mix.counts.get(family)} == set()
    assert {family for family in none.split() if mix.counts.get(family)} == set()


def test_triton_s_disassemblers_are_a_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = tmp_path / "triton" / "backends" / "nvidia" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("raise AssertionError('never imported')\n")
    (tools / "nvdisasm").write_text("#!/bin/sh\necho '        /*0000*/  LDG.E R1, desc[UR4][R2.64] ;'\n")
    (tools / "nvdisasm").chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(inspection, "find_nvcc", _none)
    (tmp_path / "kernel.cubin").write_bytes(b"\x7fELF")
    assert asyncio.run(inspect(tmp_path / "kernel.cubin", LimitsOnly())) == InstructionMix({"total": 1, "LDG": 1})
    (tmp_path / "kernel.so").write_bytes(b"\x7fELF .nv_fatbin")
    found = asyncio.run(inspect(tmp_path / "kernel.so", LimitsOnly()))
    assert found == Uninspected("cuobjdump is missing: install the CUDA toolkit's binary utilities")


async def _none() -> None:
    raise inspection.ToolchainError("nvcc is missing")
