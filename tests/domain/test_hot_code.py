"""Hot code in words: shares of samples, whatever numbers a journal holds, and loops."""

from __future__ import annotations

import pytest

from engine.domain import hot_code
from engine.domain.hot_code import HotCode, HotLine, HotLoop


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [
        (0, 10, ""), (1, 1000, "0.1%"), (98, 1000, "9.8%"), (1, 8, "12%"), (8, 8, "100%"), (3, 0, ""), (-3, 8, ""),
        (9, 8, "100%"), (10**400, 1, "100%"), (1, 10**400, ""), (10**400, 10**400, "100%"),
    ],
)  # fmt: skip
def test_a_share_in_per_cent(part: int, whole: int, words: str) -> None:
    assert hot_code.share_words(hot_code.share(part, whole)) == words


def test_samples_that_no_run_can_have_are_summed_up_all_the_same() -> None:
    hot = HotCode(1, (HotLine(1, "x", 10**400),), {"libm.so.6": -4})
    assert hot_code.summary(hot) == "line 1 `x` 100%, libm.so.6  of 1 samples of the program counter"


def test_the_deepest_loops_are_summed_up_where_nothing_was_sampled() -> None:
    loops = (HotLoop("rows", 2, 10, 11, 12, {"LDG": 1, "MUFU": 3}), HotLoop("rows", 1, 0, 0, 4))
    assert hot_code.summary(HotCode(loops=loops)) == (
        "loop depth 2 (static) of rows, lines 10–11: 12 instructions, MUFU 3, LDG 1; "
        "loop depth 1 (static) of rows: 4 instructions"
    )
