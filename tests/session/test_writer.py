"""The writer alone: it decides, records, folds and notifies without a bench."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import sessions

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain.errors import CommandRejected, JournalLocked
from engine.domain.model import ENGINE, ENGINEER
from engine.journal import store
from engine.session.steer import steer
from engine.session.writer import SessionWriter


def test_a_command_is_recorded_folded_and_published(tmp_path: Path) -> None:
    heard: list[e.Entry] = []
    with SessionWriter.create(tmp_path, sessions.opened("ask")) as writer:

        def listen(entries: Sequence[e.Entry]) -> None:
            assert writer.state.seq == entries[-1].seq, "the state includes them already"
            heard.extend(entries)

        writer.subscribe(listen)
        writer.submit(c.AddNote("", "mine"), ENGINEER)
        writer.append((e.WorkStarted("prepare"),), ENGINE)
        writer.append((), ENGINE)
    assert [(entry.by, type(entry.event)) for entry in heard] == [(ENGINEER, e.NoteAdded), (ENGINE, e.WorkStarted)]
    assert store.state_of(tmp_path).notes == writer.state.notes


def test_a_session_has_one_writer(tmp_path: Path) -> None:
    with SessionWriter.create(tmp_path, sessions.opened()), pytest.raises(JournalLocked):
        SessionWriter.open(tmp_path)
    SessionWriter.open(tmp_path).close()


def test_batches_and_waits_follow_appended_entries(tmp_path: Path) -> None:
    async def follow() -> list[int]:
        writer = SessionWriter.create(tmp_path, sessions.opened())
        waiting = asyncio.create_task(writer.wait_until(lambda state: bool(state.notes)))
        await asyncio.sleep(0)
        assert not waiting.done()
        writer.submit(c.AddNote("", "mine"), ENGINEER)
        await asyncio.wait_for(waiting, 1)
        writer.close()
        return [entry.seq async for batch in writer.batches() for entry in batch.entries]

    assert sessions.run(follow) == [0, 1]


def test_steering_keeps_what_came_before_a_rejected_command(tmp_path: Path) -> None:
    SessionWriter.create(tmp_path, sessions.opened()).close()
    commands = (c.AddNote("", "first"), c.PinKernel("k9"), c.AddNote("", "never"))
    with pytest.raises(CommandRejected, match="unknown kernel 'k9'"):
        steer(tmp_path, lambda _: commands)
    assert [note.text for note in store.state_of(tmp_path).notes] == ["first"]
    done = steer(tmp_path, lambda writer: [c.Instruct(str(len(writer.state.notes)))])
    assert (done.before.instructions, done.after.instructions) == ("", "1")
    assert [entry.event for entry in done.entries] == [e.InstructionsChanged("1")]
