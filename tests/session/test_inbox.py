"""Commands that another process leaves for the one that holds the session: answered once, in order, by the same rules."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.sessions import opened, ports

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import rules
from engine.domain.errors import CommandRejected, JournalLocked, JournalUnwritable
from engine.domain.model import CATEGORIES, ENGINEER, Author, Contract, Dialect, IdeaText
from engine.domain.state import Stage
from engine.journal import inbox, store
from engine.journal.journal import Journal, read
from engine.session.inbox import InboxReader, agent
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, Until
from engine.session.steer import steer
from engine.session.writer import SessionWriter

AGENT = Author("agent:claude")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SessionWriter.create(tmp_path, opened("ask")).close()
    return tmp_path


def answers(folder: Path) -> list[tuple[str, bool, str]]:
    return [
        (entry.by.name, entry.event.accepted, entry.event.reason)
        for entry in read(folder).entries
        if isinstance(entry.event, e.CommandAnswered)
    ]


def notes(folder: Path) -> list[str]:
    return [note.text for note in store.state_of(folder).notes]


def hold(folder: Path, act: Callable[[], Any]) -> Any:
    """Run ``act`` in a thread while this process holds the session and answers its inbox."""

    async def search() -> Any:
        async with LiveSession.resume(folder, ports(folder)) as live:
            running = asyncio.create_task(live.run())
            result = await asyncio.to_thread(act)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return result

    return sessions.run(search)


def test_a_held_session_is_steered_with_its_asker_recorded(folder: Path) -> None:
    def act() -> None:
        done = steer(folder, lambda _: [c.AddNote("", "one"), c.Instruct("be brief")])
        assert [type(entry.event) for entry in done.entries] == [e.NoteAdded, e.InstructionsChanged]
        assert (done.before.instructions, done.after.instructions) == ("", "be brief")
        steer(folder, lambda _: [c.AddNote("", "two")], AGENT)

    hold(folder, act)
    assert [(note.by, note.text) for note in store.state_of(folder).notes] == [(ENGINEER, "one"), (AGENT, "two")]
    assert answers(folder) == [("engineer", True, "")] * 2 + [("agent:claude", True, "")]
    assert list((folder / "inbox").iterdir()) == []


def test_a_refused_command_names_its_reason_and_stops_those_after_it(folder: Path) -> None:
    def act() -> None:
        with pytest.raises(CommandRejected, match="unknown kernel 'k9'"):
            steer(folder, lambda _: [c.AddNote("", "kept"), c.PinKernel("k9"), c.AddNote("", "never")])
        with pytest.raises(CommandRejected, match="agent:claude may not end the session"):
            steer(folder, lambda _: [c.EndSession("mine now")], AGENT)

    hold(folder, act)
    assert notes(folder) == ["kept"]
    assert store.state_of(folder).closed is None


def test_a_kernel_travels_with_its_code_and_is_measured(folder: Path) -> None:
    code = sessions.source("mine", "time_us = 100").encode()

    def act() -> None:
        steer(folder, lambda view: [c.SeedKernel("mine.cpp", Dialect.CPP, Contract.HOST, view.store_blob(code))])

    async def search() -> None:
        async with LiveSession.resume(folder, ports(folder)) as live:
            await live.run(Until.IDLE)
            running = asyncio.create_task(live.run())
            await asyncio.to_thread(act)
            for _ in range(200):
                if any(k.seed and k.stage is Stage.MEASURED for k in live.state.kernels.values()):
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("not measured")
            running.cancel()

    sessions.run(search)


def test_a_headless_run_that_awaits_the_engineer_takes_a_waiting_approval_before_it_stops(folder: Path) -> None:
    async def search() -> object:
        async with LiveSession.resume(folder, ports(folder)) as live:
            outcome = await live.run(Until.IDLE)
            assert isinstance(outcome, AwaitingEngineer)
            inbox.put(folder, c.SelectIdeas(outcome.ideas[:1]), ENGINEER, {})
            return outcome.ideas, await live.run(Until.IDLE)

    first, second = sessions.run(search)
    assert second == AwaitingEngineer(first[1:])


def test_what_a_dead_holder_left_is_answered_first_by_the_next_one(folder: Path) -> None:
    inbox.put(folder, c.AddNote("", "left"), ENGINEER, {})
    claimed = inbox.put(folder, c.AddNote("", "claimed"), ENGINEER, {})
    os.rename(folder / "inbox" / f"{claimed}.json", folder / "inbox" / f"{claimed}.taken")
    steer(folder, lambda _: [c.AddNote("", "mine")])
    assert notes(folder) == ["left", "claimed", "mine"]


def test_a_command_that_was_answered_before_its_holder_died_is_not_repeated(folder: Path) -> None:
    request = inbox.put(folder, c.AddNote("", "once"), ENGINEER, {})
    copy = (folder / "inbox" / f"{request}.json").read_bytes()
    with SessionWriter.open(folder) as writer:
        assert InboxReader(writer).take() == 1
    (folder / "inbox" / f"{request}.taken").write_bytes(copy)
    with SessionWriter.open(folder) as writer:
        InboxReader(writer).take()
    assert notes(folder) == ["once"]
    assert inbox.waiting(folder) == []


def test_a_holder_that_does_not_answer_is_named_and_the_command_is_withdrawn(folder: Path) -> None:
    with SessionWriter.open(folder):
        with pytest.raises(
            JournalLocked, match=rf"open in process {os.getpid()}.* did not take the command.*nothing was changed"
        ):
            steer(folder, lambda _: [c.AddNote("", "late")], patience=0.2)
        assert inbox.waiting(folder) == []
    assert notes(folder) == []


@pytest.mark.slow
def test_a_holder_that_ends_meanwhile_leaves_the_command_to_the_asker(folder: Path) -> None:
    writer = SessionWriter.open(folder)
    threading.Timer(0.2, writer.close).start()
    steer(folder, lambda _: [c.AddNote("", "mine")])
    assert notes(folder) == ["mine"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"v":1,"by":"engineer","comm', "is incomplete or not JSON"),
        (b"\xff\x00", "is incomplete or not JSON"),
        (b"[" * 100_000, "is incomplete or not JSON"),
        (b"[1]", "is not an object"),
        (b'{"v":2,"by":"engineer","command":"PinKernel","data":{"kernel":"k1"}}', "newer format: use the same version"),
        (b'{"v":1,"by":"engineer","command":"Teleport","data":{}}', "'Teleport', which is unknown here: use the same version"),
        (b'{"v":1,"by":"engineer","command":"AddNote","data":{"target":"","text":"x","if":"y"}}', "unknown fields ('if')"),
        (b'{"v":1,"by":"engineer","command":"AddNote","data":{"target":7}}', "is not a valid AddNote"),
        (b'{"v":1,"by":"engine","command":"AddNote","data":{"target":"","text":"x"}}', "unknown author 'engine'"),
        (b'{"v":1,"by":"agent:../x","command":"AddNote","data":{"target":"","text":"x"}}', "unknown author"),
        (b'{"v":1,"by":"engineer","command":"SeedKernel","data":{"name":"a","dialect":"cpp","contract":"host","source":"'
         + b"0" * 64 + b'"}}', "a text that was not sent"),
        (b'{"v":1,"by":"engineer","command":"SeedKernel","data":{"name":"a","dialect":"cpp","contract":"host","source":"../x"}}',
         "invalid blob name"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_followed_is_refused_with_its_reason(folder: Path, text: bytes, reason: str) -> None:
    (folder / "inbox").mkdir()
    (folder / "inbox" / "01790000000000000000-77-0badcafe.json").write_bytes(text)
    before = store.state_of(folder)
    steer(folder, lambda _: [c.AddNote("", "mine")])
    ((_, accepted, given),) = answers(folder)
    assert not accepted
    assert reason in given
    assert notes(folder) == ["mine"]
    assert store.state_of(folder).ideas == before.ideas
    assert inbox.waiting(folder) == []


def test_links_pipes_folders_and_foreign_names_in_the_inbox_are_never_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("other") / "secret"
    secret.write_text('{"v":1,"by":"engineer","command":"AddNote","data":{"target":"","text":"stolen"}}')
    place = folder / "inbox"
    place.mkdir()
    (place / "01790000000000000000-77-0badcafe.json").symlink_to(secret)
    os.mkfifo(place / "01790000000000000001-77-0badcafe.json")
    (place / "01790000000000000002-77-0badcafe.json").mkdir()
    (place / "notes.json").write_text("{}")
    steer(folder, lambda _: [c.AddNote("", "mine")])
    assert notes(folder) == ["mine"]
    assert [accepted for _, accepted, _ in answers(folder)] == [False, False, False]
    assert inbox.waiting(folder) == []
    assert secret.is_file()


def test_a_full_disk_is_told_to_the_asker_and_nothing_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with SessionWriter.open(folder), monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(JournalUnwritable, match="No space left on device: nothing was changed"):
            steer(folder, lambda _: [c.AddNote("", "mine")])
        assert list((folder / "inbox").iterdir()) == []
        patch.undo()


def test_a_full_disk_of_the_holder_delays_the_answer_and_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox.put(folder, c.AddNote("", "patient"), ENGINEER, {})
    with SessionWriter.open(folder) as writer:
        reader = InboxReader(writer)
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise JournalUnwritable("no space")

            patch.setattr(Journal, "append", full)
            with pytest.raises(JournalUnwritable):
                reader.take()
        assert len(inbox.waiting(folder)) == 1
        assert reader.take() == 1
    assert notes(folder) == ["patient"]


def test_an_inbox_that_another_user_made_costs_the_holder_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = inbox.put(folder, c.AddNote("", "stuck"), AGENT, {})

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch, SessionWriter.open(folder) as writer:
        patch.setattr(os, "rename", denied)
        with pytest.raises(
            JournalUnwritable, match=r"cannot be read \(Permission denied\): make the folder writable for yourself"
        ):
            inbox.claim(folder, request)
        assert InboxReader(writer).take() == 0
    assert inbox.waiting(folder) == [request]


def test_a_command_that_breaks_the_engine_is_refused_and_the_next_one_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule with a bug must not end the inbox: commands of others would wait for nobody."""
    decide = rules.decide

    def broken(state: Any, command: Any, by: Author) -> Any:
        if isinstance(command, c.Instruct):
            raise KeyError("k1")
        return decide(state, command, by)

    monkeypatch.setattr(rules, "decide", broken)

    def act() -> None:
        with pytest.raises(CommandRejected, match="internal error: KeyError"):
            steer(folder, lambda _: [c.Instruct("now")])
        steer(folder, lambda _: [c.AddNote("", "mine")], AGENT)

    hold(folder, act)
    assert notes(folder) == ["mine"]


def test_a_flood_is_refused_at_the_door(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_WAITING", 5)
    for number in range(5):
        inbox.put(folder, c.AddNote("", str(number)), AGENT, {})
    with pytest.raises(CommandRejected, match=r"5 commands wait in .*try again"):
        inbox.put(folder, c.AddNote("", "one more"), AGENT, {})
    steer(folder, lambda _: [c.AddNote("", "mine")])
    assert notes(folder) == ["0", "1", "2", "3", "4", "mine"]


def test_numbers_that_are_not_finite_are_not_sent(folder: Path) -> None:
    with pytest.raises(CommandRejected, match="not finite"):
        inbox.put(folder, c.WriteIdea(IdeaText("t", CATEGORIES[0], "r", float("inf"))), ENGINEER, {})


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 41, "-x", "é"])
def test_agent_names_are_plain(name: str) -> None:
    with pytest.raises(CommandRejected, match="invalid agent name"):
        agent(name)


def test_the_format_of_a_request_is_stable(folder: Path) -> None:
    """Another program may write one."""
    request = inbox.put(folder, c.PinKernel("k1"), AGENT, {})
    written = json.loads((folder / "inbox" / f"{request}.json").read_text())
    assert written == {
        "v": 1, "by": "agent:claude", "process": os.getpid(), "command": "PinKernel", "data": {"kernel": "k1"}, "payloads": {},
    }  # fmt: skip
