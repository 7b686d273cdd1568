"""Sessions as files: import, open and replay of a bundle, delete; nothing is overwritten and nothing is left behind."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from support.program import Call

from engine.export import bundle
from engine.journal import journal, store
from engine.journal.lock import WriterLock


@pytest.fixture(params=bundle.SUFFIXES)
def packed(request: pytest.FixtureRequest, espalier: Call, recorded: Path, tmp_path: Path) -> Path:
    """The recorded session as a bundle."""
    file = tmp_path / f"sent{request.param}"
    assert espalier("export", "scripted", "--format", "bundle", "-o", file).status == 0
    return file


def sessions(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "sessions").iterdir())


def test_a_bundle_is_imported_under_its_name_and_never_over_another(
    espalier: Call, home: Path, recorded: Path, packed: Path
) -> None:
    result = espalier("session", "import", packed)
    assert result.status == 0
    assert f"imported {packed} as {home / 'sessions' / 'sent'}" in result.out
    assert "next: espalier open sent" in result.out
    assert journal.read(home / "sessions" / "sent").entries == journal.read(recorded).entries
    assert espalier("session", "import", packed, "--json").json()["session"].endswith("sent-2")
    assert espalier("kernel", "show", "sent-2", "k2", "--code").out
    assert sessions(home) == ["scripted", "sent", "sent-2"]


def test_open_imports_a_bundle_and_says_where(espalier: Call, home: Path, packed: Path) -> None:
    result = espalier("open", packed, "--headless")
    assert result.status == 0
    assert f"as {home / 'sessions' / 'sent'}" in result.err
    assert "ended: " in result.out
    assert sessions(home) == ["scripted", "sent"]


def test_replay_plays_a_bundle_without_importing_it(
    espalier: Call, home: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    result = espalier("replay", packed, "--headless")
    assert result.status == 0
    assert "★" in result.out
    assert f"espalier open {packed}: import and resume" in result.out
    found = espalier("replay", packed, "--json").json()
    assert found["session"] == str(packed)
    assert found["kernels"] == 10
    assert list(scratch.iterdir()) == []
    assert sessions(home) == ["scripted"]


@pytest.mark.slow
def test_a_file_that_is_no_bundle_is_one_line_and_leaves_nothing(
    espalier: Call, home: Path, packed: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign.tar.gz"
    with tarfile.open(foreign, "w:gz") as tar:
        member = tarfile.TarInfo("../evil")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    torn = tmp_path / "torn.tar.gz"
    torn.write_bytes(packed.read_bytes()[:2000])
    text = tmp_path / "text.tar.gz"
    text.write_text("hello")
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 24)))
    for file in (foreign, torn, text, bomb, tmp_path / "absent.tar.gz", tmp_path):
        assert str(file) in espalier("session", "import", file).error_line()
    for file in (foreign, torn, text):
        for command in (("open", "--headless"), ("replay", "--headless")):
            assert str(file) in espalier(command[0], file, command[1]).error_line()
    assert sessions(home) == ["scripted"]
    assert not (home / "evil").exists()


def test_a_git_lfs_pointer_or_a_pipe_in_the_place_of_a_bundle_is_named(espalier: Call, home: Path, tmp_path: Path) -> None:
    pointer, pipe = tmp_path / "pointer.tar.gz", tmp_path / "pipe.tar.gz"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    os.mkfifo(pipe)
    for arguments in (("session", "import", pointer), ("open", pointer, "--headless"), ("replay", pointer, "--headless")):
        assert f"{pointer} is a Git LFS pointer: fetch the file with `git lfs pull`" in espalier(*arguments).error_line()
    assert f"cannot read bundle {pipe} (not a regular file)" in espalier("session", "import", pipe).error_line()


def test_deleting_asks_first(espalier: Call, home: Path, recorded: Path) -> None:
    assert "confirm with --yes" in espalier("session", "delete", "scripted").error_line()
    assert store.is_session(recorded)
    assert espalier("session", "delete", "scripted", "--yes").out == f"deleted {recorded}\n"
    assert sessions(home) == []
    assert "unknown session" in espalier("session", "delete", "scripted", "--yes").error_line()


def test_a_session_in_use_is_not_deleted(espalier: Call, recorded: Path) -> None:
    lock = WriterLock(recorded)
    try:
        assert "process" in espalier("session", "delete", "scripted", "--yes").error_line()
    finally:
        lock.release()
    assert store.is_session(recorded)


def test_an_answer_of_no_deletes_nothing(espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cli.session_file.stdin_is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert espalier("session", "delete", "scripted").status == 130
    assert store.is_session(recorded)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert espalier("session", "delete", "scripted").status == 0
    assert not recorded.exists()
