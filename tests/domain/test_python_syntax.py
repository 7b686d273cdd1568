"""Threads that parse Python at once do not disturb each other."""

from __future__ import annotations

import ast
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.domain import python_syntax

TEXT = "\n".join(f"def f{n}(x):\n    return [x[{n}] + (y * {n}) for y in x if y > {n}]\n" for n in range(200))


class InACycle:
    """Its collection runs Python, in which another thread may get its turn."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        pass


@pytest.mark.slow
def test_threads_parse_at_once() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def statements() -> int:
        InACycle()
        return len(python_syntax.parse(TEXT).body)

    try:
        with ThreadPoolExecutor(4) as pool:
            assert {one.result() for one in [pool.submit(statements) for _ in range(60)]} == {200}
    finally:
        sys.setswitchinterval(before)


def test_an_error_leaves_the_next_text_readable() -> None:
    with pytest.raises(SyntaxError, match="invalid syntax"):
        python_syntax.parse("a b")
    assert ast.unparse(python_syntax.parse_expression("N*2")) == "N * 2"
