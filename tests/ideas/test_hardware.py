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

from engine.domain.model import Device, Dialect, PrecisionClass
from engine.domain.round_plan import CategoryRate
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


@pytest.mark.slow
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


def menu_of(device: Device, bound: str, allowed: PrecisionClass, operands: menu.Operands = menu.Operands.WIDE) -> str:
    return menu.optimisations(menu.Situation(device, bound, allowed, operands), shipped_rates(device.kind))


def test_the_menu_fits_the_device_and_the_bottleneck_and_has_the_win_rates() -> None:
    compute = menu_of(gpu("sm_90a"), "operations (fp16)", PrecisionClass.HALF, menu.Operands.FP16)
    assert "wgmma" in compute
    assert "tcgen05" not in compute
    assert re.search(
        r"precision and tensor cores \(\d+ of \d+ recorded ideas beat their parent; geometric mean \d\.\d\dx\)", compute
    )
    memory = menu_of(gpu("sm_90a"), "bytes", PrecisionClass.FP32)
    assert "wgmma" not in memory
    cpu = menu_of(FAKE_CPU, "bytes", PrecisionClass.FP32)
    assert "warp" not in cpu
    assert "recorded ideas" not in cpu, "no shipped session ran on a CPU"


def test_in_triton_the_menu_names_what_triton_can_say() -> None:
    here = menu.Situation(gpu("sm_90a"), "operations (fp16)", PrecisionClass.HALF, menu.Operands.FP16, Dialect.TRITON)
    text = menu.optimisations(here, ())
    assert "tl.dot" in text
    assert "num_stages" in text
    assert not re.search("mbarrier|wgmma|warp specialisation|swizzle|distributed shared", text)


def test_shipped_rates_are_counted_once() -> None:
    rates = shipped_rates("cuda")
    assert rates
    assert all(0 <= rate.gained <= rate.tried for rate in rates)
    assert rates is shipped_rates("cuda")


def test_cheaper_arithmetic_is_offered_as_far_as_tolerance_operands_and_processor_allow() -> None:
    """bf16 rounds float16 operands by more than their own arithmetic errs."""

    def tensor(device: Device, allowed: PrecisionClass, operands: menu.Operands) -> str:
        lines = menu_of(device, "operations (fp32)", allowed, operands).splitlines()
        return next((line for line in lines if line.startswith("- precision")), "")

    card, wide, fp16 = gpu("sm_90a"), menu.Operands.WIDE, menu.Operands.FP16
    assert "a single pass is outside the tolerance" in tensor(card, PrecisionClass.FP32, wide)
    assert "TF32 with fp32 sums" in tensor(card, PrecisionClass.TF32, wide)
    assert not re.search("TF32|bf16", tensor(card, PrecisionClass.HALF, fp16))
    bf16 = replace(FAKE_CPU, features=("avx512f", "avx512_bf16"))
    assert tensor(bf16, PrecisionClass.FP32, wide) == ""
    assert "bf16 dot products" in tensor(bf16, PrecisionClass.HALF, wide)
    assert "bf16 dot products" in tensor(bf16, PrecisionClass.HALF, menu.Operands.BF16)
    assert "bf16" not in tensor(bf16, PrecisionClass.HALF, fp16)
    assert "widened" in tensor(bf16, PrecisionClass.HALF, fp16)
    amx = replace(FAKE_CPU, features=("avx512f", "amx_bf16"))
    assert "AMX" not in tensor(bf16, PrecisionClass.HALF, wide)
    assert "a single pass is outside" in tensor(amx, PrecisionClass.FP32, wide)


@pytest.mark.parametrize(
    ("dtypes", "kind"),
    [(["float16"] * 3, "fp16"), (["bfloat16"], "bf16"), (["float16", "float32"], "wide"), (["float32"], "wide"), ([], "wide")],
)
def test_operands_are_narrow_only_where_all_are(dtypes: list[str], kind: str) -> None:
    assert menu.Operands.kind(dtypes) == kind


def test_the_prior_of_a_session_gives_the_win_rates() -> None:
    prior = (CategoryRate("memory access", 12, 5, math.log(1.25), "bytes"), CategoryRate("occupancy", 2, 2, 0.1, "bytes"))
    text = menu.optimisations(menu.Situation(gpu("sm_90a"), "bytes", PrecisionClass.FP32), prior)
    assert "- memory access (5 of 12 recorded ideas beat their parent; geometric mean 1.25x): " in text
    assert "- occupancy: " in text, "two ideas give no rate"
