"""Building ``cpp`` and ``python`` kernels with the real compiler."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.domain.errors import ToolchainError
from engine.domain.model import Contract, Dialect
from engine.sandbox.confinement import CommandLimits, Confinement, LimitsOnly
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build
from engine.toolchain.build_budget import MEMORY
from engine.toolchain.compilers import cpu_arch, find_gxx
from engine.toolchain.inspection import InstructionMix, Uninspected, inspect

pytestmark = pytest.mark.usefixtures("cache_root")

GOOD = """\
#include "problem.h"
extern "C" void launch(const float* x, float* out, void*) {
    for (int i = 0; i < N; i++) out[i] = x[i] * FACTOR;
}
"""
BOMB = """\
template <int D, class T> struct Node { Node<D - 1, char (*)(T)> a; Node<D - 1, long (*)(T)> b; };
template <class T> struct Node<0, T> {};
Node<60, int> node;
extern "C" void launch() {}
"""


def _request(
    source: str, *, tunables: Mapping[str, int] | None = None, header: str = "#define N 1024\n", name: str = "mine.cpp"
) -> BuildRequest:
    return BuildRequest(source, Dialect.CPP, Contract.HOST, header, tunables or {}, "any", name)


def _build(request: BuildRequest, confinement: Confinement) -> BuildOutcome:
    return asyncio.run(build(request, confinement))


def _reason(request: BuildRequest, confinement: Confinement) -> str:
    outcome = _build(request, confinement)
    assert isinstance(outcome, BuildFailure), outcome
    assert "\n" not in outcome.reason
    return outcome.reason


def test_a_kernel_is_built_and_runs(confinement: Confinement, cache_root: Path) -> None:
    outcome = _build(_request(GOOD, tunables={"FACTOR": 3}), confinement)
    assert isinstance(outcome, Artefact)
    assert outcome.folder.is_relative_to(cache_root)
    assert {p.name for p in outcome.folder.iterdir()} == {"kernel.cpp", "problem.h", "kernel.so", "log.txt", "entry.json"}
    assert "kernel.cpp:3" in outcome.log
    assert "loop vectorized" in outcome.log
    assert outcome.seconds > 0
    x, out = (ctypes.c_float * 1024)(*range(1024)), (ctypes.c_float * 1024)()
    ctypes.CDLL(str(outcome.binary)).launch(x, out, None)
    assert list(out) == [3.0 * i for i in range(1024)]


def test_openmp_and_intrinsics_work(confinement: Confinement) -> None:
    source = '#include <omp.h>\n#include <cstdint>\nextern "C" int launch() { return omp_get_max_threads(); }\n'
    outcome = _build(_request(source), confinement)
    assert isinstance(outcome, Artefact)
    assert ctypes.CDLL(str(outcome.binary)).launch() >= 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            '#include "problem.h"\nextern "C" void launch() {\n    int y = foo(1);\n}\n',
            "mine.cpp:3:13: error: 'foo' was not declared in this scope",
        ),
        ('extern "C" void launch() {\n', "mine.cpp:1:27: error: expected '}' at end of input"),
        (
            '#include <vector>\n#include <algorithm>\nstruct S {};\nextern "C" void launch() {\n'
            "    std::vector<S> v;\n    std::sort(v.begin(), v.end());\n}\n",
            "mine.cpp:6:14: error: no match for ",
        ),
        ('#include "absent.h"\nextern "C" void launch() {}\n', "mine.cpp:1:10: error: absent.h: No such file or directory"),
        ("#error this shape is not for us\n", "mine.cpp:1:2: error: #error this shape is not for us"),
        ("void launch() {}\n", 'mine.cpp: error: no launch() with C linkage: write `extern "C" void launch(...)`'),
        (
            'extern "C" void elsewhere();\nextern "C" void launch() { elsewhere(); }\n',
            "mine.cpp: error: undefined reference to elsewhere",
        ),
    ],
)
def test_the_first_error_is_the_reason(source: str, reason: str) -> None:
    assert _reason(_request(source), LimitsOnly()).startswith(reason)


def test_an_error_in_the_header_names_it() -> None:
    reason = _reason(_request('#include "problem.h"\nextern "C" void launch() {}\n', header="int x = y;\n"), LimitsOnly())
    assert reason == "mine.cpp:1: error: 'y' was not declared in this scope (in problem.h)"


def test_a_tunable_cannot_be_a_constant_of_the_problem() -> None:
    reason = _reason(_request(GOOD, tunables={"FACTOR": 3, "N": 5}), LimitsOnly())
    assert reason == "mine.cpp: error: tunable 'N' has the name of a constant in problem.h: rename it"


@pytest.mark.slow
def test_system_files_cannot_be_included(bubblewrap: Confinement, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("open sesame\n")
    for path in ("/etc/passwd", f"{tmp_path}/secret.txt", "../../../../../../../../etc/passwd"):
        outcome = _build(_request(f'#include "{path}"\nextern "C" void launch() {{}}\n'), bubblewrap)
        assert isinstance(outcome, BuildFailure)
        assert "No such file or directory" in outcome.reason
        assert "root:" not in outcome.log
        assert "sesame" not in outcome.log
        stolen = f'asm(".data\\n.globl loot\\nloot: .incbin \\"{path}\\"\\n"); extern "C" void launch() {{}}\n'
        assert _reason(_request(stolen), bubblewrap) == f"mine.cpp: error: assembler: file not found: {path}"


@pytest.mark.slow
def test_a_template_bomb_is_stopped(confinement: Confinement, cache_root: Path) -> None:
    hasty = dataclasses.replace(confinement, limits=CommandLimits(seconds=1.0))  # type: ignore[type-var]
    outcome = _build(_request(BOMB), hasty)
    assert isinstance(outcome, BuildFailure)
    assert outcome.timed_out
    assert outcome.reason == "mine.cpp: the compiler exceeded its time limit of 1 s"
    assert list((cache_root / "work").iterdir()) == []


@pytest.mark.slow
def test_a_memory_bomb_is_stopped(confinement: Confinement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY, "0.2")  # also when it is built again, alone
    small = dataclasses.replace(confinement, limits=CommandLimits(memory_bytes=160 << 20))  # type: ignore[type-var]
    outcome = _build(_request(BOMB), small)
    assert isinstance(outcome, BuildFailure)
    assert not outcome.timed_out
    assert "memory" in outcome.reason


@pytest.mark.slow
def test_an_endless_constant_expression_fails() -> None:
    source = 'constexpr long f(long n) { while (true) n++; return n; }\nconstexpr long v = f(1);\nextern "C" void launch() {}\n'
    reason = _reason(_request(source), LimitsOnly(limits=CommandLimits(seconds=20)))
    assert "constexpr" in reason or "stopped after" in reason


def test_gcc_sees_this_cpu() -> None:
    assert asyncio.run(cpu_arch()).count("-") >= 2
    assert "g++" in asyncio.run(find_gxx()).version


def test_no_compiler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"g\+\+ not found: kernels for the CPU need it"):
        _build(_request(GOOD), LimitsOnly())
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"g\+\+ does not work: exit status 3"):
        _build(_request(GOOD), LimitsOnly())
    broken.write_text("no program")
    with pytest.raises(ToolchainError, match=r"g\+\+ does not start"):
        _build(_request(GOOD), LimitsOnly())


def test_instructions_are_counted(confinement: Confinement) -> None:
    outcome = _build(_request(GOOD, tunables={"FACTOR": 3}), confinement)
    assert isinstance(outcome, Artefact)
    mix = asyncio.run(inspect(outcome.binary, confinement))
    assert isinstance(mix, InstructionMix)
    assert mix.counts["total"] > 10
    unread = asyncio.run(inspect(outcome.folder / "log.txt", confinement))
    assert unread == Uninspected("log.txt holds no machine code")


def _python(source: str) -> BuildRequest:
    return BuildRequest(source, Dialect.PYTHON, Contract.MODULE, "", {"STAGES": 2}, "any", "mine.py")


def test_a_module_is_parsed_and_cached() -> None:
    outcome = _build(_python("class ModelNew:\n    pass\n"), LimitsOnly())
    assert isinstance(outcome, Artefact)
    assert outcome.binary.name == "kernel.py"
    assert outcome.binary.read_text() == "class ModelNew:\n    pass\n"
    assert outcome.resources == ()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class ModelNew:\n    def f(:\n", "mine.py:2:11: error: invalid syntax"),
        ("x = " + "(" * 5000, "mine.py:"),
        ("x = " + "-" * 100_000 + "1", "mine.py"),
        ("x = '\0'", "mine.py"),
        ("x = '\ud800'", "mine.py"),
    ],
)
def test_a_module_that_does_not_parse_fails_with_its_place(source: str, reason: str) -> None:
    assert _reason(_python(source), LimitsOnly()).startswith(reason)


def test_names_comments_and_unused_tunables_do_not_change_the_binary(confinement: Confinement) -> None:
    helper = "static float twice(float v) { return 2 * v; }\n"
    scaled = GOOD.replace("x[i] * FACTOR", "twice(x[i]) * FACTOR").replace('extern "C"', f'{helper}extern "C"')
    renamed = f"// a comment\n{scaled.replace('twice', 'double_of').replace('int i', 'int at').replace('i ', 'at ')}"
    renamed = renamed.replace("[i]", "[at]").replace("i++", "at++")
    requests = (
        _request(scaled, tunables={"FACTOR": 3}), _request(renamed, tunables={"FACTOR": 3, "UNUSED": 4}),
        _request(scaled, tunables={"FACTOR": 4}),
    )  # fmt: skip
    digests = [outcome.digest for outcome in (_build(one, confinement) for one in requests) if isinstance(outcome, Artefact)]
    assert len(digests) == 3
    assert digests[0] == digests[1] != digests[2]
