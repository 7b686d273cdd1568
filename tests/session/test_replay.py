"""A replay shows the states of the live session, at every entry and after every seek."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders, sessions
from support.random_walk import RandomWalk
from support.sessions import opened, ports, whole

from benchmarks import deciding
from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.model import ENGINEER
from engine.domain.state import SessionState
from engine.journal.journal import read
from engine.session.live import LiveSession
from engine.session.outcome import Until
from engine.session.replay import LONGEST_GAP, Landmark, ReplaySource
from engine.session.source import Batch, Capability


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[e.Entry, ...]:
    folder = tmp_path_factory.mktemp("recorded")
    whole(folder)
    return read(folder).entries


def test_replay_equals_the_live_state_after_every_batch(tmp_path: Path) -> None:
    async def search() -> list[SessionState]:
        states: list[SessionState] = []
        live = LiveSession.create(tmp_path, opened("ask"), ports(tmp_path))
        watching = asyncio.create_task(_watch(live, states))
        for _ in range(3):
            await live.run(Until.IDLE)
            await live.submit(c.SelectIdeas())
        await live.run()
        await live.close()
        await watching
        return states

    states = sessions.run(search)
    replay = ReplaySource(read(tmp_path).entries)
    assert len(states) > 20
    for state in states:
        replay.seek(state.seq + 1)
        assert builders.contents(replay.state) == builders.contents(state)


async def _watch(live: LiveSession, states: list[SessionState]) -> None:
    states.extend([batch.state async for batch in live.batches()])


@pytest.mark.slow
def test_seeking_equals_folding_a_prefix(recording: tuple[e.Entry, ...]) -> None:
    @given(st.lists(st.integers(-5, len(recording) + 5), min_size=1, max_size=6))
    def check(places: list[int]) -> None:
        replay = ReplaySource(recording)
        for place in places:
            replay.seek(place)
        expected = builders.advance(SessionState(), recording[: replay.position])
        assert builders.contents(replay.state) == builders.contents(expected)
        assert replay.position == min(max(places[-1], 0), len(recording))

    check()


def test_long_recordings_are_folded_from_checkpoints(recording: tuple[e.Entry, ...]) -> None:
    notes = [e.NoteAdded("", f"note {n}") for n in range(1000)]
    entries = (*recording, *builders.entries(notes, start=len(recording), at=recording[-1].at))
    replay = ReplaySource(entries)
    for place in (1050, 260, 900, 256, 0, 1057):
        replay.seek(place)
        expected = builders.advance(SessionState(), entries[:place])
        assert builders.contents(replay.state) == builders.contents(expected)


def _played(entries: tuple[e.Entry, ...], **settings: Any) -> tuple[list[Batch], list[float]]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    async def act() -> list[Batch]:
        replay = ReplaySource(entries, sleep)
        for name, value in settings.items():
            setattr(replay, name, value)
        found: list[Batch] = []
        replay.play()
        async for batch in replay.batches():
            found.append(batch)
            if replay.position == replay.length:
                await replay.close()
        return found

    return sessions.run(act), slept


def test_playing_shows_every_entry_once_at_the_recorded_pace(recording: tuple[e.Entry, ...]) -> None:
    batches, slept = _played(recording)
    assert tuple(entry for batch in batches for entry in batch.entries) == recording
    for batch in batches:
        assert len({entry.at for entry in batch.entries}) == 1
        assert batch.state.seq == batch.entries[-1].seq
    assert sum(slept) == pytest.approx(recording[-1].at - recording[0].at, abs=1e-3)


def test_speed_divides_the_time_and_long_gaps_are_limited(recording: tuple[e.Entry, ...]) -> None:
    late = e.Entry(len(recording), recording[-1].at + 36_000, ENGINEER, e.NoteAdded("", "next morning"))
    _, slept = _played((*recording, late), speed=4.0)
    assert slept[-1] == LONGEST_GAP / 4
    assert sum(slept[:-1]) == pytest.approx((recording[-1].at - recording[0].at) / 4, abs=1e-3)


def test_pausing_holds_the_state_and_seeking_during_play_continues_from_there(recording: tuple[e.Entry, ...]) -> None:
    async def act() -> None:
        replay = ReplaySource(recording, lambda seconds: asyncio.sleep(0))
        replay.play()
        while replay.position < 5:
            await asyncio.sleep(0)
        replay.pause()
        held = replay.position
        await asyncio.sleep(0.01)
        assert replay.position == held
        assert not replay.playing
        replay.play()
        replay.seek(len(recording) - 2)
        while replay.playing:
            await asyncio.sleep(0)
        assert replay.position == replay.length
        replay.play()
        assert replay.position == 0
        await replay.close()
        assert not replay.playing

    sessions.run(act)


def test_an_entry_awaited_before_a_seek_is_not_shown_after_it(recording: tuple[e.Entry, ...]) -> None:
    async def act() -> None:
        awaited = asyncio.Event()

        async def sleep(seconds: float) -> None:
            await awaited.wait()

        replay = ReplaySource(recording, sleep)
        replay.play()
        await asyncio.sleep(0)
        player = next(task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "_play" in repr(task))
        replay.seek(replay.length)
        awaited.set()
        await player
        assert replay.position == replay.length
        await replay.close()

    sessions.run(act)


def test_a_seek_arrives_as_a_batch_without_entries(recording: tuple[e.Entry, ...]) -> None:
    async def act() -> tuple[Batch, int]:
        replay = ReplaySource(recording)
        replay.seek(10)
        stream = replay.batches()
        first = await anext(stream)
        replay.seek(3)
        second = await anext(stream)
        await replay.close()
        assert [batch async for batch in stream] == []
        assert second.entries == ()
        return first, second.state.seq

    first, seq = sessions.run(act)
    assert (first.entries, first.state.seq, seq) == ((), 9, 2)


def test_jumping_to_rounds_and_improvements(recording: tuple[e.Entry, ...]) -> None:
    replay = ReplaySource(recording)
    rounds: list[int] = []
    while replay.jump(Landmark.ROUND):
        rounds.append(queries.last_round(replay.state))
    assert rounds == [0, 1, 2, 3]
    assert replay.jump(Landmark.ROUND, back=True)
    assert queries.last_round(replay.state) == 2

    replay.seek(0)
    leaders: list[str] = []
    while replay.jump(Landmark.IMPROVEMENT):
        best = queries.incumbent(replay.state)
        leaders.append(best.id if best else "")
    assert leaders[0] == "k1"
    assert leaders[-1] == "k10"
    assert all(a != b for a, b in pairwise(leaders))


def improvements(entries: Sequence[e.Entry]) -> tuple[int, ...]:
    """The positions after which another kernel leads, entry by entry."""
    expected: list[int] = []
    state, last = SessionState(), ""
    for number, entry in enumerate(entries, 1):
        state = advance(state, (entry,))
        best = queries.incumbent(state)
        if best is not None and best.id != last:
            last = best.id
            expected.append(number)
    return tuple(expected)


def without_races(entries: Sequence[e.Entry]) -> list[e.Entry]:
    """As a journal from before races existed: the best-ranked kernel leads."""
    return [entry for entry in entries if not isinstance(entry.event, e.IncumbentChanged)]


@pytest.mark.parametrize("name", ["attention_fp16", "softmax"])
def test_improvements_are_those_of_the_fold_entry_by_entry(name: str) -> None:
    entries = read(Path(__file__).parents[2] / "sessions" / name).entries
    for found in (entries, without_races(entries)):
        assert ReplaySource(found).landmarks(Landmark.IMPROVEMENT) == improvements(found)


@pytest.mark.parametrize("seed", range(12))
def test_improvements_of_any_session_are_those_of_the_fold_entry_by_entry(seed: int) -> None:
    walk = RandomWalk(seed)
    walk.to_its_end()
    for found in (walk.log, without_races(walk.log)):
        assert ReplaySource(found).landmarks(Landmark.IMPROVEMENT) == improvements(found)


@pytest.mark.slow
def test_improvements_are_found_without_folding_every_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the journal names no incumbents, each verdict was folded alone: half a minute for 3,000 kernels."""
    folded: list[int] = []

    def counted(state: SessionState, entries: Sequence[e.Entry]) -> SessionState:
        folded.append(len(entries))
        return advance(state, entries)

    monkeypatch.setattr("engine.session.replay.advance", counted)
    entries = without_races(deciding.entries(400))
    assert ReplaySource(entries).landmarks(Landmark.IMPROVEMENT) == improvements(entries)
    assert len(folded) < 60


def test_jumping_to_decisions_of_the_engineer(tmp_path: Path) -> None:
    async def search() -> None:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            await live.run(Until.IDLE)
            await live.submit(c.RejectIdea("i2", "no"))
            await live.submit(c.SelectIdeas())
            await live.run(Until.IDLE)

    sessions.run(search)
    replay = ReplaySource(read(tmp_path).entries)
    assert replay.jump(Landmark.DECISION)
    assert replay.state.ideas["i2"].reason == "no"
    assert replay.jump(Landmark.DECISION)
    assert not queries.pending_ideas(replay.state)
    assert not replay.jump(Landmark.DECISION)


def test_a_replay_rejects_commands(recording: tuple[e.Entry, ...]) -> None:
    async def act() -> None:
        replay = ReplaySource(recording)
        assert replay.capabilities == {Capability.SEEK}
        with pytest.raises(CommandRejected, match="replay"):
            await replay.submit(c.AddNote("", "x"))
        assert [word async for word in replay.progress()] == []

    sessions.run(act)
