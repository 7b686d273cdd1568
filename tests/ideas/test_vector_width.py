"""Kernels of playbooks start with vectors as wide as the CPU's registers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b

from engine.domain.model import Contract, Dialect
from engine.ideas.playbook_file import PlaybookImplementation
from engine.ideas.vector_width import fitted
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.tunables import default_values, parse_tunables

AVX2, AVX512 = ("avx", "avx2"), ("avx", "avx2", "avx512f")


def implementation(text: str, dialect: Dialect) -> PlaybookImplementation:
    return PlaybookImplementation(KernelCode(text, dialect, Contract.HOST, "k.cpp"), parse_tunables(text, dialect), ())


@pytest.mark.parametrize(
    ("line", "features", "expected"),
    [
        ("// @tune LANES = 16", AVX2, "// @tune LANES = 8"),
        ("// @tune LANES = 16, 8", AVX2, "// @tune LANES = 8, 16"),
        ("// @tune LANES = 16, 32, 8", AVX2, "// @tune LANES = 8, 16, 32"),
        ("// @tune LANES = 16", AVX512, "// @tune LANES = 16"),
        ("// @tune LANES = 16", (), "// @tune LANES = 16"),
        ("// @tune LANES = 16", ("asimd",), "// @tune LANES = 16"),
        ("// @tune LANES = 4, 16", AVX2, "// @tune LANES = 4, 16"),
        ("// @tune WIDE_LANES = 16", AVX2, "// @tune WIDE_LANES = 16"),
        ("// @tune LANES = 160", AVX2, "// @tune LANES = 160"),
    ],
)
def test_the_widest_vector_that_fits_comes_first(line: str, features: tuple[str, ...], expected: str) -> None:
    one = implementation(f"// a kernel\n{line}\n// @tune UNROLL = 4, 2\n", Dialect.CPP)
    found = fitted(one, replace(b.device(), features=features))
    assert found.kernel.text == f"// a kernel\n{expected}\n// @tune UNROLL = 4, 2\n"
    assert default_values(found.tunables)["UNROLL"] == 4
    assert found.tunables == parse_tunables(found.kernel.text, Dialect.CPP)


def test_a_gpu_kernel_and_an_unknown_device_change_nothing() -> None:
    cuda = implementation("// @tune LANES = 16\n", Dialect.CUDA)
    assert fitted(cuda, replace(b.device(), features=AVX2)) is cuda
    cpp = implementation("// @tune LANES = 16\n", Dialect.CPP)
    assert fitted(cpp, None) is cpp


def test_every_cpu_playbook_names_its_lanes_so_that_they_are_found() -> None:
    root = Path(__file__).resolve().parents[2] / "problems"
    files = [file for file in root.glob("*/playbook/*.cpp") if "@tune LANES = 16" in file.read_text()]
    assert len(files) > 15
    for file in files:
        one = implementation(file.read_text(), Dialect.CPP)
        assert default_values(fitted(one, replace(b.device(), features=AVX2)).tunables)["LANES"] == 8, file
