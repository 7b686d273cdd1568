"""A syntax error where a macro was expanded names the macro: recorded output, and the real compilers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import LimitsOnly
from engine.toolchain.build import BuildFailure, BuildRequest, build
from engine.toolchain.macro_clash import clash_error

HEADER = '#define X_DIM0 2048\n#define EPS 1e-05\n#define SHIFT (-3)\n#define ESPALIER_WORKLOAD "full"\n'
NVCC = """\
kernel.cu(2): error: expected an identifier
  constexpr int 2048 = 4;
                ^

1 error detected in the compilation of "kernel.cu".
"""
CODE = '#include "problem.h"\nconstexpr int X_DIM0 = 4;\n'


def _named(output: str, code: str = CODE, file: str = "kernel.cu") -> str:
    return clash_error(output, file, "mine", code, HEADER, {"LANES": 8})


def test_the_macro_under_nvccs_caret_is_named() -> None:
    named = _named(NVCC)
    assert named == "mine:2:15: error: expected an identifier: X_DIM0 is a macro of problem.h, 2048; choose another name"


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (NVCC.replace("expected an identifier", 'identifier "foo" is undefined'), CODE),
        (NVCC, '#include "problem.h"\nconstexpr int 2048 = 4;\n'),
        (NVCC.replace("(2)", "(9)"), CODE),
        ("kernel.cu(2): error: expected an identifier\n", CODE),
        ("all is well\n", CODE),
    ],
)
def test_other_errors_name_no_macro(output: str, code: str) -> None:
    assert _named(output, code) == ""


@given(st.text(max_size=200), st.text(max_size=50))
def test_any_output_can_be_read(output: str, code: str) -> None:
    assert len(_named(output, code).splitlines()) <= 1


def _reason(dialect: Dialect, declaration: str, tunables: Mapping[str, int]) -> str:
    code = f'#include "problem.h"\n{declaration}\nextern "C" void launch(const float* x, float* y, void* stream) {{}}\n'
    arch = "sm_90a" if dialect is Dialect.CUDA else "any"
    request = BuildRequest(code, dialect, Contract.HOST, HEADER, tunables, arch, "mine")
    outcome = asyncio.run(build(request, LimitsOnly()))
    assert isinstance(outcome, BuildFailure)
    return outcome.reason


CLASHES = pytest.mark.parametrize(
    ("declaration", "column", "words"),
    [
        ("constexpr int X_DIM0 = 4;", 15, "X_DIM0 is a macro of problem.h, 2048"),
        ("static const float EPS = 1e-6f;", 20, "EPS is a macro of problem.h, 1e-05"),
        ("enum { SHIFT = 2 };", 8, "SHIFT is a macro of problem.h, (-3)"),
        ("constexpr int LANES = 4;", 15, "LANES is a tunable, which the compiler sees as a macro"),
    ],
)


@CLASHES
@pytest.mark.usefixtures("cache_root")
def test_gxx_clashes_are_named(declaration: str, column: int, words: str) -> None:
    reason = _reason(Dialect.CPP, declaration, {"LANES": 8})
    assert reason.startswith(f"mine:2:{column}: error: expected ")
    assert reason.endswith(f": {words}; choose another name")


@pytest.mark.slow
@CLASHES
@pytest.mark.usefixtures("cache_root", "nvcc")
def test_nvcc_clashes_are_named(declaration: str, column: int, words: str) -> None:
    reason = _reason(Dialect.CUDA, declaration, {"LANES": 8})
    assert reason.startswith(f"mine:2:{column}: error: expected ")
    assert reason.endswith(f": {words}; choose another name")
