"""Work in words, as headers and notices name it."""

from __future__ import annotations

import pytest

from engine.domain.work_key import WorkKey, WorkKind
from tui.viewmodel.stages import work_words


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("build:k3:0", "building k3"), ("race:k2:k1:0", "racing k2, k1"), ("sustain:k3", "measuring k3 back to back"),
        ("tune:k3", "tuning k3"), ("propose:2", "proposing ideas for round 2"), ("prepare", "preparing the session"),
        ("simmer:k3", "simmer k3"),
    ],
)  # fmt: skip
def test_work_is_named_by_what_it_does(key: str, words: str) -> None:
    """Also of a kind that only a newer program knows."""
    assert work_words(WorkKey.parse(key)) == words


@pytest.mark.parametrize("kind", WorkKind)
def test_every_kind_of_work_has_words(kind: WorkKind) -> None:
    assert not work_words(WorkKey(kind, ("k1",))).startswith(f"{kind} ")
