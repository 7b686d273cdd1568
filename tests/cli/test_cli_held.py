"""Steering commands on a session that another process holds: the same commands, answered by the holder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support import sessions
from support.held import held
from support.program import Call

from engine.domain import events as e
from engine.domain.state import IdeaStatus, Stage
from engine.journal import store
from engine.journal.journal import read
from tui.viewmodel import event_log

STEERING: tuple[tuple[str, ...], ...] = (
    ("session", "mode", "S", "ask"),
    ("session", "pause", "S", "--before-round", "9"),
    ("session", "pause", "S", "--reason", "look first"),
    ("session", "instruct", "S", "be brief"),
    ("session", "limits", "S", "--rounds", "7"),
    ("session", "note", "S", "on the session"),
    ("idea", "add", "S", "Mine", "--why", "because", "--parent", "k1"),
    ("idea", "edit", "S", "i2", "--title", "Better"),
    ("idea", "attach", "S", "i2", "k1"),
    ("idea", "order", "S", "i3"),
    ("idea", "park", "S", "i3"),
    ("idea", "approve", "S", "i2"),
    ("idea", "reject", "S", "i3", "no"),
    ("kernel", "pin", "S", "k1"),
    ("kernel", "unpin", "S", "k1"),
    ("kernel", "note", "S", "k1", "fast"),
    ("kernel", "prune", "S", "k1"),
    ("kernel", "reopen", "S", "k1"),
    ("kernel", "remeasure", "S", "k1"),
    ("kernel", "seed", "S", "FILE", "--parent", "k1"),
    ("session", "resume", "S"),
)
"""In an order in which the rules accept each."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "s"


def test_every_command_is_answered_by_the_holder(espalier: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.cpp").write_text(sessions.source("mine", "time_us = 70"))
    with held(folder):
        while not {"i2", "i3"} <= set(store.state_of(folder).ideas):
            time.sleep(0.02)
        for words in STEERING:
            given = [str(folder) if word == "S" else str(tmp_path / "mine.cpp") if word == "FILE" else word for word in words]
            done = espalier(*given)
            assert (done.status, done.err) == (0, ""), (words, done)
            assert done.out.strip() not in ("", "nothing changed"), words
            assert "next:" not in done.out, "the holder runs it"
        refused = espalier("kernel", "pin", str(folder), "k99")
        assert (refused.status, refused.err) == (2, "espalier: unknown kernel 'k99' in this session\n")
        as_json = espalier("session", "note", str(folder), "said", "--json").json()
        assert [event["kind"] for event in as_json["events"]] == ["note.added"]
    answers = [entry.event for entry in read(folder).entries if isinstance(entry.event, e.CommandAnswered)]
    assert [answer.accepted for answer in answers] == [*[True] * len(STEERING), False, True]
    state = store.state_of(folder)
    assert (state.ideas["i2"].status, state.ideas["i3"].status) == (IdeaStatus.SELECTED, IdeaStatus.REJECTED)
    assert any(kernel.seed and kernel.stage is not Stage.FAILED for kernel in state.kernels.values())


def test_commands_of_an_agent_are_its_own(espalier: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(folder):
        monkeypatch.setenv("ESPALIER_AGENT", "claude")
        assert "agent:claude: " in espalier("idea", "add", str(folder), "Tiles", "--parent", "k1").out
        refused = espalier("session", "end", str(folder))
        assert (refused.status, refused.err) == (
            2,
            "espalier: agent:claude may not end the session: the engineer decides that\n",
        )
        monkeypatch.setenv("ESPALIER_AGENT", "../x")
        assert "invalid agent name" in espalier("session", "note", str(folder), "x").err
    _, lines = event_log.append(event_log.EMPTY, read(folder).entries)
    shown = ["".join(cell.text for cell in one.cells) for one in lines]
    assert any("agent:claude: " in text and "Tiles" in text for text in shown)
    assert any("agent:claude: EndSession" in text and "refused: agent:claude may not end" in text for text in shown)
