"""The plain mode: a session steered by lines alone; no escape sequence, no state that only a sign tells."""

from __future__ import annotations

import io
import signal
import subprocess
from pathlib import Path

import pytest
from support import sessions, ui
from support.held import held
from support.program import command
from support.window import Window

from engine.domain import events as e
from engine.domain.errors import ProblemError
from engine.domain.state import IdeaStatus
from engine.journal import store
from tui import plain_mode
from tui.bridge import SavedSession


def steered(action: str, subject: object, *typed: str, opener: ui.FakeOpener | None = None) -> str:
    """What the plain mode prints for these lines on standard input."""
    out = io.StringIO()
    lines_in = io.StringIO("".join(f"{line}\n" for line in typed))
    plain_mode.main(action, subject, opener=opener or ui.FakeOpener(), lines_in=lines_in, out=out)
    text = out.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    return text


def test_a_session_is_steered_by_numbered_choices(tmp_path: Path) -> None:
    text = steered(
        "new", ui.new(tmp_path / "s"),
        "99", "3", "not this one",  # a wrong number is asked again; reject with a reason
        "4", "Edited by hand", "",  # edit the title, keep the rationale
        "2",  # approve all
    )  # fmt: skip
    events = [entry.event for entry in ui.recorded(tmp_path / "s")]
    assert any(isinstance(event, e.IdeaRejected) and event.reason == "not this one" for event in events)
    state = store.state_of(tmp_path / "s")
    assert "Edited by hand" in [idea.text.title for idea in state.ideas.values()]
    assert any(idea.status is IdeaStatus.SELECTED for idea in state.ideas.values())
    assert "99 is not one of the choices" in text
    assert "1. Approve" in text
    assert "resume: espalier open" in text, "the line on leaving"


@pytest.mark.parametrize(
    ("typed", "event"),
    [
        (("5", "My idea", "because", "1", "k1"), e.IdeasProposed),
        (("7", "k2"), e.KernelPinned),
        (("9", "k2"), e.BranchPruned),
        (("12", "k2"), e.KernelReopened),
        (("17", "k1 is odd"), e.NoteAdded),
        (("20", "2"), e.ModeChanged),
        (("21", "9"), e.LimitsChanged),
        (("7", "k999"), None),
        (("6", "/nonexistent.cpp"), None),
        (("14", ""), None),
        (("16",), None),
        (("21", "many"), None),
    ],
)
def test_the_menu_steers(typed: tuple[str, ...], event: type[e.Event] | None, tmp_path: Path) -> None:
    """Of an ended session. What was asked for is recorded; a wrong answer is told and changes nothing."""
    sessions.whole(tmp_path / "s")
    before = len(ui.recorded(tmp_path / "s"))
    text = steered("open", SavedSession(tmp_path / "s"), *typed)
    new = [entry.event for entry in ui.recorded(tmp_path / "s")[before:] if entry.by.is_engineer]
    assert event is None or any(isinstance(one, event) for one in new), text
    assert event is not None or all(isinstance(one, e.SessionResumed) for one in new), text
    assert ("Done." in text) is (event is not None)


@pytest.mark.parametrize("action", ["open", "replay"])
def test_a_menu_has_one_way_to_leave(action: str, tmp_path: Path) -> None:
    """Of a session that does not go on by itself, 0 leaves."""
    sessions.whole(tmp_path / "s")
    text = steered(action, SavedSession(tmp_path / "s") if action == "open" else tmp_path / "s", "0")
    menu = text[text.index("Menu.") :]
    assert [line.strip() for line in menu.splitlines() if "Leave" in line] == ["0. Leave the session"]


def test_the_menu_of_a_session_that_goes_on_has_one_way_to_leave(tmp_path: Path) -> None:
    text = steered("new", ui.new(tmp_path / "s"), "7", "24")
    menu = text[text.index("Menu.") :]
    assert [line.strip() for line in menu.splitlines() if "Leave" in line or "Go on" in line] == [
        "24. Leave the session",
        "0. Go on",
    ]


def test_options_without_effect_on_a_session_that_runs_elsewhere_are_named(tmp_path: Path) -> None:
    with held(tmp_path / "s"):
        told = steered("open", SavedSession(tmp_path / "s", device="cpu"), "0")
        bare = steered("open", SavedSession(tmp_path / "s"), "0")
    assert "Another process runs this session: you steer it from here; --device has no effect.\n" in told
    assert "you steer it from here.\n" in bare


@pytest.mark.parametrize("typed", ["9" * 5000, "0" * 5000 + "1", "²", "-1", "1.0"])
def test_what_is_no_number_of_a_choice_is_asked_again(typed: str, tmp_path: Path) -> None:
    """``int`` refuses more than 4300 digits."""
    sessions.whole(tmp_path / "s")
    text = steered("replay", tmp_path / "s", typed, "0")
    assert "is not one of the choices" in text
    assert typed[:10] in text
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize("typed", ["9" * 5000, "10001", "0"])
def test_a_number_of_rounds_has_bounds(typed: str, tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    assert "is not a number of rounds from 1 to 10000." in steered("open", SavedSession(tmp_path / "s"), "21", typed)


def test_bytes_that_are_no_text_are_a_wrong_answer(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    out = io.StringIO()
    lines_in = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n0\n"), encoding="utf-8", errors="strict")
    plain_mode.main("replay", tmp_path / "s", opener=ui.FakeOpener(), lines_in=lines_in, out=out)
    assert "is not one of the choices" in out.getvalue()


@pytest.mark.slow
def test_sigterm_ends_the_plain_mode_as_an_interruption(tmp_path: Path, windows: list[Window]) -> None:
    window = Window(command("--plain", "replay", "layernorm"), tmp_path, controlling=True)
    windows.append(window)
    window.sees(b"Type a number, then Enter:")
    window.process.send_signal(signal.SIGTERM)
    window.sees(b"espalier: interrupted")
    assert window.process.wait(30) == 130
    assert b"Traceback" not in window.shown


@pytest.mark.slow
@pytest.mark.parametrize(("closing", "name"), [("<&-", "input"), (">&-", "output")])
def test_the_plain_mode_needs_its_streams(closing: str, name: str) -> None:
    line = ["sh", "-c", f'"$@" {closing}', "sh", *command("--plain", "replay", "layernorm")]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"standard {name}, which is closed" in done.stderr


@pytest.mark.slow
def test_a_replay_is_walked_and_read_only(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    before = (tmp_path / "s" / "journal.jsonl").read_bytes()
    text = steered("replay", tmp_path / "s", "5", "2", "3", "k1", "4", "0")
    assert "Round 3." in text
    assert "incumbent" in text
    assert "Code:" in text
    assert "Approve" not in text
    assert (tmp_path / "s" / "journal.jsonl").read_bytes() == before


def test_a_followed_session_that_no_process_runs_says_how_to_resume_it(tmp_path: Path) -> None:
    sessions.whole(tmp_path / "s")
    file = tmp_path / "s" / "journal.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:20]))
    told = steered("follow", tmp_path / "s", "1", "0")
    assert f"No process runs this session: espalier open {tmp_path / 's'} resumes it." in told


def test_home_lists_sessions_and_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    sessions.whole(tmp_path / "sessions" / "mine")
    text = steered("home", None, "1", "0", "0")
    assert "1. Open session mine, ended" in text
    assert "New session on softmax" in text
    assert "Session mine." in text


def test_home_says_that_sessions_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "file"))
    assert "cannot be read (Not a directory): make it readable" in steered("home", None, "0")


def test_an_error_of_an_opening_is_the_commands_error(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="no compiler"):
        steered("new", ui.new(tmp_path / "s"), opener=ui.FakeOpener(trouble="no compiler"))


@pytest.mark.parametrize(
    "arguments", [("replay", "layernorm"), pytest.param(("--plain", "replay", "layernorm"), marks=pytest.mark.slow)]
)
def test_a_dumb_terminal_gets_the_plain_mode(tmp_path: Path, windows: list[Window], arguments: tuple[str, ...]) -> None:
    term = "xterm" if "--plain" in arguments else "dumb"
    window = Window(command(*arguments), tmp_path, controlling=True, changes={"TERM": term})
    windows.append(window)
    window.sees(b"Type a number, then Enter:")
    window.type(b"0\n")
    assert window.process.wait(30) == 0
    assert b"\x1b" not in window.shown
