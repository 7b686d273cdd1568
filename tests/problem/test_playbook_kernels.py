"""The C++ kernels that ship with problems compile against the header of their problem."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest

from engine.domain.model import Dialect, Signature
from engine.problem import catalog, header
from engine.problem.reference import Reference
from engine.toolchain.tunables import default_values, parse_tunables

KERNELS = sorted(catalog.problems_root().glob("*/playbook/*.cpp"))
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@functools.cache
def small(problem: str) -> Signature:
    found = catalog.find(problem)
    return Reference(found, catalog.workload_for(found, "small")).signature()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_a_kernel_of_a_playbook_compiles(kernel: Path, tmp_path: Path) -> None:
    """A kernel must not define a name that ``problem.h`` defines: the constants of the reference are among them."""
    (tmp_path / "problem.h").write_text(header.render(small(kernel.parts[-3]), Dialect.CPP, "small"))
    values = default_values(parse_tunables(kernel.read_text(), Dialect.CPP))
    defines = [f"-D{name}={value}" for name, value in values.items()]
    options = ["-std=c++20", "-march=native", "-fopenmp", "-fsyntax-only", f"-I{tmp_path}", *defines]
    said = subprocess.run(["g++", *options, str(kernel)], capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr[:2000]
