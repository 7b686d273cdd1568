"""Recorded sessions that ship: nothing writes them, and everything that only reads them works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.program import Call

from engine.domain.errors import JournalUnwritable
from engine.journal import shipped, store
from engine.journal.journal import Journal
from engine.session import factory

REFUSED = "espalier: scripted is a recording that ships with Espalier: `espalier fork scripted` continues from a copy\n"


@pytest.fixture
def recording(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session that ships."""
    root = tmp_path / "installed"
    folder = root / "sessions" / recorded.name
    folder.parent.mkdir(parents=True)
    recorded.rename(folder)
    monkeypatch.setattr(shipped, "shipped_folder", lambda name: root / name)
    monkeypatch.setattr(store, "shipped_root", lambda: root / "sessions")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [
        ("kernel", "race", "scripted"), ("kernel", "prune", "scripted", "k1"), ("kernel", "note", "scripted", "k1", "why"),
        ("idea", "add", "scripted", "mine"), ("session", "limits", "scripted", "--rounds", "9"),
        ("session", "pause", "scripted"), ("session", "end", "scripted"), ("session", "delete", "scripted", "--yes"),
        ("open", "scripted", "--headless"), ("step", "scripted"), ("kernel", "profile", "scripted", "k1"),
    ],
)  # fmt: skip
def test_no_command_writes_a_recording_that_ships(espalier: Call, recording: Path, arguments: tuple[str, ...]) -> None:
    before = contents(recording)
    assert espalier(*arguments).error_line() == REFUSED
    assert contents(recording) == before


def test_its_path_is_refused_like_its_name(
    espalier: Call, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(recording)
    monkeypatch.chdir(recording.parent)
    link = tmp_path / "link"
    link.symlink_to(recording)
    for path in ("./scripted", recording, link):
        assert espalier("session", "resume", path).error_line() == REFUSED
    assert contents(recording) == before


def test_the_terminal_ui_and_the_journal_refuse_it(recording: Path) -> None:
    before = contents(recording)
    with pytest.raises(JournalUnwritable, match="espalier fork scripted"):
        asyncio.run(factory.resume(factory.SavedSession(recording), lambda _: None))
    for attempt in (Journal.create, Journal.open_for_append, store.delete):
        with pytest.raises(JournalUnwritable, match="espalier fork scripted"):
            attempt(recording)
    assert contents(recording) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("session", "list"), ("session", "show", "scripted"), ("session", "limits", "scripted"), ("kernel", "list", "scripted"),
        ("replay", "scripted", "--headless"), ("idea", "list", "scripted"), ("bank",), ("fork", "scripted", "--preview"),
    ],
)  # fmt: skip
def test_reading_it_works_and_writes_nothing(espalier: Call, recording: Path, arguments: tuple[str, ...]) -> None:
    before = contents(recording)
    result = espalier(*arguments)
    assert result.status == 0
    assert result.err == ""
    assert contents(recording) == before


def test_a_fork_of_it_can_be_steered(espalier: Call, recording: Path, tmp_path: Path) -> None:
    before = contents(recording)
    assert espalier("fork", "scripted", "--into", tmp_path / "mine").status == 0
    assert espalier("session", "note", tmp_path / "mine", "hello").status == 0
    assert contents(recording) == before


def test_what_to_do_next_with_it_is_a_fork(espalier: Call, recording: Path) -> None:
    out = espalier("session", "show", "scripted").out
    assert "espalier fork scripted: continue from a copy" in out
    assert "session limits" not in out
    assert "espalier open" not in out
