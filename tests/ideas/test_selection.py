"""Selection of diverse proposals."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.model import Author, IdeaText
from engine.domain.work import Proposal
from engine.ideas.selection import pick_diverse

Candidate = tuple[str, float]


def taken(candidates: list[Candidate], count: int) -> tuple[Candidate, ...]:
    proposals = [Proposal(IdeaText("Tile", category, "", predicted), None, Author("a")) for category, predicted in candidates]
    return tuple((p.text.category, p.text.predicted or 0.0) for p in pick_diverse(proposals, count))


@pytest.mark.parametrize(
    ("candidates", "count", "expected"),
    [
        ([], 3, ""),
        ([("a", 1), ("b", 2)], 0, ""),
        ([("a", 1), ("b", 2), ("a", 3)], 2, "a3 b2"),
        ([("a", 9), ("a", 8), ("a", 7), ("b", 1)], 3, "a9 b1 a8"),
        ([("a", 1), ("b", 1), ("c", 1)], 2, "a1 b1"),
        ([("a", 1)], 5, "a1"),
    ],
)
def test_the_highest_prediction_of_the_least_used_category(candidates: list[Candidate], count: int, expected: str) -> None:
    assert " ".join(f"{category}{worth}" for category, worth in taken(candidates, count)) == expected


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.1, 10))), st.integers(0, 10))
def test_categories_are_as_even_as_the_candidates_allow(candidates: list[Candidate], count: int) -> None:
    result = taken(candidates, count)
    assert len(result) == min(count, len(candidates))
    assert not Counter(result) - Counter(candidates)
    there, used = Counter(c for c, _ in candidates), Counter(c for c, _ in result)
    for category, number in used.items():
        for other in there:
            assert used[other] >= number - 1 or used[other] == there[other], (category, other)
