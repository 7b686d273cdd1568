"""How each dialect and contract is compiled: the command lines, and everything that decides what comes out.

Knows flags. Runs nothing but the version questions of ``toolchain``; sandbox, time limit and cache are elsewhere.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from engine.build.toolchain import cpu_arch, find_gxx, find_nvcc
from engine.domain.errors import ToolchainError
from engine.domain.model import Contract, Dialect

HEADER = "problem.h"
VECTOR_REPORT = "vectorised.txt"

_CPP_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared")
_CPP_REPORT = ("-fmax-errors=20", "-fdiagnostics-color=never", f"-fopt-info-vec={VECTOR_REPORT}")
_LINK = ("-Wl,--require-defined=launch", "-Wl,-z,defs")
_CUDA_FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-v")
_HOST_FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-Xlinker", "--require-defined=launch")
_GPU = re.compile(r"sm_(\d{2,3}[af]?)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One compilation, for a folder that holds ``source`` and ``problem.h`` and receives ``binary``."""

    argv: tuple[str, ...]
    """Empty for ``python``, which nothing compiles."""
    source: str
    binary: str
    identity: tuple[str, ...]
    """Compiler versions and the like: what else the result depends on."""
    readable: tuple[Path, ...] = ()
    path: tuple[Path, ...] = ()
    """Folders of executables that the compiler calls."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Further files that the compiler is given: name → text. They do not stay in the cache."""


async def recipe(dialect: Dialect, contract: Contract, arch: str, tunables: Mapping[str, int]) -> Recipe:
    """How to build a source of this dialect under this contract for ``arch`` (``sm_90a``; a CPU is always this one).

    Raises:
        ToolchainError: the compiler is missing or broken, or does not build for ``arch``.
    """
    defines = tuple(f"-D{name}={value}" for name, value in tunables.items())
    match dialect:
        case Dialect.PYTHON:
            return Recipe((), "kernel.py", "kernel.py", (f"python {platform.python_version()}",))
        case Dialect.CPP:
            return await _cpp(defines)
        case Dialect.CUDA:
            return await _cuda(contract, arch, defines)
    assert_never(dialect)


async def _cpp(defines: tuple[str, ...]) -> Recipe:
    gxx = await find_gxx()
    argv = ("g++", *_CPP_FLAGS, *_CPP_REPORT, *defines, "-o", "kernel.so", "kernel.cpp", *_LINK)
    return Recipe(argv, "kernel.cpp", "kernel.so", (gxx.version, await cpu_arch()), gxx.readable, (gxx.folder,))


async def _cuda(contract: Contract, arch: str, defines: tuple[str, ...]) -> Recipe:
    match = _GPU.fullmatch(arch)
    if match is None:
        raise ToolchainError(f"nvcc builds for GPU architectures such as sm_90a, not for '{arch}'")
    nvcc, gxx = await find_nvcc(), await find_gxx()
    target = f"-gencode=arch=compute_{match[1]},code={arch}"
    binary, shape = ("kernel.cubin", ("-cubin",)) if contract is Contract.PLAN else ("kernel.so", _HOST_FLAGS)
    argv = (str(nvcc.path), *shape, *_CUDA_FLAGS, target, *defines, "-o", binary, "kernel.cu")
    identity = (nvcc.version, gxx.version, platform.machine())
    return Recipe(argv, "kernel.cu", binary, identity, (*nvcc.readable, *gxx.readable), (nvcc.folder, gxx.folder))
