"""Whole sessions on a fleet: the same verdicts as on one device, also when workers are lost or lie."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support import builders, fake_worker, sessions
from support.scripted import ScriptedProposer

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import EspalierError, ProblemError
from engine.domain.folds import advance
from engine.domain.model import ENGINE, Contract, Device, Dialect, FailureKind, Signature
from engine.domain.state import Kernel, SessionState, Stage
from engine.fleet import messages as m
from engine.fleet.bench import FleetBench
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session.fake_bench import FAKE_CPU
from engine.session.live import LiveSession, Ports
from engine.trial.assignment import Assignment

Garble = Mapping[str, Callable[[bytes], bytes]]
NAMES = ("cpu:0", "cpu:1")


def fleet(folder: Path, launcher: fake_worker.MemoryLauncher, device: str = "cpu") -> FleetBench:
    problem = builders.opened().problem
    return FleetBench(Assignment(problem, problem.workloads[0], device), Blobs(folder).put, launcher)


def search(
    folder: Path, names: tuple[str, ...] = NAMES, garble: Garble | None = None, ideas: ScriptedProposer = sessions.TREE,
    devices: Mapping[str, Device] | None = None, builders: tuple[str, ...] = (),
) -> tuple[SessionState, fake_worker.MemoryLauncher]:  # fmt: skip
    """The scripted tree on a fleet, to its end."""
    launcher = fake_worker.MemoryLauncher(names, garble, devices, builders)

    async def run() -> SessionState:
        bench = fleet(folder, launcher)
        ports: Ports = replace(sessions.ports(folder, ideas, bench), workers=bench)
        async with LiveSession.create(folder, sessions.opened(), ports) as live:
            await live.run()
            return live.state

    state: SessionState = sessions.run(run)
    return state, launcher


def verdicts(state: SessionState) -> dict[str, tuple[object, ...]]:
    """The verdict on each kernel, without where it was reached."""
    return {
        k.name + str(sorted(k.tunables.items())): (
            k.stage,
            k.failure and k.failure.kind,
            k.measurement and k.measurement.time_us,
        )
        for k in state.kernels.values()
    }


def happened(folder: Path, kind: type) -> list[e.Event]:
    return [entry.event for entry in read(folder).entries if isinstance(entry.event, kind)]


@pytest.mark.parametrize(("device", "together"), [("cuda:0", True), ("cpu", False)])
def test_gpus_start_together_but_cores_wait_for_the_first_ones_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, *, together: bool
) -> None:
    begun: list[str] = []
    describe = fake_worker.DescribedFakeBench.describe

    async def noted(bench: fake_worker.DescribedFakeBench, say: object, *, ceilings: bool) -> tuple[Device, Signature]:
        begun.append("begins")
        while together and begun.count("begins") < len(NAMES):
            await asyncio.sleep(0)
        found = await describe(bench, say, ceilings=ceilings)
        begun.append("is open")
        return found

    async def run() -> None:
        bench = fleet(tmp_path, fake_worker.MemoryLauncher(NAMES), device)
        async with asyncio.timeout(20):
            await bench.describe(ceilings=True)
        await bench.close()

    monkeypatch.setattr(fake_worker.DescribedFakeBench, "describe", noted)
    asyncio.run(run())
    assert begun == ["begins", "begins", "is open", "is open"] if together else ["begins", "is open"] * 2


def test_gpus_that_started_beside_one_that_cannot_open_the_problem_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(bench: fake_worker.DescribedFakeBench, say: object, *, ceilings: bool) -> tuple[Device, Signature]:
        raise ProblemError("its reference is wrong")

    async def run() -> list[fake_worker.MemoryLink]:
        launcher = fake_worker.MemoryLauncher(NAMES)
        with pytest.raises(ProblemError, match="reference is wrong"):
            await fleet(tmp_path, launcher, "cuda:0").describe()
        return launcher.links["cpu:1"]

    monkeypatch.setattr(fake_worker.DescribedFakeBench, "describe", refuses)
    assert all(not link.is_open for link in asyncio.run(run()))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_fleet_reaches_the_verdicts_of_one_device(tmp_path: Path, count: int) -> None:
    alone = sessions.whole(tmp_path / "alone")
    state, launcher = search(tmp_path / "fleet", tuple(f"cpu:{n}" for n in range(count)))
    assert verdicts(state) == verdicts(alone)
    assert state.closed == alone.closed
    assert {k.worker for k in state.kernels.values() if k.stage is Stage.MEASURED} <= set(state.workers)
    assert all(len(links) == 1 for links in launcher.links.values())
    assert state.incumbent


def test_a_verdict_says_on_which_worker_it_was_measured_and_replay_agrees(tmp_path: Path) -> None:
    state, _ = search(tmp_path)
    measured = [k for k in state.kernels.values() if k.stage is Stage.MEASURED]
    assert len({k.worker for k in measured}) == 2
    for kernel in measured:
        assert kernel.measurement is not None
        assert f"measured on {kernel.worker}" in kernel.measurement.conditions
    again = advance(SessionState(), read(tmp_path).entries)
    assert sessions.tree(again) == sessions.tree(state)
    assert dict(again.workers) == dict(state.workers)
    assert sum(one.verdicts for one in state.workers.values()) >= len(state.kernels)


@pytest.mark.slow
def test_a_worker_on_another_model_is_refused_by_name(tmp_path: Path) -> None:
    alone = sessions.whole(tmp_path / "alone")
    other = replace(FAKE_CPU, name="Another CPU")
    state, _ = search(tmp_path / "fleet", (*NAMES, "cpu:2"), devices={"cpu:2": other})
    assert verdicts(state) == verdicts(alone)
    (lost,) = happened(tmp_path / "fleet", e.WorkerLost)
    words = f"refused: it has Another CPU, the session's device is {FAKE_CPU.name}; it is not started again"
    assert (lost.name, lost.reason) == ("cpu:2", words)
    assert {event.to for event in happened(tmp_path / "fleet", e.WorkAssigned)} <= set(NAMES)


@pytest.mark.slow
def test_a_session_begins_with_the_worker_that_starts(tmp_path: Path) -> None:
    alone = sessions.whole(tmp_path / "alone")
    state, _ = search(tmp_path / "fleet", garble={"cpu:0": lambda _: b"\xff"})
    assert verdicts(state) == verdicts(alone)
    (lost,) = happened(tmp_path / "fleet", e.WorkerLost)
    assert isinstance(lost, e.WorkerLost)
    assert lost.name == "cpu:0"


def test_a_fleet_of_which_no_worker_starts_fails_with_the_reason(tmp_path: Path) -> None:
    async def act() -> None:
        bench = fleet(tmp_path, fake_worker.MemoryLauncher(NAMES, dict.fromkeys(NAMES, lambda _: b"\xff")))
        try:
            await bench.describe()
        finally:
            await bench.close()

    with pytest.raises(EspalierError, match="cannot be read"):
        sessions.run(act)


def test_both_arms_of_a_race_run_where_the_incumbent_was_measured(tmp_path: Path) -> None:
    search(tmp_path)
    state, raced = SessionState(), 0
    for entry in read(tmp_path).entries:
        if isinstance(entry.event, e.KernelRaced):
            raced += 1
            assert entry.event.worker == state.kernels[entry.event.against].worker
        state = advance(state, (entry,))
    assert raced


def test_every_worker_prepares_on_its_own_device(tmp_path: Path) -> None:
    search(tmp_path)
    prepared = happened(tmp_path, e.WorkerPrepared)
    assert sorted(event.name for event in prepared) == list(NAMES)
    assert len(happened(tmp_path, e.SessionPrepared)) == 1


def test_code_travels_once_to_a_worker_and_never_as_a_pickle(tmp_path: Path) -> None:
    _, launcher = search(tmp_path)
    for (link,) in launcher.links.values():
        puts = [order.content for frame in link.received if isinstance(order := m.decode_order(frame), m.PutBlob)]
        assert len(puts) == len(set(puts))
        assert not any(frame.startswith((b"\x80\x04", b"\x80\x05")) for frame in link.received)


def losing(times: int) -> ScriptedProposer:
    """One kernel beside the root during whose verification workers are lost."""
    root, other = sessions.draft("root", "time_us = 900"), sessions.draft("bad", "time_us = 100")
    other = replace(other, source=f"// LOSES {times}\n{other.source}")
    rounds = {0: (sessions.proposal("root", None),), 1: (sessions.proposal("bad", "k1"),)}
    return ScriptedProposer(rounds=rounds, drafts={"root": (root,), "bad": (other,)})


@pytest.mark.parametrize("names", [("cpu:0",), NAMES])
def test_work_of_a_lost_worker_goes_to_another_one(
    tmp_path: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = tmp_path / "tries"
    tries.mkdir()
    monkeypatch.setenv(fake_worker.TRIES, str(tries))
    state, launcher = search(tmp_path / "s", names, ideas=losing(1))
    assert state.kernels["k2"].stage is Stage.MEASURED
    assert [event.work for event in happened(tmp_path / "s", e.WorkRequeued)] == ["verify:k2:0"]
    (lost,) = happened(tmp_path / "s", e.WorkerLost)
    assert "killed by signal 9" in lost.reason
    assert sum(map(len, launcher.links.values())) == len(names) + 1
    assert state.workers[lost.name].lost == ""


def test_work_that_loses_two_workers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tmp_path / "tries"
    tries.mkdir()
    monkeypatch.setenv(fake_worker.TRIES, str(tries))
    state, _ = search(tmp_path / "s", ideas=losing(9))
    failed = state.kernels["k2"].failure
    assert failed is not None
    assert failed.kind is FailureKind.CRASHED
    assert "2 workers were lost during this verify step: " in failed.reason
    assert len(list(tries.iterdir())) == 2
    assert state.incumbent == "k1"


def changed(change: Callable[[m.Answered], m.Report]) -> Callable[[bytes], bytes]:
    """Changes the answers of a worker to work on kernels."""

    def garble(frame: bytes) -> bytes:
        report = m.decode_report(frame)
        lies = isinstance(report, m.Answered) and report.kind == "Verified"
        return m.encode(change(report)) if lies else frame

    return garble


def foreign(answer: m.Answered) -> m.Report:
    return msgspec.structs.replace(answer, body=msgspec.Raw(bytes(answer.body).replace(b"seconds", b"secondz")))


LIES: Mapping[str, tuple[Callable[[bytes], bytes], str]] = {
    "garbage": (lambda frame: b"\xff" * 9 if b"Verified" in frame else frame, "cannot be read"),
    "a pickle": (lambda frame: pickle.dumps({"x": 1}) if b"Verified" in frame else frame, "cannot be read"),
    "a pickle as the result": (
        changed(lambda a: msgspec.structs.replace(a, body=msgspec.Raw(msgspec.msgpack.encode(pickle.dumps([]))))),
        "its result cannot be read",
    ),
    "another kind of result": (changed(lambda a: msgspec.structs.replace(a, kind="Measured")), "answered with 'Measured'"),
    "a missing field": (changed(foreign), "its result cannot be read"),
    "an answer nobody asked for": (changed(lambda a: msgspec.structs.replace(a, call=4711)), "call 4711"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_worker_that_lies_costs_its_own_result_and_is_named(tmp_path: Path, lie: str) -> None:
    garble, words = LIES[lie]
    alone = sessions.whole(tmp_path / "alone")
    state, launcher = search(tmp_path / "fleet", garble={"cpu:1": garble})
    assert verdicts(state) == verdicts(alone)
    (lost,) = happened(tmp_path / "fleet", e.WorkerLost)
    assert lost.name == "cpu:1"
    assert words in lost.reason
    assert "not started again" in lost.reason
    assert len(launcher.links["cpu:1"]) == 1
    assert "cpu:1" not in {k.worker for k in state.kernels.values() if k.stage is Stage.MEASURED}


def test_a_payload_under_a_foreign_hash_is_refused() -> None:
    answer = m.answered(1, w.Built("a" * 64, 0.5, log="b" * 64), {})
    with pytest.raises(m.WorkerLied, match="a payload that it did not send: bbbb"):
        m.decode_answer(answer, m.ANSWERS["build"])


def test_a_fleet_whose_workers_all_lie_fails_with_a_reason(tmp_path: Path) -> None:
    garble = LIES["garbage"][0]

    async def act() -> str:
        bench = fleet(tmp_path, fake_worker.MemoryLauncher(NAMES, dict.fromkeys(NAMES, garble)))
        await bench.describe()
        one = Kernel("k1", "i1", None, 0, ENGINE, "k1.cpp", Dialect.CPP, Contract.HOST, "", {}, False)
        try:
            outcome = await bench.verify(one, sessions.source("good"), lambda _: None)
            assert outcome.reason.startswith("2 workers were lost")
            await asyncio.sleep(0)
            with pytest.raises(EspalierError, match="no worker is left") as caught:
                await bench.verify(one, sessions.source("good"), lambda _: None)
            return str(caught.value)
        finally:
            await bench.close()

    assert "cannot be read" in sessions.run(act)


def test_a_resumed_session_opens_its_workers_when_it_needs_them(tmp_path: Path) -> None:
    launcher = fake_worker.MemoryLauncher(NAMES)

    async def act() -> SessionState:
        async with LiveSession.create(tmp_path, sessions.opened(), sessions.ports(tmp_path)) as live:
            running = asyncio.ensure_future(live.run())
            await live.wait_until(lambda state: bool(state.kernels))
            running.cancel()
        bench = fleet(tmp_path, launcher)
        async with LiveSession.resume(tmp_path, replace(sessions.ports(tmp_path, bench=bench), workers=bench)) as live:
            await live.run()
            return live.state

    state: SessionState = sessions.run(act)
    assert state.closed
    assert set(state.workers) == set(NAMES)
