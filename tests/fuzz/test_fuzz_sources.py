"""Mangled kernel files, plans, tunables and problems are parsed, or rejected in one line with the place."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.domain.errors import EspalierError, KernelCodeError
from engine.domain.model import Dialect
from engine.problem import catalog
from engine.toolchain import expressions, plan, static_scan, tunables
from engine.toolchain.kernel_file import SUFFIXES, classify, read_kernel_file

PROBLEMS = Path(__file__).parents[2] / "problems"
KERNELS = [p for p in sorted(PROBLEMS.glob("*/playbook/*")) if p.suffix in SUFFIXES]
REFERENCES = sorted(PROBLEMS.glob("*/reference.py"))
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
JUNK = st.sampled_from(
    [
        *("@tune", "@launch", "@require", "// @launch k(x) grid(", "grid(1/0)", "=", ",", "(", ")", "\0", "\ud800", "é"),
        *("\u2028", "\r", "9" * 30, "1e400", "-", "@tensormap t = x tile(0)", "workspace(1<<99)", '"', "/*", 'R"(', "\\\n"),
        *("#", "%", "**", "[", "lambda: 0", "def f(:", "\t", "class Model", "get_inputs", "    ", "import os", "match x:"),
        *("f'{", "0x", "{" * 300, "(" * 300),
    ]
)


def one_line(error: EspalierError) -> None:
    assert str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


def mangled(text: str, seed: int, junk: list[str]) -> str:
    """Insert junk; remove, double or swap pieces."""
    chance = random.Random(seed)
    for piece in junk:
        place = chance.randrange(len(text) + 1)
        match chance.randrange(3):
            case 0:
                text = text[:place] + piece + text[place:]
            case 1:
                text = text[:place] + piece + text[place + chance.randrange(40) :]
            case _:
                other = chance.randrange(len(text) + 1)
                text = text[:place] + text[other : other + 30] + text[place:]
    return text


@QUICK
@given(st.sampled_from(KERNELS), st.integers(0, 2**32), st.lists(JUNK, min_size=1, max_size=5))
def test_a_mangled_kernel_is_parsed_or_refused_in_one_line(path: Path, seed: int, junk: list[str]) -> None:
    text = mangled(path.read_text(), seed, junk)
    dialect = SUFFIXES[path.suffix]
    for act in (
        lambda: classify(text, path.name),
        lambda: tunables.parse_tunables(text, dialect),
        lambda: tunables.parse_requires(text, dialect),
        lambda: plan.parse_plan(text),
        lambda: static_scan.static_scan(text, dialect),
    ):
        try:
            act()
        except KernelCodeError as error:
            one_line(error)


@QUICK
@given(st.binary(max_size=300), st.sampled_from(["k.cu", "k.cpp", "k.py", "k", "k.CU", ".cu"]))
def test_a_kernel_file_of_any_bytes_is_read_or_refused_in_one_line(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        read_kernel_file(path)
    except EspalierError as error:
        one_line(error)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_file_is_refused_without_reading_it(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "k.cpp")
    with pytest.raises(KernelCodeError, match=r"k\.cpp (cannot be read: not a regular file|is a folder)"):
        read_kernel_file(tmp_path / "k.cpp")


@QUICK
@given(
    st.lists(
        st.sampled_from("N BLOCK 1 2 0 + - * / % ( ) min max , ceil_div < == && ? : x.y __ 1.5 'a' ** << and".split()),
        max_size=25,
    )
)
def test_an_expression_of_any_words_is_evaluated_or_refused_in_one_line(words: list[str]) -> None:
    try:
        found = expressions.parse(" ".join(words))
        expressions.evaluate(found, {"N": 7, "BLOCK": 0})
    except EspalierError as error:
        one_line(error)


@QUICK
@given(st.integers(0, 2**32), st.lists(JUNK, min_size=1, max_size=4), st.sampled_from(REFERENCES))
def test_a_mangled_problem_is_read_or_rejected(tmp_path: Path, seed: int, junk: list[str], path: Path) -> None:
    """Reading it executes no code."""
    folder = tmp_path / "p"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    table = path.with_name("problem.toml").read_text()
    text = path.read_text()
    if seed % 2:
        text = mangled(text, seed, junk)
    else:
        table = mangled(table, seed, junk)
    (folder / "reference.py").write_bytes(text.encode("utf-8", "surrogatepass"))
    (folder / "problem.toml").write_bytes(table.encode("utf-8", "surrogatepass"))
    try:
        found = catalog.find(str(folder))
        assert found.workloads
    except EspalierError as error:
        one_line(error)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", list(Dialect))
def test_very_long_input_is_scanned_quickly(dialect: Dialect) -> None:
    for text in ("(" * 100_000, "a " * 100_000, '"' * 100_001, "/*" * 100_000, "@" * 100_000, 'R"(' * 50_000):
        static_scan.static_scan(text, dialect)
