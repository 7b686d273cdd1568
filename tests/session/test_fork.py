"""A fork is a whole session, or none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support import sessions

from engine.domain.errors import JournalError, JournalUnwritable
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.journal import Journal, read
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


@pytest.mark.parametrize("written", [0, 1, 5])
def test_a_fork_that_is_killed_leaves_no_shorter_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """Its journal looked whole, and ended anywhere."""
    sessions.whole(tmp_path / "whole")
    child = os.fork()
    if not child:
        append, left = Journal.append, [written]

        def until_killed(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            return append(*given, **named) if left[0] >= 0 else os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(Journal, "append", until_killed)
        fork(tmp_path / "whole", 9, tmp_path / "fork")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not store.holds_events(tmp_path / "fork")
    assert len(read(fork(tmp_path / "whole", 9, tmp_path / "fork").folder).entries) == 9
    assert not list((tmp_path / "fork").glob(".fork-*"))


def test_what_a_killed_deletion_leaves_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.whole(tmp_path / "whole")
    unlink, left = Path.unlink, [3]

    def until_interrupted(path: Path, *, missing_ok: bool = False) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.delete(tmp_path / "whole")
    assert store.is_session(tmp_path / "whole")
    store.delete(tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
