"""A fork is a whole session, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sessions

from engine.domain.errors import JournalError, JournalUnwritable
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session.fork import fork


def test_a_fork_that_the_disk_has_no_room_for_leaves_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    sessions.whole(tmp_path / "whole")
    before = read(tmp_path / "whole").entries
    put, room = Blobs.put, [3]

    def filling(blobs: Blobs, payload: bytes) -> str:
        room[0] -= 1
        if room[0] < 0:
            raise JournalUnwritable("No space left on device")
        return put(blobs, payload)

    monkeypatch.setattr(Blobs, "put", filling)
    with pytest.raises(JournalUnwritable, match="No space"):
        fork(tmp_path / "whole", len(before))
    assert not list((tmp_path / "sessions").iterdir())
    assert read(tmp_path / "whole").entries == before


@pytest.mark.slow
def test_a_fork_into_a_session_leaves_that_as_it_is(tmp_path: Path) -> None:
    for name in ("whole", "other"):
        sessions.whole(tmp_path / name)
    before = read(tmp_path / "other").entries
    with pytest.raises(JournalError):
        fork(tmp_path / "whole", 3, tmp_path / "other")
    assert read(tmp_path / "other").entries == before
    assert store.is_session(tmp_path / "other")
