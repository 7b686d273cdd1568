"""The line of counts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.viewmodel import stages
from tui.viewmodel.stages import Counts

NONE = Counts(*[0] * len(Counts.__slots__))
COUNT = re.compile(r"\S \d+(?: [a-z]+(?: [a-z]+)*\.?)?")
WORDS = {
    "building", "verifying", "measuring", "queued", "measured", "failed", "to approve", "quarantined", "being written",
    "not corroborated", "repairing", "cancelled", "ideas parked",
    "build", "verify", "measure", "queue", "done", "approve", "writing", "not corrob.", "repair", "parked",
}  # fmt: skip
numbers = st.one_of(st.just(0), st.integers(1, 9), st.integers(10, 999))


def shown(found: Counts, room: int) -> list[str]:
    """The counts that a line of this width shows."""
    text = stages.count_line(found, 0, room).text
    assert len(text) <= room - 1
    return [part for part in re.split(r" {2,}", text.strip()) if part]


@given(st.builds(Counts, *[numbers] * len(Counts.__slots__)), st.integers(40, 200))
def test_no_word_of_the_counts_is_cut_and_what_went_wrong_is_shown_at_every_width(found: Counts, room: int) -> None:
    """Every count is whole, with a word of the legend or with its symbol alone."""
    parts = shown(found, room)
    assert all(COUNT.fullmatch(part) for part in parts), parts
    assert {word for part in parts if (word := part.partition(" ")[2].partition(" ")[2])} <= WORDS, parts
    for number, glyph in ((found.measured, "●"), (found.failed, "✗"), (found.doubted, "?"), (found.quarantined, "◬")):
        assert not number or any(part.startswith(f"{glyph} {number}") for part in parts), (glyph, parts)


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (200, ["◇ 2 to approve", "◔ 1 building", "◑ 0 verifying", "◕ 0 measuring", "○ 7 queued", "● 12 measured", "✗ 2 failed",
               "? 1 not corroborated", "‖ 3 ideas parked"]),
        (80, ["◇ 2 approve", "◔ 1", "○ 7", "● 12 done", "✗ 2 failed", "? 1 not corrob.", "‖ 3 parked"]),
        (60, ["◇ 2 approve", "○ 7", "● 12 done", "✗ 2 failed", "? 1 not corrob."]),
        (40, ["◇ 2", "● 12", "✗ 2 failed", "? 1 not corrob."]),
    ],
)  # fmt: skip
def test_a_narrow_line_of_counts_leaves_out_what_matters_least(room: int, expected: list[str]) -> None:
    found = replace(NONE, undecided=2, building=1, queued=7, measured=12, failed=2, doubted=1, parked=3)
    assert shown(found, room) == expected
