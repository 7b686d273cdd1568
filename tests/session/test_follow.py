"""Following a session that another process writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support import builders, sessions
from support.sessions import opened, ports

from engine.domain import commands as c
from engine.domain.errors import CommandRejected, JournalError
from engine.domain.events import Entry
from engine.domain.state import SessionState
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session.fake_bench import FakeBench
from engine.session.follow import FollowSource
from engine.session.live import LiveSession
from engine.session.outcome import Until


async def _follow(source: FollowSource, until_seq: asyncio.Future[int]) -> list[Entry]:
    found: list[Entry] = []
    async for batch in source.batches():
        found.extend(batch.entries)
        assert batch.state.seq == found[-1].seq
        if until_seq.done() and found[-1].seq == until_seq.result():
            await source.close()
    return found


@pytest.mark.slow
def test_a_follower_sees_the_events_of_the_live_session(tmp_path: Path) -> None:
    async def act() -> tuple[list[Entry], SessionState, SessionState]:
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        bench = FakeBench(Blobs(tmp_path).put, pause=0.001)
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=bench)) as live:
            source = FollowSource(tmp_path, lambda seconds: asyncio.sleep(0))
            following = asyncio.create_task(_follow(source, end))
            await live.run()
            end.set_result(live.state.seq)
            return await following, source.state, live.state

    entries, followed, live = sessions.run(act)
    assert tuple(entries) == read(tmp_path).entries
    assert builders.contents(followed) == builders.contents(live)


def test_a_half_written_line_is_waited_for(tmp_path: Path) -> None:
    async def act() -> None:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            await live.run(Until.IDLE)
        journal = tmp_path / "journal.jsonl"
        data = journal.read_bytes()
        journal.write_bytes(data[:-20])
        source = FollowSource(tmp_path)
        half = source.state.seq
        journal.write_bytes(data)
        stream = source.batches()
        batch = await anext(stream)
        assert batch.state.seq == half + 1
        await source.close()

    sessions.run(act)


def test_a_follower_writes_nothing_and_takes_no_commands(tmp_path: Path) -> None:
    async def act() -> None:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            before = (tmp_path / "journal.jsonl").read_bytes()
            source = FollowSource(tmp_path)
            assert source.capabilities == frozenset()
            with pytest.raises(CommandRejected, match="another process"):
                await source.submit(c.AddNote("", "x"))
            await live.submit(c.AddNote("", "mine"))
            assert (tmp_path / "journal.jsonl").read_bytes().startswith(before)

    sessions.run(act)


def test_a_folder_without_a_session_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is not a session"):
        FollowSource(tmp_path)
