"""What is read of a Triton file without running it: functions, configurations, plan lines, what they resolve to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Dialect, Operand, Role
from engine.toolchain.device_images import MAGIC, DeviceImage, bind, cubins, pack, unpack
from engine.toolchain.kernel_file import classify
from engine.toolchain.resolution import NullArg, OperandArg, ScalarArg, WorkspaceArg, decode, encode
from engine.toolchain.triton.plan import parse_triton_plan
from engine.toolchain.triton.resolution import ResolvedTriton, resolve_triton
from engine.toolchain.triton.source import jit_functions
from engine.toolchain.tunables import parse_requires, parse_tunables, variants

HEAD = "import triton\nimport triton.language as tl\n\n"
ROWS = HEAD + "@triton.jit\ndef rows(x, out, n, X_DIM1: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr = 64):\n    pass\n"
OPERANDS = (Operand("x", Role.INPUT, (128, 96), "float16"), Operand("out", Role.OUTPUT, (128, 96), "float32"))
NAMES = {"X_DIM0": 128, "X_DIM1": 96, "X_NUMEL": 128 * 96, "EPS": 1e-5, "SMS": 132, "BIG": 2**40}


def resolved(lines: str, code: str = ROWS, **tunables: int) -> ResolvedTriton:
    return resolve_triton(parse_triton_plan(code + lines), {**NAMES, **tunables}, OPERANDS)


def test_launch_lines_make_a_triton_plan_of_a_python_file() -> None:
    assert classify(ROWS + "# @launch rows(x, out, 1) grid(1)\n", "k.py") == (Dialect.TRITON, Contract.PLAN)
    assert classify(f"{ROWS}class ModelNew: ...\n", "k.py") == (Dialect.PYTHON, Contract.MODULE)


def test_arguments_bind_and_constants_come_by_name() -> None:
    found = resolved("# @launch rows(x, out, X_NUMEL) grid(X_DIM0)\n", BLOCK=256, num_warps=8)
    (job,), (launch,) = found.jobs, found.plan.launches
    assert job.signature == (
        ("x", "*fp16"), ("out", "*fp32"), ("n", "i32"), ("X_DIM1", "constexpr"), ("EPS", "constexpr"), ("BLOCK", "constexpr"),
    )  # fmt: skip
    assert job.constants == {"X_DIM1": 96, "EPS": 1e-5, "BLOCK": 256}
    assert (job.aligned, job.options) == ((0, 1, 2), {"num_warps": 8})
    assert launch.arguments == (OperandArg("x"), OperandArg("out"), ScalarArg("i32", 128 * 96))
    assert decode(encode(found.plan)) == found.plan


@pytest.mark.parametrize(
    ("value", "kind", "arguments", "aligned"),
    [
        ("1", "constexpr", 2, (0, 1)),
        ("17", "i32", 3, (0, 1)),
        ("32", "i32", 3, (0, 1, 2)),
        ("BIG", "i64", 3, (0, 1, 2)),
        ("EPS", "fp32", 3, (0, 1)),
        ("None", "constexpr", 2, (0, 1)),
        ("workspace+64 as int32", "*i32", 3, (0, 1, 2)),
    ],
)
def test_values_are_specialised_as_triton_does(value: str, kind: str, arguments: int, aligned: tuple[int, ...]) -> None:
    found = resolved(f"# @workspace 256\n# @launch rows(x, out, n={value}) grid(1)\n")
    assert dict(found.jobs[0].signature)["n"] == kind
    assert len(found.plan.launches[0].arguments) == arguments
    assert found.jobs[0].aligned == aligned
    assert found.jobs[0].defaults == ("BLOCK",)


def test_a_name_with_the_functions_name_is_its_own() -> None:
    found = resolved("# @launch rows(x, out, 4) grid(2)\n", BLOCK=16, rows_BLOCK=32, num_warps=4, rows_num_warps=2)
    assert (found.jobs[0].constants["BLOCK"], found.jobs[0].options) == (32, {"num_warps": 2})


def test_equal_launches_share_an_image() -> None:
    found = resolved(
        "# @launch rows(x, out, 4) grid(2)\n# @launch rows(out, out, 4) grid(2)\n# @launch rows(out, out, 4) grid(9)\n"
    )
    assert [launch.image for launch in found.plan.launches] == [0, 1, 1]
    assert [job.line for job in found.jobs] == [7, 8]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("# @launch row(x, out, 1) grid(1)", "no @jit function 'row' in the code: did you mean 'rows'?"),
        ("# @launch rows(x, out) grid(1)", "'rows' needs a value for 'n': give it in the brackets"),
        ("# @launch rows(x, out, 1)", "has no grid"),
        ("# @launch rows(x, out, 1) grid(1) block(32)", "Triton decides block itself: use num_warps(N)"),
        ("# @launch rows(x, out, 1) grid(0)", "grid x is 0"),
        ("# @launch rows(x, y, 1) grid(1)", "unknown operand or name 'y'"),
        ("# @launch rows(x, out, 1, 2, 3, 4, 5) grid(1)", "takes 6 arguments: this one is too many"),
        ("# @launch rows(x, out, 1, m=3) grid(1)", "has no parameter 'm'"),
        ("# @launch rows(x, out, 1, x=out) grid(1)", "gets 'x' twice"),
        ("# @launch rows(x, out, n=1, 5) grid(1)", "a positional argument after a named one"),
        ("# @launch rows(x, out, 1) grid(1) num_warps(3)", "num_warps is 3: use a power of two up to 32"),
        ("# @launch rows(x, out, workspace) grid(1)", "no `@workspace BYTES` line"),
        ("# @workspace 64\n# @launch rows(x, out, workspace+8) grid(1)", "must start at a multiple of 16 bytes"),
        ("# @launch rows(x, out, 1, BLOCK=x) grid(1)", "'BLOCK' is tl.constexpr: it takes a number"),
        ("# @tensormap t = x tile(1,2)\n# @launch rows(x, out, 1) grid(1)", "make descriptors in the kernel"),
        ("# @lauch rows(x, out, 1) grid(1)", "did you mean @launch?"),
    ],
)
def test_bad_lines_are_told_with_their_place(lines: str, words: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        resolved(lines + "\n")
    assert words in str(caught.value)
    assert caught.value.line >= 7


def test_the_functions_of_a_file_are_read_with_their_decorators() -> None:
    code = HEAD + (
        "@triton.heuristics({'EVEN': lambda a: a['N'] % 2 == 0})\n@triton.jit(noinline=True)\n"
        "def one(x, *, N: tl.constexpr, EVEN: 'tl.constexpr'): ...\n"
        "@gluon.jit\ndef two(x: tl.tensor): ...\ndef host(x): ...\n"
    )
    found = jit_functions(code)
    assert set(found) == {"one", "two"}
    assert [(p.name, p.constexpr) for p in found["one"].parameters] == [("x", False), ("N", True), ("EVEN", True)]
    assert found["one"].computed == {"EVEN"}
    with pytest.raises(KernelCodeError, match=r"\*args"):
        jit_functions("@jit\ndef f(*a): ...")
    with pytest.raises(KernelCodeError, match="not Python"):
        jit_functions("def f(:")


TUNED = HEAD + (
    "WARPS = [4, 8]\n"
    "def configs():\n    return [triton.Config({'BM': m, 'BN': 2 * m}, num_warps=w) "
    "for m in (32, 64) for w in WARPS if m + w > 36]\n"
    "@triton.autotune(configs=configs() + [triton.Config(dict(), num_warps=1)][:0] if False else configs(), key=['n'])\n"
    "@triton.jit\ndef f(x, BM: tl.constexpr, BN: tl.constexpr): ...\n"
)
PLAIN = TUNED.replace("configs() + [triton.Config(dict(), num_warps=1)][:0] if False else configs()", "configs()")


def test_autotune_configurations_become_tunables_that_vary_together() -> None:
    code = PLAIN + "# @tune UNROLL = 1, 2\n# @require UNROLL < BM / 32\n"
    tunables, requires = parse_tunables(code, Dialect.TRITON), parse_requires(code, Dialect.TRITON)
    assert {t.name: t.values for t in tunables} == {
        "BM": (32, 64), "BN": (64, 128), "num_warps": (8, 4), "num_stages": (3,), "UNROLL": (1, 2),
    }  # fmt: skip
    chosen = variants(tunables, requires, {}, 99, 0)
    assert {(c["BM"], c["BN"], c["num_warps"], c["UNROLL"]) for c in chosen} == {(64, 128, 4, 1), (64, 128, 8, 1)}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (TUNED, "cannot be read: `"),
        (PLAIN.replace("num_warps=w)", "num_warps=w, pre_hook=hook)"), "a pre_hook is host code"),
        (PLAIN.replace("return [", "return build() + ["), "`build()` is computed"),
        (PLAIN.replace("for m in (32, 64)", "for m in range(10**9)"), "too many values"),
        (PLAIN.replace("'BM': m,", "'BM': 'x',"), "BM is 'x', not an integer"),
    ],
)
def test_configurations_that_cannot_be_read_are_refused(code: str, words: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        parse_tunables(code, Dialect.TRITON)
    assert words in str(caught.value)


def test_configurations_of_two_functions_keep_apart() -> None:
    both = PLAIN + PLAIN.replace("def f(", "def g(").removeprefix(HEAD)
    names = [t.name for t in parse_tunables(both, Dialect.TRITON)]
    assert names[:2] == ["f_BM", "f_BN"]
    assert "g_num_warps" in names


def image(scratch: int = 0, parameters: int = 5, shared: int = 64) -> DeviceImage:
    return DeviceImage("rows_kernel", 256, shared, parameters, scratch, 128, b"\x7fELF")


def test_images_give_a_plan_what_only_the_compiler_knows() -> None:
    found = resolved("# @workspace 100\n# @launch rows(x, out, 3) grid(4, 5) num_ctas(2)\n").plan
    data = pack([image(scratch=384)])
    (launch,) = bind(found, data).launches
    assert (launch.kernel, launch.block, launch.shared_bytes, launch.cluster, launch.grid) == (
        "rows_kernel", (256, 1, 1), 64, (2, 1, 1), (8, 5, 1),
    )  # fmt: skip
    assert launch.arguments[-2:] == (WorkspaceArg(512), NullArg())
    assert bind(found, data).workspace_bytes == 512 + 384 * 40
    assert bind(found, pack([image(parameters=4)])).launches[0].arguments[-1] == NullArg()
    assert bind(found, b"\x7fELF plain") == found
    with pytest.raises(KernelCodeError, match="lacks"):
        bind(resolved("# @launch rows(x, out, 3) grid(1)\n# @launch rows(x, x, 3) grid(1)\n").plan, data)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_images_are_read_back(codes: list[bytes]) -> None:
    images = tuple(DeviceImage("k", 32, 0, 3, 0, 1, code) for code in codes)
    assert unpack(pack(images)) == images
    assert cubins(pack(images)) == tuple(codes)


def test_damaged_images_are_refused() -> None:
    with pytest.raises(KernelCodeError, match="not device images"):
        unpack(MAGIC + b"\xc1")
