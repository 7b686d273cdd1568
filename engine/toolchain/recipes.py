"""Compiler command lines for each dialect and contract, and everything else the binary depends on."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import assert_never

from engine.domain.errors import ToolchainError
from engine.domain.model import Contract, Dialect
from engine.sandbox.include_trees import include_trees
from engine.toolchain import included
from engine.toolchain.compilers import cpu_arch, find_gxx, find_nvcc
from engine.toolchain.included import include_flags
from engine.toolchain.recipe import Recipe
from engine.toolchain.triton.build import triton_recipe

VECTOR_REPORT = "vectorised.txt"

_CPP_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared")
_CPP_REPORT = ("-fmax-errors=20", "-fdiagnostics-color=never", f"-fopt-info-vec={VECTOR_REPORT}")
_LINK = ("-Wl,--require-defined=launch", "-Wl,-z,defs")
_CUDA_FLAGS = ("-O3", "-std=c++17", "-Xptxas", "-v")
_HOST_FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-Xlinker", "--require-defined=launch")
_GPU = re.compile(r"sm_(\d{2,3}[af]?)")


async def recipe_for(dialect: Dialect, contract: Contract, arch: str, tunables: Mapping[str, int]) -> Recipe:
    """How to build code of this dialect under this contract for ``arch`` (``sm_90a``; for a CPU always this machine's).

    Raises:
        ToolchainError: the compiler is missing or broken, or does not build for ``arch``.
    """
    defines = tuple(f"-D{name}={value}" for name, value in tunables.items())
    file = f"kernel{dialect.suffix}"
    match dialect:
        case Dialect.PYTHON:
            return Recipe((), file, file, (f"python {platform.python_version()}",))
        case Dialect.CPP:
            return await _cpp(file, defines)
        case Dialect.CUDA:
            return await _cuda(file, contract, arch, defines)
        case Dialect.TRITON:
            return await triton_recipe(arch)
    assert_never(dialect)


async def _cpp(file: str, defines: tuple[str, ...]) -> Recipe:
    gxx = await find_gxx()
    trees = include_trees()
    argv = ("g++", *_CPP_FLAGS, *_CPP_REPORT, *include_flags(trees), *defines, "-o", "kernel.so", file, *_LINK)
    identity = (gxx.version, await cpu_arch(), *included.identity(trees))
    readable = (*gxx.readable, *(tree.path for tree in trees))
    return Recipe(argv, file, "kernel.so", identity, readable, (gxx.folder,), trees=trees)


async def _cuda(file: str, contract: Contract, arch: str, defines: tuple[str, ...]) -> Recipe:
    match = _GPU.fullmatch(arch)
    if match is None:
        raise ToolchainError(f"nvcc builds for GPU architectures such as sm_90a, not for '{arch}'")
    nvcc, gxx = await find_nvcc(), await find_gxx()
    target = f"-gencode=arch=compute_{match[1]},code={arch}"
    binary, shape = ("kernel.cubin", ("-cubin",)) if contract is Contract.PLAN else ("kernel.so", _HOST_FLAGS)
    trees = include_trees()
    argv = (str(nvcc.path), *shape, *_CUDA_FLAGS, target, *include_flags(trees), *defines, "-o", binary, file)
    identity = (nvcc.version, gxx.version, platform.machine(), *included.identity(trees))
    readable = (*nvcc.readable, *gxx.readable, *(tree.path for tree in trees))
    return Recipe(argv, file, binary, identity, readable, (nvcc.folder, gxx.folder), trees=trees)
