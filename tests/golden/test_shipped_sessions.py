"""Shipped sessions fold to their recorded states, entry by entry and in batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.digests import state_digest

from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.journal import journal

HERE = Path(__file__).resolve().parent
SESSIONS = HERE.parents[1] / "sessions"
DIGESTS: dict[str, str] = json.loads((HERE / "shipped_sessions.json").read_text())
"""Session → digest of its folded state. A new field of the state changes them; a refactoring must not."""


def _folded(name: str, batch: int) -> SessionState:
    entries = journal.read(SESSIONS / name).entries
    state = SessionState()
    for start in range(0, len(entries), batch):
        state = advance(state, entries[start : start + batch])
    return state


def test_every_shipped_session_has_a_digest() -> None:
    assert sorted(DIGESTS) == sorted(folder.name for folder in SESSIONS.iterdir() if (folder / journal.NAME).exists())


@pytest.mark.parametrize("name", sorted(DIGESTS))
@pytest.mark.parametrize("batch", [1, 7, 10**6], ids=["one by one", "by seven", "at once"])
def test_it_folds_to_the_same_state(name: str, batch: int) -> None:
    assert state_digest(_folded(name, batch)) == DIGESTS[name]
