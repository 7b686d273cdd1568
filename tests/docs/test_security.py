"""The security page is finished, and its figures are the program's."""

from __future__ import annotations

import re

import pytest
from docs.pages import ROOT

from engine.journal import inbox
from engine.sandbox import watchdog
from engine.toolchain import compiler_run
from engine.trial import channel
from engine.trial.judge.runners import watch
from engine.trial.judge.timing import pair_times, plausibility, sustained_times

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
PLACEHOLDER = re.compile(r"\b(?:TBD|TODO|FIXME|XXX|TBA|n/a)\b|…|\.\.\.|\?\?|\{\{|\}\}|@\w+@|<[A-Z_ ]+>|lorem", re.IGNORECASE)
MIB = 1 << 20
FIGURES = [
    (r"at ([\d.]+) times its measured bandwidth", 1 / plausibility._PLAUSIBLE),
    (r"reuse of less than (\d+)%", 100 * sustained_times._LATE_SHARE),
    (r"a call's cost exceeds (\d+)% of the time", 100 * pair_times.REPORTED),
    (r"Of an order's cost (\d+)% fall", 100 * sustained_times._IN_RUNNER),
    (r"exceeds its share, (\d+) processes", compiler_run._PROCESSES),
    (r"(\d+) GiB of scratch", compiler_run._FOLDER / (1 << 30)),
    (r"(\d+) MiB of output", compiler_run._PRINTED / MIB),
    (r"An artefact has at most (\d+) MiB", compiler_run.LARGEST_ARTEFACT / MIB),
    (r"a runner's reply (\d+) MiB", channel._MAX_REPLY / MIB),
    (r"more than (\d+) waiting descriptors", channel._MAX_WAITING_FDS),
    (r"At most (\d+) requests wait", inbox.MOST_WAITING),
    (r"The judge reads (\d+) elements of each output", watch._PLACES),
    (r"what a compiler takes within (\d+) ms", 1e3 * watchdog.INTERVAL_S),
    (r"of which a verdict has (\d+) and more", 3 * 2 * sustained_times.PACES["cpu"].counted),
]
"""A figure of the page, and where the program has it."""


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def test_no_placeholder_is_left() -> None:
    assert not PLACEHOLDER.findall(PAGE)


@pytest.mark.parametrize("text", ["a TODO", "| … |", "{{figure}}", "<FIGURE>", "to be ...", "@GAIN@"])
def test_a_placeholder_would_be_found(text: str) -> None:
    assert PLACEHOLDER.search(text)


def test_every_table_has_a_head_and_full_rows() -> None:
    heads = [index for index, row in enumerate(ROWS) if set(row) <= set("|-: ")]
    assert len(heads) == 3
    for index, row in enumerate(ROWS):
        head = max((number for number in heads if number <= index + 1), default=heads[0])
        assert len(cells(row)) == len(cells(ROWS[head])), row
        assert all(cells(row)), f"an empty cell: {row}"


@pytest.mark.parametrize(("pattern", "value"), FIGURES, ids=[pattern for pattern, _ in FIGURES])
def test_a_limit_is_the_programs(pattern: str, value: float) -> None:
    (quoted,) = re.findall(pattern, WORDS)
    assert float(quoted) == pytest.approx(value)


def test_the_share_of_late_writes_follows_from_what_is_read() -> None:
    assert "A write of 1% of an output that comes later is detected in three of four calls" in WORDS
    assert pytest.approx(0.75, abs=0.03) == 1 - 0.99**watch._PLACES


def test_measured_figures_of_the_table_name_their_machine() -> None:
    measured = [row for row in ROWS if re.search(r"\d (?:µs|ms)\b", row)]
    assert measured
    assert "The figures are from one H200 and from two cores of its host" in WORDS


@pytest.mark.parametrize("place", re.findall(r"`(tests/[\w/]+)`", PAGE))
def test_a_place_that_is_named_exists(place: str) -> None:
    assert (ROOT / place).exists()
