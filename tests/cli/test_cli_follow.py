"""``espalier follow``: a session watched from a second process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.program import Call, command, environment

from engine.cli.exit_codes import AWAITING
from engine.domain.errors import ProblemError
from engine.journal.lock import WriterLock, is_written
from engine.session.follow import FollowSource


def test_an_ended_session_is_printed_with_its_tree(espalier: Call, recorded: Path) -> None:
    before = (recorded / "journal.jsonl").read_bytes()
    result = espalier("follow", "scripted", "--headless")
    assert result.status == 0
    for words in ("round 0 opened", "is the incumbent", "session ended", "★"):
        assert words in result.out, words
    assert (recorded / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_session_is_watched_while_it_is_written(home: Path, recorded: Path) -> None:
    journal = recorded / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:20]))
    lock = WriterLock(recorded)
    watching = subprocess.Popen(
        command("follow", recorded, "--headless"), env=environment(home), stdout=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert watching.stdout is not None
    assert "session opened" in watching.stdout.readline()
    with journal.open("ab") as file:
        for line in lines[20:]:
            file.write(line)
            file.flush()
    out, _ = watching.communicate(timeout=30)
    lock.release()
    assert "session ended" in out
    assert watching.returncode == 0


def test_a_session_that_no_process_runs_is_printed_with_how_to_resume_it(espalier: Call, recorded: Path) -> None:
    journal = recorded / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:20]))
    result = espalier("follow", "scripted", "--headless")
    assert result.status == AWAITING
    assert "session opened" in result.out
    assert result.err == "espalier: no process runs scripted: `espalier open scripted` resumes it\n"


@pytest.mark.slow
def test_a_session_that_another_process_takes_up_meanwhile_is_watched_on(
    espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = recorded / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:20]))
    answers = [False, True]

    def taken_up(folder: Path) -> bool:
        if len(answers) == 1:
            journal.write_bytes(b"".join(lines))
        return answers.pop(0) if answers else False

    monkeypatch.setattr("engine.session.follow.is_written", taken_up)
    result = espalier("follow", "scripted", "--headless")
    assert result.status == 0
    assert "session ended" in result.out


def test_whether_a_session_is_written_is_asked_without_disturbing_its_writer(recorded: Path) -> None:
    assert not is_written(recorded)
    lock = WriterLock(recorded)
    assert is_written(recorded)
    lock.release()
    assert not is_written(recorded)
    WriterLock(recorded).release()


def test_a_browser_needs_the_server(espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    assert "pip install 'espalier[serve]'" in espalier("follow", "scripted", "--browser").error_line()


@pytest.mark.parametrize("content", [b"", b'{"v":1,"seq":0,'])
def test_a_session_without_an_event_is_refused_with_advice_that_works(
    espalier: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(content)
    said = espalier("follow", folder, "--headless").error_line()
    assert said == espalier("open", folder).error_line(), "what one command advises, another does not refuse"
    assert f"`espalier run PROBLEM --session {folder}`" in said

    async def stop() -> None:
        raise ProblemError("the folder is accepted")

    monkeypatch.setattr("engine.session.factory.find_judge_reason", stop)
    run = ("run", "softmax", "--device", "cpu", "--headless", "--session", folder)
    assert "the folder is accepted" in espalier(*run).error_line()
    (folder / "journal.jsonl").write_bytes(b"no event\nat all\n")
    assert "already holds a session" in espalier(*run).error_line()


def test_a_session_that_a_process_has_just_begun_is_followed(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b"")
    lock = WriterLock(tmp_path)
    try:
        assert FollowSource(tmp_path).is_run
    finally:
        lock.release()
