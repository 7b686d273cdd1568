"""The normal form of code: comments, layout and the names of variables do not count; everything else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Contract, Dialect
from engine.toolchain.normal_form import form_digest, normal_form

HOST = """#include "problem.h"
#define WIDTH 8
extern "C" void launch(const float* x, float* out, void*) {
    for (int row = 0; row < ROWS; ++row) {  // each row
        float sum = 0.0f;
        for (int i = 0; i < WIDTH; ++i) sum += x[row * WIDTH + i];
        out[row] = sum;
    }
}
"""
PLAN = """// @tune BLOCK = 128, 256
// @launch scale(x, out) grid(ROWS) block(BLOCK)
extern "C" __global__ void scale(const float* x, float* out) {
    int at = blockIdx.x * BLOCK + threadIdx.x;
    out[at] = 2.0f * x[at];
}
"""
TRITON = '''"""What it does."""
import triton.language as tl
# @launch scale(x, out) grid(ROWS)
def scale(x, out):
    """A kernel."""
    at = tl.program_id(0)
    tl.store(out + at, 2 * tl.load(x + at))  # once
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("// each row", "/* one by one */"),
        ("        float sum", "float   sum"),
        ("row", "line"),
        ("sum", "total"),
        ("{  // each row\n", "\n{\n\n"),
        ("#define WIDTH 8", "#  define   WIDTH 8"),
    ],
)
def test_comments_layout_and_names_of_variables_do_not_count(before: str, after: str) -> None:
    other = HOST.replace(before, after)
    assert other != HOST
    assert normal_form(other, Dialect.CPP) == normal_form(HOST, Dialect.CPP)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0.0f", "1.0f"),
        ("WIDTH 8", "WIDTH 16"),
        ("< ROWS", "<= ROWS"),
        ("sum += x", "sum = x"),
        ("out[row] = sum", "out[row] = row"),
        ("launch", "launches"),
        ("ROWS", "COLUMNS"),
    ],
)
def test_a_change_of_meaning_changes_the_normal_form(before: str, after: str) -> None:
    assert normal_form(HOST.replace(before, after), Dialect.CPP) != normal_form(HOST, Dialect.CPP)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int x = threadIdx.x;", "int y = threadIdx.y;"),
        ("struct P { float x; float y; } p; int a = p.x;", "struct P { float y; float x; } p; int a = p.x;"),
        ("int f(int a) { return a + +a; }", "int f(int a) { return a ++ a; }"),
        ("#define F(x) x\nint a = F(1);", "#define F (x) x\nint a = F(1);"),
        ('int a = 1; const char* s = "a // b";', 'int a = 1; const char* s = "a // c";'),
        ("float f(float v) { return expf(v); }", "float f(float v) { return tanhf(v); }"),
        ('int a, b; void f() { asm("add %0" : "=r"(a)); }', 'int b, a; void f() { asm("add %0" : "=r"(a)); }'),
        ("int n = 1'000; // one\nint k = 1;", "int n = 1'000; // one\nint k = 2;"),
    ],
)  # fmt: skip
def test_texts_that_mean_something_else_differ(one: str, other: str) -> None:
    assert normal_form(one, Dialect.CUDA) != normal_form(other, Dialect.CUDA)


def test_directives_count_and_keep_their_names() -> None:
    assert normal_form(PLAN.replace(" at", " place").replace("[at", "[place"), Dialect.CUDA) == normal_form(PLAN, Dialect.CUDA)
    for before, after in (("128, 256", "128, 512"), ("(x, out) grid", "(out, x) grid"), ("@launch scale", "@launch other")):
        assert normal_form(PLAN.replace(before, after), Dialect.CUDA) != normal_form(PLAN, Dialect.CUDA)
    swapped = PLAN.replace("(x, out) grid", "(y, out) grid").replace("float* x", "float* y").replace("x[at]", "y[at]")
    assert normal_form(swapped, Dialect.CUDA) != normal_form(PLAN, Dialect.CUDA), "another operand"


def test_python_keeps_its_names_and_directives() -> None:
    bare = TRITON.replace("  # once", "").replace('    """A kernel."""\n', "").replace("2 * tl", "2*tl")
    assert normal_form(bare, Dialect.TRITON) == normal_form(TRITON, Dialect.TRITON)
    for before, after in (("grid(ROWS)", "grid(2)"), ("2 *", "3 *"), (" at", " place")):
        assert normal_form(TRITON.replace(before, after), Dialect.TRITON) != normal_form(TRITON, Dialect.TRITON)


def test_dialect_and_contract_count() -> None:
    found = {form_digest(PLAN, Dialect.CUDA, contract) for contract in Contract} | {
        form_digest(PLAN, Dialect.CPP, Contract.HOST)
    }
    assert len(found) == len(Contract) + 1


@given(st.text(), st.sampled_from(list(Dialect)))
def test_every_text_has_a_form(text: str, dialect: Dialect) -> None:
    assert normal_form(text, dialect) == normal_form(text, dialect)
    assert form_digest(text, dialect, Contract.HOST)
