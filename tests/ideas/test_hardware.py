"""What prompts say about devices: every snippet compiles for its architecture, and menus fit device and bottleneck."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from engine.domain.model import Device, PrecisionClass
from engine.domain.plan import CategoryRate
from engine.ideas.prompts import hardware, menu
from engine.ideas.win_rates import shipped_rates
from engine.session.fake_bench import FAKE_CPU, FAKE_GPU

FILES = sorted(
    f.name.removesuffix(".md") for f in resources.files("engine.ideas.prompts").joinpath("hardware").iterdir()
)  # fmt: skip
CUDA = {"cuda_80": ("sm_80", "sm_90a", "sm_100a", "sm_120"), "cuda_90": ("sm_90", "sm_100a", "sm_120"),
        "cuda_90a": ("sm_90a",), "cuda_100a": ("sm_100a",)}  # fmt: skip


def snippets(name: str, language: str) -> list[str]:
    text = resources.files("engine.ideas.prompts").joinpath(f"hardware/{name}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_file_has_snippets_and_is_used() -> None:
    assert {name for name in FILES if name.startswith("cuda")} == set(CUDA)
    assert all(snippets(name, "cuda") for name in CUDA)
    assert all(snippets(name, "cpp") for name in ("cpu_x86", "cpu_arm"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(("name", "arch"), [(name, arch) for name, archs in CUDA.items() for arch in archs])
def test_a_cuda_snippet_compiles_for_its_architectures(name: str, arch: str, tmp_path: Path) -> None:
    """Functions are kept although nothing calls them; templates are instantiated."""
    for number, code in enumerate(snippets(name, "cuda")):
        kept = code.replace("__device__ inline", "__device__ __noinline__")
        used = [
            f"template __device__ void {function}<32>();\n"
            for function in re.findall(r"template <int \w+> .*? (\w+)\(\)", kept)
        ]
        file = tmp_path / f"{number}.cu"
        file.write_text(kept + "".join(used))
        command = ["nvcc", "-std=c++17", f"-arch={arch}", "-cubin", "-rdc=true", "-o", str(tmp_path / "out"), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["cpu_x86", "cpu_arm"])
def test_a_cpu_snippet_compiles(name: str, tmp_path: Path) -> None:
    for code in snippets(name, "cpp"):
        (tmp_path / "a.cpp").write_text(code)
        flags = ["-std=c++20", "-O2", "-fopenmp", "-mavx2", "-mfma", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused"]
        done = subprocess.run(["g++", *flags, str(tmp_path / "a.cpp")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def gpu(arch: str) -> Device:
    return replace(FAKE_GPU, arch=arch)


@pytest.mark.parametrize(
    ("arch", "present", "absent"),
    [
        ("sm_80", ("mma.sync", "no TMA"), ("tcgen05 MMA",)),
        ("sm_90a", ("wgmma", "TMA", "clusters"), ("tcgen05",)),
        ("sm_100a", ("tcgen05", "TMA"), ("setmaxnreg",)),
        ("sm_120", ("TMA", "no wgmma"), ("setmaxnreg",)),
    ],
)
def test_a_device_offers_what_its_architecture_has(arch: str, present: tuple[str, ...], absent: tuple[str, ...]) -> None:
    told = hardware.offers(gpu(arch))
    assert all(word in told for word in present), told
    assert not any(word in told for word in absent), told
    assert ("wgmma.mma_async" in hardware.snippets(gpu(arch))) is (arch == "sm_90a")
    assert ("tcgen05.mma" in hardware.snippets(gpu(arch))) is (arch == "sm_100a")


def test_an_unknown_device_has_no_snippets_and_a_cpu_its_extensions() -> None:
    assert (hardware.offers(gpu("sm_999")), hardware.snippets(gpu("sm_999"))) == ("", "")
    cpu = replace(FAKE_CPU, features=("avx2", "fma"))
    assert hardware.offers(cpu) == "Vector extensions: avx2, fma."
    assert "vector_size" in hardware.snippets(cpu)


def test_the_menu_fits_the_device_and_the_bottleneck_and_has_the_win_rates() -> None:
    compute = menu.optimisations(gpu("sm_90a"), "operations (fp16)", shipped_rates(), PrecisionClass.HALF, narrow=True)
    assert "wgmma" in compute
    assert "tcgen05" not in compute
    assert re.search(
        r"precision and tensor cores \(\d+ of \d+ recorded ideas beat their parent, by \d\.\d\dx in the median\)", compute
    )
    memory = menu.optimisations(gpu("sm_90a"), "bytes", shipped_rates(), PrecisionClass.FP32, narrow=False)
    assert "wgmma" not in memory
    cpu = menu.optimisations(FAKE_CPU, "bytes", shipped_rates(), PrecisionClass.FP32, narrow=False)
    assert "warp" not in cpu
    assert "recorded ideas" not in cpu, "no shipped session ran on a CPU"


def test_win_rates_are_counted() -> None:
    rates = shipped_rates()
    assert rates
    assert all(0 <= rate.wins <= rate.ideas and rate.median >= 1.0 for rate in rates.values())
    assert rates is shipped_rates(), "read once"


def test_cheaper_arithmetic_is_offered_as_far_as_the_tolerance_allows() -> None:
    """Nothing of it for operands that have sixteen bits already; AMX only where the processor has it."""

    def tensor(device: Device, allowed: PrecisionClass, *, narrow: bool) -> str:
        lines = menu.optimisations(device, "operations (fp32)", {}, allowed, narrow=narrow).splitlines()
        return next((line for line in lines if line.startswith("- precision")), "")

    card = gpu("sm_90a")
    assert "a single pass is outside the tolerance" in tensor(card, PrecisionClass.FP32, narrow=False)
    assert "TF32 with fp32 sums" in tensor(card, PrecisionClass.TF32, narrow=False)
    assert "TF32" not in tensor(card, PrecisionClass.HALF, narrow=True)
    bf16 = replace(FAKE_CPU, features=("avx512f", "avx512_bf16"))
    assert tensor(bf16, PrecisionClass.FP32, narrow=False) == ""
    assert "bf16 dot products" in tensor(bf16, PrecisionClass.HALF, narrow=True)
    assert "AMX" not in tensor(bf16, PrecisionClass.HALF, narrow=True)


def test_the_prior_of_a_session_gives_the_win_rates() -> None:
    prior = (CategoryRate("memory access", 12, 5, math.log(1.25), "bytes"), CategoryRate("occupancy", 2, 2, 0.1, "bytes"))
    text = menu.optimisations(gpu("sm_90a"), "bytes", menu.prior_rates(prior, "cuda"), PrecisionClass.FP32, narrow=False)
    assert "- memory access (5 of 12 ideas of earlier sessions beat their parent; 1.25x on average over all): " in text
    assert "- occupancy: " in text, "two ideas give no rate"
