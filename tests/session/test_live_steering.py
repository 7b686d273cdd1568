"""Commands to a running session, and the policy that approves ideas automatically."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import sessions
from support.sessions import Ticking, opened, ports, tree, whole

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.model import CATEGORIES, ENGINE, Contract, Dialect, IdeaText
from engine.domain.settings import Limits
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, SessionEnded, Until

Steering = Callable[[LiveSession], Awaitable[None]]


def steer(folder: Path, act: Steering, mode: str = "ask", bench: FakeBench | None = None) -> SessionState:
    """Run a session until it waits, then run ``act``."""

    async def search() -> SessionState:
        async with LiveSession.create(folder, opened(mode), ports(folder, bench=bench)) as live:
            await live.run(Until.IDLE)
            await act(live)
            return live.state

    state: SessionState = sessions.run(search)
    return state


@pytest.mark.slow
def test_approving_every_round_by_hand_grows_the_tree_of_autopilot(tmp_path: Path) -> None:
    async def approve(live: LiveSession) -> None:
        while live.state.closed is None:
            await live.submit(c.SelectIdeas())
            await live.run(Until.IDLE)

    assert tree(steer(tmp_path / "ask", approve)) == tree(whole(tmp_path / "autopilot"))


def test_a_rejected_idea_costs_nothing(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        await live.submit(c.RejectIdea("i3", "seen before"))
        assert await live.run(Until.IDLE) == AwaitingEngineer(("i2",))
        await live.submit(c.SelectIdeas(("i2",)))
        await live.run(Until.IDLE)

    state = steer(tmp_path, act)
    assert state.ideas["i3"].status is IdeaStatus.REJECTED
    assert {k.idea for k in state.kernels.values()} == {"i1", "i2"}
    assert state.rounds[1].closed


def test_an_edited_idea_is_implemented_as_edited(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        await live.submit(c.EditIdea("i2", title="Only one of them", branch=1))
        await live.submit(c.SelectIdeas())
        await live.run(Until.IDLE)

    state = steer(tmp_path, act)
    assert state.ideas["i2"].edited
    assert len(state.ideas["i2"].kernels) == 1
    assert len(state.ideas["i3"].kernels) == 2


def test_a_seed_joins_the_round_and_is_measured(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        blob = live.store_blob(sessions.source("mine", "time_us = 100").encode())
        await live.submit(c.SeedKernel("mine.cpp", Dialect.CPP, Contract.HOST, blob, parent="k1"))
        await live.submit(c.SelectIdeas())
        await live.run(Until.IDLE)

    state = steer(tmp_path, act)
    assert state.kernels["k2"].seed
    assert state.kernels["k2"].stage is Stage.MEASURED
    assert state.rounds[2].parents[0] == "k2"


def test_an_idea_in_words_can_be_implemented_by_hand(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        await live.submit(c.WriteIdea(IdeaText("My own", CATEGORIES[0], "I know better."), parent="k1"))
        await live.submit(c.RejectIdea("i2", "no"))
        await live.submit(c.RejectIdea("i3", "no"))
        blob = live.store_blob(sessions.source("own", "time_us = 400").encode())
        await live.submit(c.SeedKernel("own.cpp", Dialect.CPP, Contract.HOST, blob, idea="i4"))
        await live.run(Until.IDLE)

    state = steer(tmp_path, act)
    assert state.ideas["i4"].kernels == ("k2",)
    assert state.kernels["k2"].stage is Stage.MEASURED


def test_rejected_commands_leave_no_trace(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        before = live.state.seq
        with pytest.raises(CommandRejected, match="unknown kernel 'k99'"):
            await live.submit(c.PinKernel("k99"))
        assert live.state.seq == before

    steer(tmp_path, act)


class Gated(FakeBench):
    """Builds return only once released; records the cancelled ones."""

    def __init__(self, *args: object, **others: object) -> None:
        super().__init__(*args, **others)
        self.gate = asyncio.Event()
        self.waiting: list[str] = []
        self.cancelled: list[str] = []

    async def build(self, kernel: object, *args: object) -> object:
        try:
            if kernel.parent is not None:
                self.waiting.append(kernel.id)
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(kernel.id)
            raise
        return await super().build(kernel, *args)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def _running(live: LiveSession, condition: Callable[[], bool]) -> asyncio.Task[object]:
    """Run the session in the background until the condition holds."""
    task: asyncio.Task[object] = asyncio.create_task(live.run(Until.IDLE))
    await _until(condition)
    return task


@pytest.mark.parametrize("command", [c.PruneBranch("k2", "no use"), c.CancelKernel("k2")])
def test_work_on_a_cancelled_kernel_stops_immediately(tmp_path: Path, command: c.Command) -> None:
    bench = Gated(Blobs(tmp_path).put)

    async def act(live: LiveSession) -> None:
        await live.submit(c.SelectIdeas(("i2",)))
        task = await _running(live, lambda: "k2" in bench.waiting)
        await live.submit(command)
        assert w.Build("k2", 0).key not in live.in_hand
        await _until(lambda: "k2" in bench.cancelled)
        bench.gate.set()
        await task

    state = steer(tmp_path, act, bench=bench)
    assert state.kernels["k2"].stage is Stage.CANCELLED
    assert state.kernels["k3"].stage is Stage.MEASURED
    assert not state.started


def test_a_cancelled_kernel_can_be_remeasured_while_its_work_ends(tmp_path: Path) -> None:
    bench = Gated(Blobs(tmp_path).put)

    async def act(live: LiveSession) -> None:
        await live.submit(c.SelectIdeas(("i2",)))
        task = await _running(live, lambda: "k2" in bench.waiting)
        await live.submit(c.CancelKernel("k2"))
        await live.submit(c.Remeasure("k2"))
        bench.gate.set()
        await task

    state = steer(tmp_path, act, bench=bench)
    assert bench.cancelled == ["k2"]
    assert state.kernels["k2"].stage is Stage.MEASURED


def test_ending_a_session_stops_running_work(tmp_path: Path) -> None:
    bench = Gated(Blobs(tmp_path).put)

    async def act(live: LiveSession) -> None:
        await live.submit(c.SelectIdeas())
        task = await _running(live, lambda: "k2" in bench.waiting)
        await live.submit(c.EndSession("enough"))
        assert await task == SessionEnded("enough")

    state = steer(tmp_path, act, bench=bench)
    assert {k.stage for k in state.kernels.values()} == {Stage.MEASURED, Stage.CANCELLED}


def test_a_closed_session_continues_under_larger_limits(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        assert live.state.closed == "3 of 3 rounds done"
        await live.submit(c.SetLimits(Limits(rounds=4, plateau=None)))
        assert live.state.closed is None
        await live.run(Until.IDLE)

    assert 4 in steer(tmp_path, act, mode="autopilot").rounds


def test_a_waiting_run_handles_the_next_command(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        task = asyncio.create_task(live.run(Until.CLOSED))
        await asyncio.sleep(0.01)
        assert not task.done()
        await live.submit(c.SetMode("autopilot"))
        assert await task == SessionEnded("3 of 3 rounds done")

    steer(tmp_path, act)


def test_the_policy_approves_after_the_given_time(tmp_path: Path) -> None:
    clock = Ticking()

    async def search() -> SessionState:
        given = ports(tmp_path, clock=clock, sleep=clock.sleep)
        async with LiveSession.create(tmp_path, opened("ask:45"), given) as live:
            assert await live.run(Until.CLOSED) == SessionEnded("3 of 3 rounds done")
            return live.state

    sessions.run(search)
    assert len(clock.slept) == 3
    assert all(44 < seconds <= 45 for seconds in clock.slept)
    selected = [entry.by for entry in read(tmp_path).entries if isinstance(entry.event, e.IdeaSelected)]
    assert set(selected) == {ENGINE}


def test_every_action_restarts_the_auto_approve_timer(tmp_path: Path) -> None:
    async def search() -> tuple[float | None, float | None]:
        clock = Ticking()

        async def never(seconds: float) -> None:
            await asyncio.Event().wait()

        given = ports(tmp_path, clock=clock, sleep=never)
        async with LiveSession.create(tmp_path, opened("ask:45"), given) as live:
            task = asyncio.create_task(live.run(Until.CLOSED))
            await _until(lambda: live.deadline is not None)
            before = live.deadline
            clock.now += 40
            await live.submit(c.AddNote("i2", "let me think"))
            after = live.deadline
            task.cancel()
            return before, after

    before, after = sessions.run(search)
    assert after - before >= 40


def test_in_ask_mode_without_a_timer_nothing_is_approved_automatically(tmp_path: Path) -> None:
    async def act(live: LiveSession) -> None:
        assert live.deadline is None

    steer(tmp_path, act)
