"""The grammar of plan lines, and error positions of malformed ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import KernelCodeError
from engine.domain.model import Operand, Role
from engine.toolchain.plan import NameRef, WorkspaceRef, global_functions, parse_plan
from engine.toolchain.resolution import resolve

KERNEL = 'extern "C" __global__ void __launch_bounds__(128) rows(const float* x, float* out) {}\n'


def test_a_plan_with_every_clause_is_parsed() -> None:
    plan = parse_plan(
        "// @workspace 4 * N zero\n"
        "// @tensormap tx = x tile(64, 64) swizzle(128)\n"
        "// @tensormap tw = workspace+64 as bfloat16(N, 8) tile(8, 8)\n"
        "//   @launch rows(x, out, workspace, workspace+4*N, tx, tw)  grid(N, 2) block(32, 4, 1) shared(4*N) cluster(2)"
        " cooperative  // first\n"
        "// @launch rows() grid(1) block(1)\n" + KERNEL
    )
    assert plan.workspace is not None
    assert plan.workspace.zeroed
    assert [m.name.text for m in plan.tensor_maps] == ["tx", "tw"]
    assert plan.tensor_maps[1].shape is not None
    assert plan.tensor_maps[1].shape.dtype.text == "bfloat16"
    first, second = plan.launches
    assert [type(a) for a in first.arguments] == [NameRef, NameRef, WorkspaceRef, WorkspaceRef, NameRef, NameRef]
    assert (len(first.grid.values), len(first.block.values), first.cooperative) == (2, 3, True)
    assert first.cluster is not None
    assert (second.arguments, second.shared, second.cluster, second.cooperative) == ((), None, None, False)


@pytest.mark.parametrize(
    ("lines", "line", "column", "message"),
    [
        ("", 0, 0, "has no `// @launch"),
        ("// @launch", 1, 11, "expected a kernel's name"),
        ("// @launch row(x) grid(1) block(1)", 1, 12, "no __global__ function 'row' in the code: did you mean 'rows'?"),
        ("// @launch zzz(x) grid(1) block(1)", 1, 12, 'extern "C" __global__ void'),
        ("// @launch rows grid(1) block(1)", 1, 17, "expected '(' after 'rows'"),
        ("// @launch rows(x grid(1) block(1)", 1, 19, "expected ')' to close the arguments"),
        ("// @launch rows(5) grid(1) block(1)", 1, 17, "sizes are compile-time constants"),
        ("// @launch rows(x,) grid(1) block(1)", 1, 19, "expected an operand"),
        ("// @launch rows(x) block(1)", 1, 12, "has no grid"),
        ("// @launch rows(x) grid(1)", 1, 12, "has no block"),
        ("// @launch rows(x) grid(1) grid(1) block(1)", 1, 28, "duplicate clause 'grid'"),
        ("// @launch rows(x) grid(1,1,1,1) block(1)", 1, 20, "at most three numbers"),
        ("// @launch rows(x) grid() block(1)", 1, 25, "expected a number"),
        ("// @launch rows(x) grid(1) block(1) shared(1,2)", 1, 37, "takes one number"),
        ("// @launch rows(x) grid(1) blok(1)", 1, 28, "unknown clause 'blok': did you mean 'block'?"),
        ("// @launch rows(x) grid(1) block(1) 7", 1, 37, "unexpected '7' in this @launch line"),
        ("// @lauch rows(x) grid(1) block(1)", 1, 5, "did you mean @launch?"),
        ("// @workspace 1\n// @workspace 2", 2, 14, "second @workspace line"),
        ("// @workspace 1 zeros", 1, 17, "unexpected 'zeros'"),
        ("// @tensormap = x tile(1)", 1, 15, "expected a name"),
        ("// @tensormap t = x", 1, 20, "tile(t0,...)"),
        ("// @tensormap t = x as float61(8) tile(8)", 1, 24, "did you mean 'float64' or 'float16'?"),
        ("// @tensormap t = x tile(8) swizzle(32, 64)", 1, 29, "takes one number"),
        ("// @tensormap t = x tile(8)\n// @tensormap t = x tile(8)", 2, 15, "the name 't' is already used"),
        ("// @tensormap workspace = x tile(8)", 1, 15, "is already used"),
    ],
)
def test_a_malformed_line_is_refused_with_line_and_column(lines: str, line: int, column: int, message: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        parse_plan(f"{lines}\n{KERNEL}")
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_plan_with_too_many_launches_is_refused() -> None:
    with pytest.raises(KernelCodeError, match=r"line 257.*too many launches"):
        parse_plan("// @launch rows(x) grid(1) block(1)\n" * 257 + KERNEL)


def test_global_functions_are_found_in_code_only() -> None:
    source = (
        "// __global__ void commented(int) {}\n"
        "/* __global__ void blocked(int) {} */\n"
        'const char* text = "__global__ void quoted(int) {}";\n'
        'const char* raw = R"x( __global__ void rawly(int) {} )x";\n'
        "__device__ void helper(int) {}\n"
        "template <int N> __global__ void\n__launch_bounds__(N)\ndeclared(float*);\n"
        'extern "C" __global__ __cluster_dims__(2, 1, 1) void real(const char* s) { helper(1); }\n'
    )
    found = global_functions(source)
    assert {"declared", "real"} <= found
    assert not found & {"commented", "blocked", "quoted", "rawly", "helper"}


@pytest.mark.parametrize("piece", ["__global__ ", 'R"(', "/*", '"', "'", "//@launch rows(", "// @tensormap t = x tile("])
def test_long_hostile_code_is_parsed_in_linear_time(piece: str) -> None:
    """A quadratic parser would take hours: the suite's time limit is the check."""
    source = piece * (500_000 // len(piece))
    assert isinstance(global_functions(source), frozenset)
    with pytest.raises(KernelCodeError):
        parse_plan(source)


_OPERANDS = (Operand("x", Role.INPUT, (64, 64), "float16"), Operand("out", Role.OUTPUT, (64,), "float32"))
_WORDS = st.sampled_from(
    ["rows", "x", "out", "workspace", "tx", "grid(", "block(", "shared(", "cluster(", "cooperative", "tile(", "swizzle(",
     "as", "float16(", "zero", ")", "(", ",", "=", "+", "-", "/", "*", "1", "64", "128", "N", "min("]
)  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["// @launch rows(x) grid(1) block(1)", "// @launch ", "// @workspace ", "// @tensormap tx = x "]),
            st.lists(_WORDS, max_size=14).map(" ".join) | st.text(max_size=30),
        ),
        max_size=4,
    )
)
def test_any_lines_parse_or_raise_a_code_error(lines: list[tuple[str, str]]) -> None:
    source = "".join(f"{start}{rest}\n" for start, rest in lines) + KERNEL
    with contextlib.suppress(KernelCodeError):
        resolve(parse_plan(source), {"N": 64}, _OPERANDS)
