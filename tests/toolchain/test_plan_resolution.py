"""Resolving plans: evaluated sizes, and sizes beyond the device's limits."""

from __future__ import annotations

import pytest

from engine.domain.errors import KernelCodeError
from engine.domain.model import Operand, Role
from engine.toolchain.plan import parse_plan
from engine.toolchain.resolution import (
    OperandArg,
    ResolvedLaunch,
    ResolvedPlan,
    ResolvedTensorMap,
    TensorMapArg,
    WorkspaceArg,
    decode,
    encode,
    resolve,
)

KERNEL = 'extern "C" __global__ void k() {}\n'
OPERANDS = (
    Operand("x", Role.INPUT, (64, 1024), "float16"),
    Operand("mask", Role.INPUT, (64, 1024), "bool"),
    Operand("odd", Role.INPUT, (64, 33), "float32"),
    Operand("deep", Role.INPUT, (2, 2, 2, 2, 2, 16), "float32"),
    Operand("scalar", Role.INPUT, (), "float32"),
    Operand("wide", Role.INPUT, (16,), "complex64"),
    Operand("out", Role.OUTPUT, (64, 1024), "float32"),
)
NAMES = {"ROWS": 64, "DIM": 1024, "BLOCK": 256, "SMS": 132, "EPS": 1e-5}
LAUNCH = "// @launch k() grid(1) block(1)\n"


def _resolve(lines: str) -> ResolvedPlan:
    return resolve(parse_plan(f"{lines}\n{KERNEL}"), NAMES, OPERANDS)


def test_a_plan_with_every_clause_is_resolved() -> None:
    plan = _resolve(
        "// @workspace 4*ROWS*DIM zero\n"
        "// @tensormap tx = x tile(64, 64) swizzle(128)\n"
        "// @tensormap tw = workspace+DIM as bfloat16(ROWS, DIM/2) tile(8, 16)\n"
        "// @launch k(x, out, workspace, workspace+ROWS*4, tx) grid(min(ROWS, SMS), 2) block(BLOCK) shared(BLOCK*4)"
        " cluster(2, 2) cooperative\n"
        "// @launch k(tw) grid(1) block(8, 8, 4)"
    )
    assert plan == ResolvedPlan(
        launches=(
            ResolvedLaunch(
                "k",
                (OperandArg("x"), OperandArg("out"), WorkspaceArg(0), WorkspaceArg(256), TensorMapArg("tx")),
                grid=(64, 2, 1),
                block=(256, 1, 1),
                shared_bytes=1024,
                cluster=(2, 2, 1),
                cooperative=True,
            ),
            ResolvedLaunch("k", (TensorMapArg("tw"),), grid=(1, 1, 1), block=(8, 8, 4)),
        ),
        tensor_maps=(
            ResolvedTensorMap("tx", OperandArg("x"), "float16", 2, (64, 1024), (64, 64), 128),
            ResolvedTensorMap("tw", WorkspaceArg(1024), "bfloat16", 2, (64, 512), (8, 16), 0),
        ),
        workspace_bytes=4 * 64 * 1024,
        workspace_zeroed=True,
    )
    assert decode(encode(plan)) == plan


def test_tensor_maps_treat_booleans_as_bytes() -> None:
    plan = _resolve(f"// @tensormap t = mask tile(1, 64)\n{LAUNCH}")
    assert (plan.tensor_maps[0].dtype, plan.tensor_maps[0].item_bytes) == ("uint8", 1)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"launches": 3}'])
def test_decode_rejects_anything_else(data: bytes) -> None:
    with pytest.raises(KernelCodeError, match="not a resolved launch plan"):
        decode(data)


@pytest.mark.parametrize(
    "clauses",
    [
        "grid(2147483647, 65535, 65535) block(1024)",
        "grid(1) block(16, 1, 64)",
        "grid(1) block(1) shared(227 * 1024)",
        "grid(16) block(1) cluster(16)",
        "grid(4, 4) block(1) cluster(4, 4)",
    ],
)
def test_a_launch_at_the_limits_of_cuda_is_allowed(clauses: str) -> None:
    _resolve(f"// @launch k() {clauses}")


@pytest.mark.parametrize(
    ("clauses", "word", "message"),
    [
        ("grid(0) block(1)", "grid", "grid x is 0: 1 to 2147483647 are allowed"),
        ("grid(DIM*DIM*DIM*2) block(1)", "grid", "grid x is 2147483648"),
        ("grid(1, 65536) block(1)", "grid", "grid y is 65536"),
        ("grid(1) block(1025)", "block", "block x is 1025"),
        ("grid(1) block(1, 1, 65)", "block", "block z is 65"),
        ("grid(1) block(BLOCK, 5)", "block", "a block of 1280 threads: 1024 at most"),
        ("grid(1) block(1) shared(227*1024 + 1)", "shared", "232449 bytes of shared memory"),
        ("grid(1) block(1) shared(-1)", "shared", "-1 bytes"),
        ("grid(32) block(1) cluster(17)", "cluster", "cluster x is 17"),
        ("grid(32, 32) block(1) cluster(8, 4)", "cluster", "a cluster of 32 blocks: 16 at most"),
        ("grid(3) block(1) cluster(2)", "cluster", "grid x is 3: not a multiple of the cluster size 2"),
        ("grid(1) block(BLOK)", "BLOK", "did you mean 'BLOCK'?"),
        ("grid(1) block(EPS)", "EPS", "only integers"),
    ],
)
def test_a_launch_beyond_a_limit_of_cuda_is_refused_at_its_column(clauses: str, word: str, message: str) -> None:
    text = f"// @launch k() {clauses}"
    with pytest.raises(KernelCodeError) as caught:
        _resolve(text)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, text.index(word) + 1)


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ("// @launch k(y) grid(1) block(1)", 1, "unknown operand 'y': use one of"),
        ("// @launch k(wrokspace) grid(1) block(1)", 1, "did you mean 'workspace'?"),
        ("// @launch k(workspace) grid(1) block(1)", 1, "no `@workspace BYTES` line"),
        ("// @workspace 16\n// @launch k(workspace+16) grid(1) block(1)", 2, "outside the workspace of 16 bytes"),
        ("// @workspace 16\n// @launch k(workspace+-4) grid(1) block(1)", 2, "outside the workspace"),
        (f"// @workspace -1\n{LAUNCH}", 1, "a workspace of -1 bytes"),
        (f"// @workspace DIM*DIM*DIM*DIM\n{LAUNCH}", 1, "a workspace of"),
        (f"// @tensormap x = out tile(8, 8)\n{LAUNCH}", 1, "'x' is an operand"),
        (f"// @tensormap t = u tile(8, 8)\n{LAUNCH}", 1, "unknown operand 'u'"),
        (f"// @tensormap t = x tile(64)\n{LAUNCH}", 1, "the tile has rank 1, the tensor 2"),
        (f"// @tensormap t = x tile(512, 8)\n{LAUNCH}", 1, "a tile extent of 512: 1 to 256"),
        (f"// @tensormap t = x tile(0, 8)\n{LAUNCH}", 1, "a tile extent of 0"),
        (f"// @tensormap t = x tile(8, 4)\n{LAUNCH}", 1, "tile rows are 8 bytes"),
        (f"// @tensormap t = x tile(8, 64) swizzle(64)\n{LAUNCH}", 1, "swizzle(64) allows 64 at most"),
        (f"// @tensormap t = x tile(8, 8) swizzle(16)\n{LAUNCH}", 1, "32, 64 or 128"),
        (f"// @tensormap t = out tile(256, 256)\n{LAUNCH}", 1, "does not fit shared memory"),
        (f"// @tensormap t = odd tile(8, 8)\n{LAUNCH}", 1, "the row stride of 't' is 132 bytes"),
        (f"// @tensormap t = deep tile(1,1,1,1,1,16)\n{LAUNCH}", 1, "rank 6"),
        (f"// @tensormap t = scalar tile(4)\n{LAUNCH}", 1, "rank 0"),
        (f"// @tensormap t = wide tile(4)\n{LAUNCH}", 1, "has type complex64: tensor maps do not support it"),
        (f"// @tensormap t = x as float32(ROWS, DIM) tile(8, 8)\n{LAUNCH}", 1, "spans 262144 bytes, its source has 131072"),
        (f"// @tensormap t = x as float32(0, 8) tile(8, 8)\n{LAUNCH}", 1, "dimension of 0"),
        (f"// @workspace 4096\n// @tensormap t = workspace tile(8, 8)\n{LAUNCH}", 2, "needs its type and shape"),
        (f"// @workspace 4096\n// @tensormap t = workspace+8 as uint8(64) tile(64)\n{LAUNCH}", 2, "multiple of 16 bytes"),
        (f"// @workspace 4096\n// @tensormap t = workspace+64 as uint8(4096) tile(64)\n{LAUNCH}", 2, "its source has 4032"),
    ],
)
def test_sizes_beyond_the_device_s_limits(lines: str, line: int, message: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        _resolve(lines)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert caught.value.column > 3
