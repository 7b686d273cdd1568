"""Races in a live session: successive incumbents, undecided and failed races, and work owed after a kill."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import sessions
from support.scripted import ScriptedProposer
from support.sessions import draft, opened, ports, proposal, tree, whole

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.model import RaceOutcome, Succession
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState, Stage
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session import fork
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped, Until
from engine.session.ports import Say


def scripted(*marks: str) -> ScriptedProposer:
    """A root at 900 µs, and one round of kernels with these marks."""
    rounds = {0: (proposal("root", None),), 1: (proposal("all", "k1"),)}
    made = tuple(draft(f"n{number}", mark) for number, mark in enumerate(marks))
    return ScriptedProposer(rounds=rounds, drafts={"root": (draft("root", "time_us = 900"),), "all": made})


def searched(folder: Path, *marks: str, act: tuple[c.Command, ...] = ()) -> SessionState:
    async def search() -> None:
        given = opened(branch=len(marks))
        async with LiveSession.create(folder, given, ports(folder, scripted(*marks))) as live:
            await live.run()
            for command in act:
                await live.submit(command)
                await live.run()

    sessions.run(search)
    return advance(SessionState(), read(folder).entries)


def leads(state: SessionState) -> str:
    best = queries.incumbent(state)
    return best.id if best is not None else ""


def changes(folder: Path) -> list[e.IncumbentChanged]:
    return [entry.event for entry in read(folder).entries if isinstance(entry.event, e.IncumbentChanged)]


def test_each_incumbent_beat_the_previous_one(tmp_path: Path) -> None:
    state = whole(tmp_path)
    assert changes(tmp_path) == [
        e.IncumbentChanged("k1", "", Succession.FIRST),
        e.IncumbentChanged("k2", "k1", Succession.RACED),
        e.IncumbentChanged("k6", "k2", Succession.RACED),
        e.IncumbentChanged("k10", "k6", Succession.RACED),
    ]
    assert [(r.kernel, r.against, r.outcome) for r in state.races] == [
        ("k2", "k1", RaceOutcome.FASTER), ("k6", "k2", RaceOutcome.FASTER), ("k10", "k6", RaceOutcome.FASTER),
    ]  # fmt: skip


def test_an_undecided_challenger_is_not_the_incumbent_before_more_effort_decides(tmp_path: Path) -> None:
    """0.6 % faster: undecided at 1 % noise; the A/A noise is 0.5 %."""
    state = searched(tmp_path / "first", "time_us = 400", "time_us = 397.6")
    assert [(r.outcome, r.effort) for r in state.races] == [(RaceOutcome.FASTER, 0)], "the better measurement raced the root"
    assert leads(state) == "k3"
    state = searched(tmp_path / "second", "time_us = 894.6")
    assert (leads(state), [r.outcome for r in state.races]) == ("k1", [RaceOutcome.UNDECIDED])
    state = searched(tmp_path / "third", "time_us = 894.6", act=(c.RaceUndecided(),))
    assert [(r.outcome, r.effort, r.pairs) for r in state.races] == [
        (RaceOutcome.UNDECIDED, 0, 3), (RaceOutcome.FASTER, 1, 6),
    ]  # fmt: skip
    assert leads(state) == "k2"
    assert state.closed is not None, "reopened for the race, and closed after it"


def test_a_kernel_that_fails_in_its_race_is_not_the_incumbent_and_the_search_continues(tmp_path: Path) -> None:
    state = searched(tmp_path, "time_us = 100\n// FAKE: exhausted", "time_us = 110")
    assert state.kernels["k2"].stage is Stage.FAILED
    assert state.kernels["k2"].failure is not None
    assert leads(state) == "k3"
    assert state.closed is not None


def test_the_best_kernels_race_again_on_request(tmp_path: Path) -> None:
    state = searched(tmp_path, "time_us = 300", "time_us = 320", "time_us = 340", act=(c.RaceLeaders(2),))
    assert [(r.kernel, r.against) for r in state.races] == [("k2", "k1"), ("k3", "k2"), ("k4", "k2")]
    assert leads(state) == "k2"


@dataclass
class Interrupted(FakeBench):
    """Hangs in its first race, or fails to run it."""

    folder: Path
    fault: str
    races: int = 0

    def __post_init__(self) -> None:
        super().__init__(Blobs(self.folder).put)

    async def race(
        self, kernel: Kernel, source: str, other: Kernel, other_source: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        self.races += 1
        if self.races == 1 and self.fault == "hangs":
            await asyncio.Event().wait()
        if self.races == 1 and self.fault == "impossible":
            return w.Impossible("the device fell off the bus")
        return await super().race(kernel, source, other, other_source, effort, regime, say)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "impossible"])
def test_an_interrupted_race_runs_after_the_next_start(tmp_path: Path, fault: str) -> None:
    bench = Interrupted(tmp_path / "cut", fault)

    async def search() -> None:
        live = LiveSession.create(tmp_path / "cut", opened(), ports(tmp_path / "cut", bench=bench))
        if fault == "impossible":
            outcome = await live.run(Until.IDLE)
            assert isinstance(outcome, EngineStopped)
            assert list(map(str, outcome.reasons)) == ["race:k2:k1:0"]
        else:
            run = asyncio.create_task(live.run())
            while not bench.races:
                await asyncio.sleep(0)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        await live.close()
        async with LiveSession.resume(tmp_path / "cut", ports(tmp_path / "cut")) as again:
            await again.run()

    sessions.run(search)
    state = advance(SessionState(), read(tmp_path / "cut").entries)
    uncut = whole(tmp_path / "whole")
    assert tree(state) == tree(uncut)
    assert (state.reigns, len(state.races)) == (uncut.reigns, len(uncut.races))


@pytest.mark.slow
def test_a_fork_at_any_point_reaches_the_same_incumbent(tmp_path: Path) -> None:
    """Also between a race and the resulting change of the incumbent: owed work is owed again, recorded events stay."""
    state = whole(tmp_path / "whole")
    entries = read(tmp_path / "whole").entries
    for position, entry in enumerate(entries, 1):
        if not isinstance(entry.event, e.KernelRaced | e.IncumbentChanged | e.KernelMeasured):
            continue
        folder = fork.fork(tmp_path / "whole", position, tmp_path / f"fork{position}").folder

        async def go_on(folder: Path = folder) -> None:
            async with LiveSession.resume(folder, ports(folder)) as live:
                await live.run()

        sessions.run(go_on)
        forked = advance(SessionState(), read(folder).entries)
        assert (forked.reigns, leads(forked), tree(forked)) == (state.reigns, leads(state), tree(state))
        assert races.pending_races(forked) == ()
