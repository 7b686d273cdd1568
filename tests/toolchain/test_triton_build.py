"""Builds of Triton files with the installed Triton; what a hostile file can do to them."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.triton_interpreter import installed, resolved_for

from engine.domain.errors import ToolchainError
from engine.domain.model import Contract, Dialect, Operand, Role, Signature
from engine.sandbox.confinement import Confinement
from engine.toolchain.build import Artefact, BuildFailure, BuildOutcome, BuildRequest, build
from engine.toolchain.device_images import bind, unpack
from engine.toolchain.inspection import InstructionMix, inspect
from engine.toolchain.resolution import NullArg, OperandArg, WorkspaceArg
from engine.toolchain.triton import build as triton_build
from engine.toolchain.triton.build import RESULT, NotAssembled, find_triton
from engine.toolchain.triton.resolution import encode_jobs

pytestmark = pytest.mark.usefixtures("cache_root")

SIGNATURE = Signature((Operand("x", Role.INPUT, (64, 256), "float32"), Operand("out", Role.OUTPUT, (64, 256), "float32")), {})
KERNEL = """\
import triton
import triton.language as tl

# @tune BLOCK = 256
# @launch twice(x, out) grid(X_DIM0) num_warps(2)

@triton.jit
def twice(x, out, X_DIM1: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * X_DIM1 + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, v * 2 + tl.sum(v, 0))
"""
TMA = """\
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# @launch tiles(x, out) grid(X_DIM0 / 16)
# @launch copy(x, out) grid(16)

@triton.jit
def tiles(x, out, X_DIM0: tl.constexpr, X_DIM1: tl.constexpr):
    a = tl.make_tensor_descriptor(x, shape=[X_DIM0, X_DIM1], strides=[X_DIM1, 1], block_shape=[16, 64])
    b = tl.make_tensor_descriptor(out, shape=[X_DIM0, X_DIM1], strides=[X_DIM1, 1], block_shape=[16, 64])
    b.store([tl.program_id(0) * 16, 0], a.load([tl.program_id(0) * 16, 0]))

@gluon.jit
def copy(x, out, N: gl.constexpr = 1024):
    i = gl.program_id(0) * N + gl.arange(0, N, layout=gl.BlockedLayout([4], [32], [4], [0]))
    gl.store(out + i, gl.load(x + i))
"""


def request(code: str) -> BuildRequest:
    resolved = resolved_for(code, SIGNATURE)
    return BuildRequest(code, Dialect.TRITON, Contract.PLAN, encode_jobs(resolved.jobs), {"BLOCK": 256}, "sm_90a", "k.py")


def built(code: str, confinement: Confinement) -> BuildOutcome:
    return asyncio.run(build(request(code), confinement))


@pytest.mark.slow
@installed
def test_a_triton_file_becomes_device_code_for_hopper(bubblewrap: Confinement) -> None:
    outcome = built(KERNEL, bubblewrap)
    assert isinstance(outcome, Artefact), outcome
    (used,) = outcome.resources
    assert used.function == "twice"
    assert used.registers > 0
    (image,) = unpack(outcome.binary.read_bytes()) or ()
    assert image.threads == 64
    launch = bind(resolved_for(KERNEL, SIGNATURE).plan, outcome.binary.read_bytes()).launches[0]
    assert (launch.grid, launch.block, launch.shared_bytes) == ((64, 1, 1), (64, 1, 1), image.shared_bytes)
    assert launch.arguments == (OperandArg("x"), OperandArg("out"), NullArg(), NullArg())
    mix = asyncio.run(inspect(outcome.binary, bubblewrap))
    assert isinstance(mix, InstructionMix), mix
    assert mix.counts["LDG"] > 0
    assert built(KERNEL, bubblewrap) == replace(outcome, cached=True)
    assert "triton" in (outcome.folder / "entry.json").read_text()


@pytest.mark.slow
@installed
def test_descriptors_in_the_kernel_get_scratch_and_gluon_compiles(bubblewrap: Confinement) -> None:
    outcome = built(TMA, bubblewrap)
    assert isinstance(outcome, Artefact), outcome
    plan = bind(resolved_for(TMA, SIGNATURE).plan, outcome.binary.read_bytes())
    assert plan.launches[0].arguments[2:] == (WorkspaceArg(0), NullArg())
    assert plan.workspace_bytes > 0
    assert plan.launches[1].kernel == "copy"


@pytest.mark.slow
@installed
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("v * 2", "v * missing", r"k\.py:11:27: error: .*missing is not defined"),
        ("import triton\n", "import triton, no_such_module\n", r"k\.py:1:1: error: ModuleNotFoundError: No module named"),
        ("import triton\n", "import triton\nraise SystemExit(0)\n", r"k\.py:2:1: error: SystemExit"),
    ],
)
def test_code_that_does_not_compile_is_told_with_its_place(old: str, new: str, words: str, bubblewrap: Confinement) -> None:
    code = KERNEL.replace(old, new, 1)
    outcome = built(code, bubblewrap)
    assert isinstance(outcome, BuildFailure)
    assert re.search(words, outcome.reason), outcome.reason


HOSTILE = """\
import json, os, socket
FOUND = []
for place in ("/root/.bashrc", "/etc/passwd", "/proc/self/environ"):
    try:
        open(place).read(); FOUND.append(place)
    except OSError:
        pass
try:
    socket.create_connection(("1.1.1.1", 53), 1); FOUND.append("network")
except OSError:
    pass
print("ptxas info    : Compiling entry function 'twice' for 'sm_90a'\\nptxas info    : Used 1 registers")
open("kernel.py", "w").write("# nothing to see\\n")
result = {"entry": "twice", "ptx": PTX, "shared": 0, "num_warps": 2, "scratch_bytes": 0, "scratch_align": 1, "profile_bytes": 0}
open("result.json", "w").write(json.dumps([result]) if not FOUND else "found: " + repr(FOUND))
os._exit(0)
"""
PTX = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 a, .param .u64 b) { ret; }
"""


@pytest.mark.slow
@installed
def test_a_file_that_forges_its_result_sees_nothing_and_gets_what_it_assembles(bubblewrap: Confinement) -> None:
    code = KERNEL.replace("import triton\n", f"PTX = {PTX!r}\n{HOSTILE}import triton\n", 1)
    outcome = built(code, bubblewrap)
    assert isinstance(outcome, Artefact), outcome
    assert [used.registers for used in outcome.resources] != [1]
    assert (outcome.folder / "kernel.py").read_text() == code
    other = built(code.replace(".param .u64 b", ".param .u64 b, .param .u64 c, .param .u64 d, .param .u64 e"), bubblewrap)
    assert isinstance(other, BuildFailure)
    assert "compiles to 5 parameters, the launch passes 2" in other.reason
    broken = built(code.replace("ret;", "rett;"), bubblewrap)
    assert isinstance(broken, BuildFailure)
    assert "ptxas" in broken.reason


GOOD = {"entry": "k", "ptx": "", "shared": 0, "num_warps": 4, "scratch_bytes": 0, "scratch_align": 1, "profile_bytes": 0}


@pytest.mark.parametrize(
    "result",
    [
        "", "[]", "[1]", json.dumps([GOOD, GOOD]), json.dumps([GOOD | {"shared": 10**9}]),
        json.dumps([GOOD | {"num_warps": 64}]),
        json.dumps([GOOD | {"num_warps": "4"}]), json.dumps([GOOD | {"profile_bytes": 8}]), json.dumps([GOOD | {"more": 1}]),
        json.dumps([GOOD | {"entry": "k(); //"}]), json.dumps([GOOD | {"scratch_bytes": -1}]), "[" * 100_000,
    ],
    ids=range(12),
)  # fmt: skip
def test_results_are_read_strictly(result: str, tmp_path: Path) -> None:
    (tmp_path / RESULT).write_text(result)
    assert isinstance(triton_build._read(tmp_path / RESULT, [None], "k.py"), NotAssembled)  # type: ignore[list-item]


def test_a_result_that_is_no_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps([GOOD]))
    (tmp_path / RESULT).symlink_to(tmp_path / "elsewhere")
    assert isinstance(triton_build._read(tmp_path / RESULT, [None], "k.py"), NotAssembled)  # type: ignore[list-item]


def test_without_triton_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_build.importlib.util, "find_spec", lambda _: None)  # type: ignore[attr-defined]
    with pytest.raises(ToolchainError, match=r"^triton is not installed: triton kernels need it; pip install triton$"):
        asyncio.run(find_triton())
