"""Whole live searches: rounds, lanes, limits, outcomes, files on disk."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import sessions
from support.scripted import ScriptedProposer
from support.sessions import TREE, opened, ports, tree, whole

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import CommandRejected, JournalError, JournalLocked
from engine.domain.settings import Limits
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session.fake_bench import FAKE_GPU, FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, RoundEnded, SessionEnded, Until


def test_three_rounds_on_autopilot_leave_the_scripted_tree(tmp_path: Path) -> None:
    state = whole(tmp_path)
    assert state.closed == "3 of 3 rounds done"
    assert {k.id: (k.parent, k.stage.value) for k in state.kernels.values()} == {
        "k1": (None, "measured"),
        "k2": ("k1", "measured"), "k3": ("k1", "measured"), "k4": ("k1", "failed"), "k5": ("k1", "measured"),
        "k6": ("k2", "measured"), "k7": ("k2", "failed"), "k8": ("k2", "failed"), "k9": ("k2", "failed"),
        "k10": ("k6", "measured"),
    }  # fmt: skip
    best = queries.incumbent(state)
    assert best is not None
    assert best.id == "k10"
    assert state.ideas["i7"].note == "nothing is scripted for 'Idea never'"


def test_the_journal_alone_leads_to_the_same_state(tmp_path: Path) -> None:
    live = whole(tmp_path)
    read_back = sessions.builders.advance(SessionState(), read(tmp_path).entries)
    assert sessions.builders.contents(read_back) == sessions.builders.contents(live)


def test_every_work_start_precedes_its_result(tmp_path: Path) -> None:
    whole(tmp_path)
    announced: set[str] = set()
    for entry in read(tmp_path).entries:
        match entry.event:
            case e.WorkStarted(work):
                announced.add(work)
            case e.KernelBuilt(kernel):
                assert f"build:{kernel}:0" in announced
            case e.KernelVerified(kernel):
                assert f"verify:{kernel}:0" in announced
            case e.IdeaImplemented(idea):
                assert f"implement:{idea}" in announced


def test_all_code_is_stored_as_blobs_of_the_session(tmp_path: Path) -> None:
    state = whole(tmp_path)
    blobs = Blobs(tmp_path)
    assert blobs.text(state.kernels["k6"].source) == sessions.source("wider_a", "time_us = 300")


def test_nothing_is_running_at_the_end(tmp_path: Path) -> None:
    state = whole(tmp_path)
    assert not state.started
    assert not state.broken


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(rounds=1), "1 of 1 rounds done"),
        (Limits(rounds=None, kernels=5), "limit of 5 kernels reached"),
        (Limits(rounds=None, light=0.05), "6% of SOL reached"),
        (Limits(rounds=None, plateau=None), "no further ideas"),
    ],
)
def test_a_limit_closes_the_session(tmp_path: Path, limits: Limits, reason: str) -> None:
    assert whole(tmp_path, limits=limits).closed == reason


def test_the_time_limit_ends_a_search(tmp_path: Path) -> None:
    state = whole(tmp_path, limits=Limits(seconds=0.15))
    assert state.closed == "time limit of 0.15 s reached"
    assert all(k.stage.settled for k in state.kernels.values())
    assert len(state.kernels) < 10


def test_what_begins_after_the_time_limit_is_announced(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async def listen() -> list[str]:
            return [f"{progress.work.kind}: {progress.text}" async for progress in live.progress() if progress.lasting]

        async with LiveSession.create(tmp_path, opened(limits=Limits(seconds=0.15)), ports(tmp_path)) as live:
            listening = asyncio.create_task(listen())
            await live.run()
        return await listening

    assert "sanitize: time is over: confirming it before the search ends" in sessions.run(run)


def test_a_sequential_search_has_one_idea_a_round_on_the_latest_kernel(tmp_path: Path) -> None:
    script = ScriptedProposer(
        rounds={n: (sessions.proposal(f"step{n}", f"k{n}" if n else None), sessions.proposal("spare", "k1")) for n in range(4)},
        drafts={f"step{n}": (sessions.draft(f"step{n}", f"time_us = {900 - 100 * n}"),) * 2 for n in range(4)},
    )

    async def search() -> SessionState:
        async with LiveSession.create(tmp_path, opened(strategy="sequential"), ports(tmp_path, script)) as live:
            await live.run()
            return live.state

    state = sessions.run(search)
    assert [(k.id, k.parent) for k in state.kernels.values()] == [("k1", None), ("k2", "k1"), ("k3", "k2"), ("k4", "k3")]
    assert [r.parents for r in state.rounds.values()] == [(), ("k1",), ("k2",), ("k3",)]


def test_a_problem_that_cannot_be_judged_is_not_searched(tmp_path: Path) -> None:
    async def search() -> SessionState:
        bench = FakeBench(Blobs(tmp_path).put, verifiable=False)
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=bench)) as live:
            await live.run()
            return live.state

    state = sessions.run(search)
    assert state.closed is not None
    assert state.closed.startswith("not verifiable")
    assert not state.kernels


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_builds_and_trials_never_overlap_on_a_cpu(tmp_path: Path, device: str) -> None:
    bench = Watched(Blobs(tmp_path).put, *((FAKE_GPU,) if device == "cuda" else ()), pause=0.002)

    async def search() -> None:
        async with LiveSession.create(tmp_path, opened(branch=4), ports(tmp_path, bench=bench)) as live:
            await live.run()

    sessions.run(search)
    trials = [together.count("verify") + together.count("measure") for together in bench.seen]
    assert max(trials) == 1
    mixed = [together for together in bench.seen if "build" in together and len(set(together)) > 1]
    assert bool(mixed) is (device == "cuda")


class Watched(FakeBench):
    """Records which stages ran concurrently."""

    def __init__(self, *args: object, **others: object) -> None:
        super().__init__(*args, **others)
        self.under_way: list[str] = []
        self.seen: list[tuple[str, ...]] = []

    async def build(self, *args: object) -> object:
        return await self._watched("build", super().build(*args))

    async def verify(self, *args: object) -> object:
        return await self._watched("verify", super().verify(*args))

    async def measure(self, *args: object) -> object:
        return await self._watched("measure", super().measure(*args))

    async def _watched(self, stage: str, effect: object) -> object:
        self.under_way.append(stage)
        self.seen.append(tuple(sorted(self.under_way)))
        try:
            return await effect
        finally:
            self.under_way.remove(stage)


def test_a_run_can_stop_after_each_round(tmp_path: Path) -> None:
    async def search() -> list[object]:
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path)) as live:
            return [await live.run(Until.ROUND) for _ in range(4)]

    outcomes = sessions.run(search)
    assert outcomes == [RoundEnded(1), RoundEnded(2), SessionEnded("3 of 3 rounds done"), SessionEnded("3 of 3 rounds done")]


@pytest.mark.slow
def test_rounds_one_by_one_lead_to_the_same_tree(tmp_path: Path) -> None:
    at_once = whole(tmp_path / "at_once")

    async def step(first: bool) -> SessionState:
        folder = tmp_path / "steps"
        begin = LiveSession.create(folder, opened(), ports(folder)) if first else LiveSession.resume(folder, ports(folder))
        async with begin as live:
            await live.run(Until.ROUND)
            return live.state

    states = [sessions.run(lambda n=n: step(n == 0)) for n in range(3)]
    assert tree(states[-1]) == tree(at_once)


def test_in_ask_mode_a_run_ends_when_ideas_await_approval(tmp_path: Path) -> None:
    async def search() -> tuple[object, SessionState]:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            return await live.run(Until.IDLE), live.state

    outcome, state = sessions.run(search)
    assert outcome == AwaitingEngineer(("i2", "i3"))
    assert [i.status for i in state.ideas.values()] == [IdeaStatus.SELECTED, IdeaStatus.PROPOSED, IdeaStatus.PROPOSED]
    assert state.kernels["k1"].stage is Stage.MEASURED


def test_every_reader_gets_every_entry_once_and_in_order(tmp_path: Path) -> None:
    async def search() -> tuple[list[int], list[int], int]:
        live = LiveSession.create(tmp_path, opened(), ports(tmp_path))
        early = asyncio.create_task(_seqs(live))
        await live.run(Until.ROUND)
        late = asyncio.create_task(_seqs(live))
        await live.run()
        await live.close()
        return await early, await late, live.state.seq

    early, late, last = sessions.run(search)
    assert early == late == list(range(last + 1))


async def _seqs(live: LiveSession) -> list[int]:
    found: list[int] = []
    async for batch in live.batches():
        found.extend(entry.seq for entry in batch.entries)
        assert batch.state.seq == found[-1]
    return found


def test_progress_reaches_readers_but_not_the_journal(tmp_path: Path) -> None:
    async def search() -> list[str]:
        live = LiveSession.create(tmp_path, opened(), ports(tmp_path))
        heard = asyncio.create_task(_words(live))
        await asyncio.sleep(0)
        await live.run()
        await live.close()
        return await heard

    heard = sessions.run(search)
    assert "prepare: pretending to measure the baselines" in heard
    assert "build:k2:0: pretending to build wide_a.cpp" in heard
    assert b"pretending to build" not in (tmp_path / "journal.jsonl").read_bytes()


async def _words(live: LiveSession) -> list[str]:
    return [f"{word.work}: {word.text}" async for word in live.progress()]


@pytest.mark.slow
def test_a_second_process_cannot_write_the_same_session(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom engine.domain.errors import JournalLocked\n"
        "from engine.journal.journal import Journal\n"
        "try:\n    Journal.open_for_append(Path(sys.argv[1]))\nexcept JournalLocked as error:\n    print(error)\n"
    )

    async def search() -> str:
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path)) as live:
            with pytest.raises(JournalLocked):
                LiveSession.resume(tmp_path, ports(tmp_path))
            other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
            await live.run()
            return other.stdout

    assert "is open in process" in sessions.run(search)
    sessions.run(lambda: _open_and_close(tmp_path))


async def _open_and_close(folder: Path) -> None:
    await LiveSession.resume(folder, ports(folder)).close()


def test_a_folder_with_a_session_is_not_overwritten(tmp_path: Path) -> None:
    whole(tmp_path)
    before = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(JournalError, match="already holds a session"):
        LiveSession.create(tmp_path, opened(), ports(tmp_path))
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_commands_after_close_are_rejected(tmp_path: Path) -> None:
    async def late() -> None:
        live = LiveSession.create(tmp_path, opened(), ports(tmp_path))
        await live.close()
        await live.close()
        with pytest.raises(CommandRejected, match="closed here"):
            await live.submit(c.AddNote("", "too late"))

    sessions.run(late)


def test_events_are_attributed_to_the_engine_or_the_engineer(tmp_path: Path) -> None:
    async def search() -> None:
        async with LiveSession.create(tmp_path, opened("ask"), ports(tmp_path)) as live:
            await live.run(Until.IDLE)
            await live.submit(c.RejectIdea("i2", "no"))

    sessions.run(search)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    authors = {line["kind"]: line["by"] for line in lines}
    assert authors["idea.rejected"] == "engineer"
    assert authors["ideas.proposed"] == "engine"


def test_the_scripted_tree_matches_its_description() -> None:
    assert {p.text.key for r in TREE.rounds.values() for p in r} - set(TREE.drafts) == {"never"}
