"""Damaged journals are read, followed, opened and folded, or rejected in one line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import sessions

from engine.domain.errors import EspalierError, JournalError
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.journal import journal, store

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "session.jsonl"
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    """Journals written by the program: an old recording and a new one."""
    folder = tmp_path_factory.mktemp("whole") / "session"
    sessions.whole(folder)
    return (GOLDEN.read_bytes(), (folder / journal.NAME).read_bytes())


def one_line(error: EspalierError) -> None:
    assert str(error)
    assert "\n" not in str(error)


def survives(data: bytes, folder: Path) -> None:
    """Every operation on a folder with ``data`` works or fails with one line."""
    folder.mkdir(exist_ok=True)
    (folder / journal.NAME).write_bytes(data)
    for act in (_read, _follow, _list, _write):
        try:
            act(folder)
        except JournalError as error:
            one_line(error)


def _read(folder: Path) -> None:
    entries = journal.read(folder).entries
    whole = advance(SessionState(), entries)
    half = len(entries) // 2
    assert advance(advance(SessionState(), entries[:half]), entries[half:]).seq == whole.seq


def _follow(folder: Path) -> None:
    follower = journal.tail(folder)
    follower.poll()
    follower.poll()


def _list(folder: Path) -> None:
    store.state_of(folder)


def _write(folder: Path) -> None:
    opened, entries, said = journal.Journal.open_for_append(folder)
    opened.close()
    assert "\n" not in said
    assert [entry.seq for entry in entries] == list(range(len(entries)))


@QUICK
@given(st.binary(max_size=400))
def test_a_journal_of_any_bytes_is_read_or_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    survives(data, tmp_path / "s")


@pytest.mark.slow
@QUICK
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=4), st.booleans())
def test_a_journal_with_flipped_bits_is_read_or_refused_in_one_line(
    tmp_path: Path, real: tuple[bytes, ...], flips: list[tuple[float, int]], old: bool
) -> None:
    data = bytearray(real[0 if old else 1])
    for place, bit in flips:
        data[int(place * len(data))] ^= 1 << bit
    survives(bytes(data), tmp_path / "s")


@pytest.mark.slow
@QUICK
@given(st.floats(0, 1), st.floats(0, 1), st.binary(max_size=6), st.booleans())
def test_a_journal_with_a_part_missing_or_replaced_is_read_or_refused_in_one_line(
    tmp_path: Path, real: tuple[bytes, ...], begin: float, end: float, instead: bytes, old: bool
) -> None:
    data = real[0 if old else 1]
    first, last = sorted((int(begin * len(data)), int(end * len(data))))
    survives(data[:first] + instead + data[last:], tmp_path / "s")


@QUICK
@given(st.integers(0, 2**32))
def test_a_journal_with_lines_moved_doubled_or_missing_is_read_or_refused_in_one_line(
    tmp_path: Path, real: tuple[bytes, ...], seed: int
) -> None:
    chance = random.Random(seed)
    lines = chance.choice(real).splitlines(keepends=True)
    for _ in range(chance.randint(1, 3)):
        place, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(3):
            case 0:
                lines[place], lines[other] = lines[other], lines[place]
            case 1:
                lines.insert(place, lines[other])
            case _:
                del lines[place]
    survives(b"".join(lines), tmp_path / "s")


@pytest.mark.slow
@QUICK
@given(st.integers(0, 2**32), st.sampled_from(["null", "-1", '""', "[]", "{}", "1e999", '"k1"', "true", "9" * 40, '"\\ud800"']))
def test_a_journal_with_values_of_a_wrong_type_is_read_or_refused_in_one_line(
    tmp_path: Path, real: tuple[bytes, ...], seed: int, value: str
) -> None:
    """Valid JSON with wrong types: a number for a name, null for a list."""
    chance = random.Random(seed)
    lines = chance.choice(real).decode().splitlines()
    place = chance.randrange(len(lines))
    pieces = lines[place].split(":")
    target = chance.randrange(1, len(pieces))
    rest = pieces[target]
    cut = next((i for i, c in enumerate(rest) if c in ",}"), len(rest))
    pieces[target] = value + rest[cut:]
    lines[place] = ":".join(pieces)
    survives(("\n".join(lines) + "\n").encode(), tmp_path / "s")
