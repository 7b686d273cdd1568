"""Steering commands on a session that another process holds: the same commands, answered by the holder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support import sessions
from support.fake_models import code_reply, ideas_reply
from support.held import held
from support.program import Call

from engine.domain import events as e
from engine.domain.settings import Limits, Settings
from engine.domain.state import CallStatus, IdeaStatus, Stage
from engine.ideas.factory import open_ideas
from engine.ideas.playbook import Playbook
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


@pytest.mark.slow
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
    assert any("agent:claude: command 'end session'" in text and "refused: agent:claude may not end" in text for text in shown)


@pytest.mark.slow
def test_a_prompt_is_answered_and_a_call_cancelled_while_another_process_waits_for_them(
    espalier: Call, folder: Path, tmp_path: Path
) -> None:
    """The holder waits for a reply to `paste`: the reply and the cancellation come through the inbox."""

    def opened_calls() -> list[str]:
        return [call.id for call in store.state_of(folder).calls.values() if call.status is CallStatus.OPEN]

    def waited_for(number: int) -> list[str]:
        while len(found := opened_calls()) < number:
            time.sleep(0.02)
        return found

    reply = tmp_path / "reply.md"
    root = sessions.draft("root", "time_us = 900")
    pasted = open_ideas(Settings(source="paste"), playbook=Playbook(None, lambda _: root))
    with held(folder, "autopilot", pasted, source="paste", branch=1, limits=Limits(rounds=1)):
        (first,) = waited_for(1)
        reply.write_text("no ideas today")
        assert "does not answer" in espalier("model", "answer", str(folder), first, str(reply)).err
        reply.write_text(ideas_reply("Tile rows", "Unroll twice"))
        answered = espalier("model", "answer", str(folder), first, str(reply))
        assert (answered.status, answered.err) == (0, "")
        again = espalier("model", "answer", str(folder), first, str(reply))
        assert "already been answered" in again.err
        one, two = waited_for(2)
        reply.write_text(code_reply(sessions.source("tiled", "time_us = 300")))
        assert espalier("model", "answer", str(folder), one, str(reply)).status == 0
        cancelled = espalier("model", "cancel", str(folder), two, "--reason", "too slow")
        assert (cancelled.status, cancelled.err) == (0, "")
        assert "unknown call 'c99'" in espalier("model", "cancel", str(folder), "c99").err
        while not any(
            kernel.stage is Stage.MEASURED and kernel.id != "k1" for kernel in store.state_of(folder).kernels.values()
        ):
            time.sleep(0.02)
    state = store.state_of(folder)
    assert (state.calls[one].status, state.calls[two].status) == (CallStatus.ANSWERED, CallStatus.FAILED)
    answers = [entry.event for entry in read(folder).entries if isinstance(entry.event, e.CommandAnswered)]
    assert [(one.command, one.accepted) for one in answers] == [
        ("AnswerCall", True), ("AnswerCall", False), ("AnswerCall", True), ("CancelCall", True), ("CancelCall", False),
    ]  # fmt: skip
