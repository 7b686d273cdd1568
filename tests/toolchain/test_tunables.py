"""Tunable lines, allowed combinations, and which of them are tried first."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import KernelCodeError
from engine.domain.model import Dialect, Tunable
from engine.ideas.playbook_file import read_playbook
from engine.problem import catalog
from engine.toolchain.tunables import default_values, first_unmet, neighbours, parse_requires, parse_tunables, variants

SOURCE = """\
#include "problem.h"
// @tune   BLOCK = 128, 256, 512, 1024
//@tune UNROLL=1,2,4        // rows at a time
  // @require BLOCK * UNROLL <= LIMIT
void launch();
"""


def test_tune_and_require_lines_are_parsed() -> None:
    assert parse_tunables(SOURCE, Dialect.CPP) == (
        Tunable("BLOCK", (128, 256, 512, 1024)),
        Tunable("UNROLL", (1, 2, 4)),
    )
    (requirement,) = parse_requires(SOURCE, Dialect.CUDA)
    assert (requirement.text, requirement.line, requirement.column) == ("BLOCK * UNROLL <= LIMIT", 4, 14)


def test_in_python_only_lines_with_a_hash_are_parsed() -> None:
    source = "# @tune STAGES = 2, 3, -1  # deep\n// @tune OTHER = 1\nclass ModelNew: pass\n"
    assert parse_tunables(source, Dialect.PYTHON) == (Tunable("STAGES", (2, 3, -1)),)


def test_no_tunables_is_one_variant() -> None:
    assert variants((), (), {}, 8, 0) == ({},)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("// @tune", 1, 9, "expected a name after @tune"),
        ("\n// @tune BLOCK", 2, 15, "expected '='"),
        ("// @tune BLOCK =", 1, 17, "expected an integer"),
        ("// @tune BLOCK = 1,", 1, 20, "expected an integer"),
        ("// @tune BLOCK = 1, A", 1, 21, "expected an integer, found 'A'"),
        ("// @tune BLOCK = 1 2", 1, 20, "unexpected '2'"),
        ("// @tune BLOCK = 1, 2, 1", 1, 22, "duplicate value 1"),
        ("// @tune BLOCK = 4294967296", 1, 18, "C ints"),
        ("// @tune BLOCK = 99999999999999999999", 1, 18, "C ints"),
        ("// @tune A = 1\r\n// @tune A = 2", 2, 10, "duplicate tunable"),
        ("// @tune A = " + ", ".join(map(str, range(65))), 1, None, "too many values"),
        ("\n".join(f"// @tune A{i} = 1" for i in range(17)), 17, 10, "too many tunables"),
        ("// @tunes BLOCK = 1", 1, 5, "unknown directive @tunes: did you mean @tune?"),
    ],
)
def test_a_malformed_line_is_refused_with_line_and_column(text: str, line: int, column: int | None, message: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        parse_tunables(text, Dialect.CUDA)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert column is None or caught.value.column == column


def test_documentation_comments_are_ignored() -> None:
    assert parse_tunables("// @param x the input\n/// @brief a kernel\n// a @tune B = 1", Dialect.CUDA) == ()


def test_defaults_come_first_and_requirements_hold() -> None:
    tunables, requires = parse_tunables(SOURCE, Dialect.CPP), parse_requires(SOURCE, Dialect.CPP)
    found = variants(tunables, requires, {"LIMIT": 1024}, 100, seed=7)
    assert found[0] == {"BLOCK": 128, "UNROLL": 1}
    allowed = [(b, u) for b in tunables[0].values for u in tunables[1].values if b * u <= 1024]
    assert sorted((v["BLOCK"], v["UNROLL"]) for v in found) == allowed


def test_the_choice_covers_the_space() -> None:
    tunables = (Tunable("A", (0, 1, 2, 3)), Tunable("B", (0, 1, 2, 3)))
    chosen = variants(tunables, (), {}, 4, seed=0)
    assert chosen[0] == {"A": 0, "B": 0}
    assert chosen[1] == {"A": 3, "B": 3}
    assert len({v["A"] for v in chosen}) >= 3
    assert len({v["B"] for v in chosen}) >= 3


def test_forbidden_defaults_are_replaced_by_the_nearest_combination() -> None:
    source = "// @tune A = 8, 4, 2\n// @require A < MOST"
    tunables, requires = parse_tunables(source, Dialect.CUDA), parse_requires(source, Dialect.CUDA)
    assert variants(tunables, requires, {"MOST": 8}, 1, 0) == ({"A": 4},)
    with pytest.raises(KernelCodeError, match=r"line 2.*no combination.*A < MOST"):
        variants(tunables, requires, {"MOST": 1}, 1, 0)
    with pytest.raises(KernelCodeError, match=r"line 2, column 17: unknown name 'MOST'"):
        variants(tunables, requires, {}, 1, 0)


_TUNABLES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
    lambda sizes: tuple(Tunable(f"T{i}", tuple(range(10, 10 + size))) for i, size in enumerate(sizes))
)


@given(_TUNABLES, st.integers(1, 30), st.integers(0, 2**32))
def test_variants_are_deterministic_without_repeats(tunables: tuple[Tunable, ...], limit: int, seed: int) -> None:
    found = variants(tunables, (), {}, limit, seed)
    space = list(itertools.product(*(t.values for t in tunables)))
    assert found == variants(tunables, (), {}, limit, seed)
    assert found[0] == default_values(tunables)
    assert len(found) == min(limit, len(space))
    keys = [tuple(v[t.name] for t in tunables) for v in found]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(space)


def test_a_huge_space_is_sampled() -> None:
    tunables = tuple(Tunable(f"T{i}", tuple(range(64))) for i in range(16))
    found = variants(tunables, (), {}, 5, seed=1)
    assert len({tuple(sorted(v.items())) for v in found}) == 5


def test_neighbours_differ_in_one_tunable() -> None:
    tunables, requires = parse_tunables(SOURCE, Dialect.CPP), parse_requires(SOURCE, Dialect.CPP)
    chosen = {"BLOCK": 256, "UNROLL": 2}
    tried = [{"BLOCK": 128, "UNROLL": 2}]
    assert neighbours(tunables, requires, {"LIMIT": 1024}, chosen, tried) == (
        {"BLOCK": 512, "UNROLL": 2},
        {"BLOCK": 256, "UNROLL": 1},
        {"BLOCK": 256, "UNROLL": 4},
    )


def test_neighbours_change_two_tunables_that_a_requirement_ties() -> None:
    """From 6 × 4 no single change leads to 8 × 3 or 12 × 2, and what does not belong together stays apart."""
    source = """// @tune ROWS = 6, 8, 12
// @tune COLUMNS = 4, 3, 2
// @tune AHEAD = 8, 24
// @require ROWS * COLUMNS == 24
"""
    tunables, requires = parse_tunables(source, Dialect.CPP), parse_requires(source, Dialect.CPP)
    chosen = {"ROWS": 6, "COLUMNS": 4, "AHEAD": 8}
    found = neighbours(tunables, requires, {}, chosen, [])
    assert found == (
        {"ROWS": 6, "COLUMNS": 4, "AHEAD": 24},
        {"ROWS": 8, "COLUMNS": 3, "AHEAD": 8},
        {"ROWS": 12, "COLUMNS": 2, "AHEAD": 8},
    )
    assert neighbours(tunables, requires, {}, chosen, found) == ()


@pytest.mark.parametrize("problem", ["matmul_fp32", "conv2d", "conv2d_relu_maxpool", "attention_fp16"])
def test_tuning_reaches_every_allowed_combination_of_the_playbooks(problem: str) -> None:
    playbook = read_playbook(catalog.problems_root() / problem)
    for one in (one for idea in playbook.ideas for one in idea.implementations.get(Dialect.CPP, ())):
        allowed = variants(one.tunables, one.requires, {}, 500, 0)
        reached, edge = [allowed[0]], [allowed[0]]
        while edge:
            news = neighbours(one.tunables, one.requires, {}, edge.pop(), reached)
            reached += news
            edge += news
        assert len(reached) == len(allowed), one.kernel.name


def test_a_broken_requirement_is_named() -> None:
    requires = parse_requires("// @require A > 1\n// @require A > 2\n", Dialect.CUDA)
    assert first_unmet(requires, {}, {"A": 3}) is None
    found = first_unmet(requires, {}, {"A": 2})
    assert found is not None
    assert found.line == 2


@given(st.text(max_size=80), st.sampled_from(["// @tune ", "// @require ", "# @tune ", ""]))
def test_any_text_parses_or_raises_a_code_error(text: str, prefix: str) -> None:
    for dialect in Dialect:
        with contextlib.suppress(KernelCodeError):
            tunables = parse_tunables(prefix + text, dialect)
            requires = parse_requires(prefix + text, dialect)
            variants(tunables, requires, {"N": 3}, 3, 0)
