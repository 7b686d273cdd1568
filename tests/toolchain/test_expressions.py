"""The expressions of plan and tunable lines: values, precedence, limits, and error positions."""

from __future__ import annotations

import contextlib
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import KernelCodeError
from engine.toolchain.expressions import MAX_MAGNITUDE, MAX_TOKENS, evaluate, parse

NAMES = {"N": 1000, "BLOCK": 128, "EPS": 1e-5, "SMS": 132, "ZERO": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0x1F", 31),
        ("N", 1000),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("10 - 4 - 3", 3),
        ("100 / 7 / 2", 7),
        ("-7 / 2", -4),
        ("-7 % 4", 1),
        ("7 % -4", -1),
        ("--3", 3),
        ("- 3 * 2", -6),
        ("2 - -3", 5),
        ("1 < 2", 1),
        ("2 <= 1", 0),
        ("3 == 1 + 2", 1),
        ("(1 < 2) + (3 > 4)", 1),
        ("N % BLOCK != 0", 1),
        ("ceil_div(N, BLOCK)", 8),
        ("ceil_div(-7, 2)", -3),
        ("min(3, 1, 2) + max(N, 5)", 1001),
        ("next_pow2(N)", 1024),
        ("next_pow2(1024)", 1024),
        ("next_pow2(1)", 1),
        ("next_pow2(0) + next_pow2(-9)", 2),
        ("9223372036854775807", MAX_MAGNITUDE),
    ],
)
def test_expressions_are_evaluated_with_floor_division(text: str, value: int) -> None:
    assert evaluate(parse(text), NAMES) == value


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected a number, a name or '(', found the end of the line"),
        ("1 +", 4, "found the end of the line"),
        ("(1", 3, "expected ')'"),
        ("1 2", 3, "unexpected '2'"),
        ("1 < 2 < 3", 7, "unexpected '<'"),
        ("1 $ 2", 3, "unexpected '$'"),
        ("1.5", 1, "not an integer"),
        ("128u", 1, "not an integer"),
        ("1 + __import__(1)", 5, "unknown function '__import__'"),
        ("ceildiv(1, 2)", 1, "did you mean 'ceil_div'?"),
        ("ceil_div(1)", 1, "takes 2 arguments, not 1"),
        ("next_pow2(1, 2)", 1, "takes 1 argument, not 2"),
        ("BLOK * 2", 1, "unknown name 'BLOK': did you mean 'BLOCK'?"),
        ("4 * QQQQQ", 5, "unknown name 'QQQQQ'"),
        ("2 * EPS", 5, "only integers"),
        ("N / (BLOCK - 128)", 3, "division by zero"),
        ("N % ZERO", 3, "division by zero"),
        ("1 + ceil_div(1, 0)", 5, "division by zero"),
        ("9223372036854775808", 1, "too large"),
        ("1" * 4000, 1, "too large"),
        ("0x7fffffffffffffff + 1", 20, "too large"),
        ("4611686018427387904 * 4611686018427387904", 21, "too large"),
        ("next_pow2(9223372036854775807)", 1, "too large"),
        ("(" * MAX_TOKENS + "1", MAX_TOKENS + 1, "too long"),
        ("+".join("1" * MAX_TOKENS), MAX_TOKENS + 1, "too long"),
    ],
)
def test_errors_point_at_the_place(text: str, column: int, message: str) -> None:
    with pytest.raises(KernelCodeError, match="line 12") as caught:
        evaluate(parse(text, line=12, column=31), NAMES)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (12, 30 + column)


@pytest.mark.slow
@given(st.text(max_size=60) | st.text("()+-*/%<>=!,0123456789 NBLOCKminaxceil_dv", max_size=60))
def test_any_text_parses_or_raises_a_code_error(text: str) -> None:
    with contextlib.suppress(KernelCodeError):
        assert abs(evaluate(parse(text), NAMES)) <= MAX_MAGNITUDE


Pair = tuple[str, str]
"""The same expression in our syntax and in Python's."""

_LEAVES = st.integers(0, 5000).map(lambda n: (str(n), str(n))) | st.sampled_from(["N", "BLOCK"]).map(lambda n: (n, n))
_MARKS = {"+": "+", "-": "-", "*": "*", "/": "//", "%": "%"}
_COMPARE = ["<", "<=", ">", ">=", "==", "!="]


def _grow(children: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    pairs = st.tuples(children, children)
    arithmetic = st.builds(lambda m, p: (f"({p[0][0]} {m} {p[1][0]})", f"({p[0][1]} {_MARKS[m]} {p[1][1]})"),
                           st.sampled_from(sorted(_MARKS)), pairs)  # fmt: skip
    compared = st.builds(lambda m, p: (f"({p[0][0]}{m}{p[1][0]})", f"int({p[0][1]} {m} {p[1][1]})"),
                         st.sampled_from(_COMPARE), pairs)  # fmt: skip
    negated = children.map(lambda p: (f"-{p[0]}", f"(-{p[1]})"))
    called = st.builds(lambda f, p: (f"{f}({p[0][0]}, {p[1][0]})", f"{f}({p[0][1]}, {p[1][1]})"),
                       st.sampled_from(["min", "max", "ceil_div"]), pairs)  # fmt: skip
    return arithmetic | compared | negated | called


@given(st.recursive(_LEAVES, _grow, max_leaves=12))
def test_agrees_with_python(pair: Pair) -> None:
    ours, pythons = pair
    scope = {"N": NAMES["N"], "BLOCK": NAMES["BLOCK"], "ceil_div": lambda a, b: -operator.floordiv(-a, b)}
    try:
        expected = eval(pythons, {}, scope)
    except ZeroDivisionError:
        with pytest.raises(KernelCodeError, match=r"division by zero|too large"):
            evaluate(parse(ours), NAMES)
        return
    try:
        assert evaluate(parse(ours), NAMES) == expected
    except KernelCodeError as error:
        if "too large" not in str(error):
            raise


@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*", "/", "%"]), st.integers(1, 50)), min_size=1, max_size=8))
def test_precedence_agrees_with_python(steps: list[tuple[str, int]]) -> None:
    ours = "3" + "".join(f" {mark} {value}" for mark, value in steps)
    assert evaluate(parse(ours), {}) == eval(ours.replace("/", "//"))
