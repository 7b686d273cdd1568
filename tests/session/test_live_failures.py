"""Failures of the engine: reported, never a verdict on a kernel, never a hang."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from support import builders, sessions
from support.scripted import ScriptedProposer
from support.sessions import TREE, opened, ports

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import JournalUnwritable, ProposerError, ToolchainError
from engine.domain.model import Author
from engine.domain.state import SessionState, Stage
from engine.domain.work import WorkKey
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.report.text import progress
from engine.report.text.lines import plain
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped, SessionEnded
from engine.session.perform import Ceilings
from engine.session.writer import SessionWriter


class Faulty(FakeBench):
    """Runs one stage of one kernel as given."""

    def __init__(self, folder: Path, stage: str, kernel: str, fault: object) -> None:
        super().__init__(Blobs(folder).put)
        self.stage = stage
        self.kernel = kernel
        self.fault = fault
        self.closed = 0

    async def build(self, kernel: object, *args: object) -> object:
        await self._maybe("build", kernel)
        return await super().build(kernel, *args)

    async def verify(self, kernel: object, *args: object) -> object:
        await self._maybe("verify", kernel)
        return await super().verify(kernel, *args)

    async def close(self) -> None:
        self.closed += 1

    async def _maybe(self, stage: str, kernel: object) -> None:
        if (stage, kernel.id) != (self.stage, self.kernel):
            return
        if isinstance(self.fault, BaseException):
            raise self.fault
        await asyncio.Event().wait()


def search(folder: Path, bench: FakeBench, source: object = TREE, **others: object) -> tuple[object, SessionState]:
    async def run() -> tuple[object, SessionState]:
        given = ports(folder, source, bench, **others)
        async with LiveSession.create(folder, opened(), given) as live:
            return await live.run(), live.state

    outcome, state = sessions.run(run)
    return outcome, state


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ToolchainError("g++ is missing: install it"), "g++ is missing: install it"),
        (RuntimeError("out of\n  luck"), "RuntimeError: out of luck"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_a_bench_that_raises_stops_the_engine_and_fails_no_kernel(tmp_path: Path, fault: Exception, words: str) -> None:
    outcome, state = search(tmp_path, Faulty(tmp_path, "verify", "k3", fault))
    assert outcome == EngineStopped({WorkKey.parse("verify:k3:0"): words})
    assert state.kernels["k3"].stage is Stage.VERIFY
    assert state.kernels["k3"].failure is None


def test_the_traceback_of_a_fault_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        search(tmp_path, Faulty(tmp_path, "build", "k1", RuntimeError("out of luck")))
    assert "build:k1:0 raised" in caplog.text
    assert "Traceback" in caplog.text


def test_a_bench_that_hangs_times_out(tmp_path: Path) -> None:
    outcome, _ = search(tmp_path, Faulty(tmp_path, "verify", "k1", None), ceilings=Ceilings(verify=0.05))
    assert outcome == EngineStopped({WorkKey.parse("verify:k1:0"): "timed out after 0.05 s"})


def test_only_the_failed_lane_stops(tmp_path: Path) -> None:
    """Built kernels are measured even if the compiler is missing."""
    _, state = search(tmp_path, Faulty(tmp_path, "build", "k3", ToolchainError("gone")))
    assert state.kernels["k2"].stage is Stage.MEASURED
    assert state.kernels["k3"].stage is Stage.BUILD


class Silent(ScriptedProposer):
    """Answers round 0, then fails."""

    __slots__ = ()

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[object, ...]:
        if request.round > 0:
            raise ProposerError("the source does not answer: check the network")
        return await TREE.propose(request, calls)


def test_a_failing_proposer_stops_the_search_with_its_reason(tmp_path: Path) -> None:
    outcome, state = search(tmp_path, FakeBench(Blobs(tmp_path).put), Silent({}, TREE.drafts))
    assert outcome == EngineStopped({WorkKey.parse("propose:1"): "the source does not answer: check the network"})
    assert state.kernels["k1"].stage is Stage.MEASURED


def test_after_a_retry_the_work_is_done(tmp_path: Path) -> None:
    bench = Faulty(tmp_path, "verify", "k3", RuntimeError("once"))

    async def run() -> tuple[object, object]:
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=bench)) as live:
            first = await live.run()
            again = await live.run()
            assert first == again
            bench.kernel = "none"
            await live.retry()
            return first, await live.run()

    first, second = sessions.run(run)
    assert isinstance(first, EngineStopped)
    assert second == SessionEnded("3 of 3 rounds done")


def test_a_retry_is_recorded_as_one_and_keeps_the_workers(tmp_path: Path) -> None:
    """It was recorded as a resumed session: the log said so, and a fleet's workers were gone from the screen."""
    bench = Faulty(tmp_path, "verify", "k3", RuntimeError("once"))

    async def run() -> None:
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=bench)) as live:
            live.record([e.WorkerJoined("cuda:1", builders.device(), "node7")])
            await live.run()
            await live.retry()
            assert set(live.state.workers) == {"cuda:1"}
            assert not live.state.broken

    sessions.run(run)
    entries = read(tmp_path).entries
    assert [entry.event for entry in entries if isinstance(entry.event, e.WorkRetried)] == [e.WorkRetried(("verify:k3:0",))]
    assert not [entry for entry in entries if isinstance(entry.event, e.SessionResumed)]
    _, shown = progress.entry_lines(SessionState(), entries)
    assert [plain(line) for entry, line in shown if isinstance(entry.event, e.WorkRetried)] == ["retrying: verifying k3"]


def test_the_bench_is_closed_once_however_the_session_ends(tmp_path: Path) -> None:
    bench = Faulty(tmp_path, "verify", "k3", RuntimeError("once"))
    search(tmp_path, bench)
    assert bench.closed == 1


def test_a_removed_journal_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    async def run() -> None:
        bench = FakeBench(Blobs(folder).put, pause=0.002)
        live = LiveSession.create(folder, opened(), ports(folder, bench=bench))
        task = asyncio.create_task(live.run())
        while "k1" not in live.state.kernels:
            await asyncio.sleep(0)
        (folder / "journal.jsonl").unlink()
        with pytest.raises(JournalUnwritable, match="cannot be written"):
            await task
        with pytest.raises(JournalUnwritable):
            await live.close()

    sessions.run(run)


def test_interrupting_a_run_abandons_running_work(tmp_path: Path) -> None:
    async def run() -> tuple[bool, frozenset[str]]:
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=Faulty(tmp_path, "build", "k1", None))) as live:
            task = asyncio.create_task(live.run())
            while not live.in_hand:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return task.cancelled(), live.in_hand

    assert sessions.run(run) == (True, frozenset())


def test_an_interrupted_run_resumes_in_the_same_process(tmp_path: Path) -> None:
    bench = Faulty(tmp_path, "build", "k1", None)

    async def run() -> object:
        async with LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=bench)) as live:
            for _ in range(3):
                task = asyncio.create_task(live.run())
                while w.Build("k1", 0).key not in live.in_hand:
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert live.state.started[w.Build("k1", 0).key] == 1
            bench.kernel = "none"
            return await live.run()

    assert sessions.run(run) == SessionEnded("3 of 3 rounds done")


def test_closing_cancels_a_run_in_another_task(tmp_path: Path) -> None:
    async def run() -> bool:
        live = LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=Faulty(tmp_path, "build", "k1", None)))
        task = asyncio.create_task(live.run())
        while not live.in_hand:
            await asyncio.sleep(0)
        await live.close()
        return task.cancelled()

    assert sessions.run(run)


@pytest.mark.parametrize("moment", range(1, 6))
def test_a_close_that_is_cancelled_closes_the_ports_and_the_journal(tmp_path: Path, moment: int) -> None:
    """As by SIGINT while ``run --time`` is closing."""

    class Slow(Faulty):
        """Takes a while to give up its work."""

        async def build(self, kernel: object, *args: object) -> object:
            try:
                return await super().build(kernel, *args)
            finally:
                await asyncio.sleep(0.01)

    async def run() -> int:
        bench = Slow(tmp_path, "build", "k1", None)
        live = LiveSession.create(tmp_path, opened(), ports(tmp_path, bench=bench))
        running = asyncio.create_task(live.run())
        while not live.in_hand:
            await asyncio.sleep(0)
        closing = asyncio.create_task(live.close())
        for _ in range(moment):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing, running])
        assert closing.cancelled()
        return bench.closed

    assert sessions.run(run) == 1
    SessionWriter.open(tmp_path, lambda: 0.0).close()


def _model(repairs: dict[tuple[str, int], str]) -> ScriptedProposer:
    root = (sessions.draft("root", "build_failed"),)
    return ScriptedProposer({0: (sessions.proposal("root", None),)}, {"root": root}, repairs, Author("openai:test"))


@pytest.mark.parametrize(
    ("repairs", "stage", "attempts"),
    [
        ({("k1", 0): sessions.source("root_again", "time_us = 900")}, Stage.MEASURED, 1),
        ({("k1", 0): sessions.source("worse", "mismatch"), ("k1", 1): sessions.source("good")}, Stage.MEASURED, 2),
        ({("k1", 0): sessions.source("worse", "mismatch")}, Stage.FAILED, 1),
        ({}, Stage.FAILED, 0),
    ],
)
def test_a_model_repairs_its_own_kernel(
    tmp_path: Path, repairs: dict[tuple[str, int], str], stage: Stage, attempts: int
) -> None:
    _, state = search(tmp_path, FakeBench(Blobs(tmp_path).put), _model(repairs))
    assert state.kernels["k1"].stage is stage
    assert state.kernels["k1"].attempt == attempts


def test_a_repair_sees_the_reason_and_the_log(tmp_path: Path) -> None:
    seen: list[RepairRequest] = []

    class Watching(ScriptedProposer):
        __slots__ = ()

        async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
            return Implementation((sessions.draft("root", "build_failed"),))

        async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
            seen.append(request)
            return None

    source = Watching({0: (sessions.proposal("root", None),)}, {}, {}, Author("openai:test"))
    search(tmp_path, FakeBench(Blobs(tmp_path).put), source)
    assert [(r.kernel.id, r.reason, r.log) for r in seen] == [("k1", "planted: build failed", "planted: build failed\n")]
    assert "build_failed" in seen[0].code
