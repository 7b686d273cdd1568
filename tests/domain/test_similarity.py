"""Near-duplicate ideas."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain.model import CATEGORIES, IdeaText
from engine.domain.similarity import jaccard_index, near_duplicate

words = st.frozensets(st.sampled_from(["tile", "row", "register", "load", "store", "cache", "unroll"]))
texts = st.builds(IdeaText, st.text(), st.sampled_from(CATEGORIES), st.text(), key=st.sampled_from(["", "a", "b"]))


def idea(title: str, rationale: str = "", category: str = CATEGORIES[0], key: str = "") -> IdeaText:
    return IdeaText(title, category, rationale, None, key)


@given(words, words)
def test_the_index_is_symmetric_and_between_0_and_1(a: frozenset[str], other: frozenset[str]) -> None:
    assert jaccard_index(a, other) == jaccard_index(other, a)
    assert 0.0 <= jaccard_index(a, other) <= 1.0
    assert (jaccard_index(a, other) == 1.0) == (a == other)


@given(texts, texts, st.booleans())
def test_similarity_is_symmetric(a: IdeaText, other: IdeaText, same_parent: bool) -> None:
    assert near_duplicate(a, other, same_parent=same_parent) == near_duplicate(other, a, same_parent=same_parent)


@given(texts)
def test_invalid_idea_texts_are_rejected(a: IdeaText) -> None:
    assert near_duplicate(a, a, same_parent=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Vectorise the loads", "Vectorized load"),
        ("Vectorise the loads", "VECTORISE LOADS!"),
        ("Use tensor cores for the multiplication", "Tensor cores for multiplications"),
        ("Keep each row in registers", "Keeping each row in a register"),
        ("Prefetch the next tile", "The next tile: prefetched"),
    ],
)
def test_the_same_words_in_another_form_are_the_same_idea(one: str, other: str) -> None:
    assert near_duplicate(idea(one), idea(other), same_parent=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Vectorise the loads", "Vectorise the stores"),
        ("Tile for the L2 cache", "Tile for registers"),
        ("Split the rows over threads", "Fuse both passes over a row"),
        ("Double-buffer shared memory", "Avoid bank conflicts in shared memory"),
    ],
)
def test_different_words_are_a_different_idea(one: str, other: str) -> None:
    assert not near_duplicate(idea(one), idea(other), same_parent=True)


def test_a_reworded_title_is_a_duplicate_only_within_a_category() -> None:
    reason = "Each row is read twice from memory; keeping it in registers halves the traffic that binds this kernel."
    one, other = idea("Keep rows in registers", reason), idea("Rows stay in registers now", reason)
    assert near_duplicate(one, other, same_parent=False)
    assert not near_duplicate(one, idea(other.title, reason, CATEGORIES[3]), same_parent=False)


@pytest.mark.parametrize(("a", "other", "same_parent", "alike"), [
    ("tile", "tile", True, True), ("tile", "tile", False, False), ("tile", "fuse", True, False), ("tile", "fuse", False, False),
])  # fmt: skip
def test_keys_decide_when_both_have_one(a: str, other: str, same_parent: bool, alike: bool) -> None:
    assert near_duplicate(idea("Same title", key=a), idea("Same title", key=other), same_parent=same_parent) is alike


def test_a_key_on_one_side_only_compares_the_text() -> None:
    assert near_duplicate(idea("Same title", key="tile"), idea("Same title"), same_parent=False)


def test_the_fixtures_ideas_are_all_different() -> None:
    made = [b.idea_text(n, key="") for n in range(60)]
    assert not any(near_duplicate(a, other, same_parent=True) for a, other in combinations(made, 2))
