"""Shipped sessions open, are complete, and contain nothing about the recording machine but its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.domain import queries as q
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.export import bundle
from engine.journal import journal
from engine.journal.blobs import Blobs

SESSIONS = sorted((Path(__file__).parents[2] / "sessions").iterdir())


@pytest.mark.parametrize("folder", SESSIONS, ids=lambda folder: folder.name)
def test_a_shipped_session_opens_and_is_complete(folder: Path) -> None:
    entries = journal.read(folder).entries
    state = advance(SessionState(), entries)
    blobs = Blobs(folder)
    for name in bundle.references(entries):
        blobs.get(name)
    leader = q.incumbent(state)
    assert leader is not None
    assert leader.measurement is not None
    assert state.device is not None
    assert state.device.kind == "cuda"


@pytest.mark.parametrize("folder", SESSIONS, ids=lambda folder: folder.name)
def test_its_journal_contains_no_local_path(folder: Path) -> None:
    text = (folder / "journal.jsonl").read_text()
    assert not [place for place in ("/home/", "/root/", "/tmp/", "/work/") if place in text]
