"""Builders: kernels are built there and tried on any worker; one that dies, lies or cannot build costs its own build."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fleet.test_fleet_sessions import NAMES, Garble, fleet, happened, search, verdicts
from support import fake_worker, sessions
from support.scripted import ScriptedProposer

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import ToolchainError
from engine.domain.model import FailureKind
from engine.domain.state import SessionState, Stage
from engine.fleet import messages as m
from engine.fleet.links import worker_environment
from engine.fleet.places import BUILD, WorkerPlace, builder_count
from engine.journal.blobs import Blobs
from engine.sandbox.bubblewrap import bubblewrap_reason, without_devices
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.toolchain.adopted import adopt, adopted, is_binary
from engine.toolchain.cache import cache_folder

BUILDERS = ("builder:0", "builder:1")
needs_bubblewrap = pytest.mark.skipif(bubblewrap_reason(proc=False) is not None, reason="bubblewrap does not work here")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(fake_worker.TRIES, str(tmp_path / "tries"))
    (tmp_path / "tries").mkdir()


def built_on(folder: Path) -> set[str]:
    return {event.to for event in happened(folder, e.WorkAssigned) if event.work.startswith("build:")}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_kernels_are_built_on_builders_and_tried_on_any_worker(tmp_path: Path) -> None:
    alone = sessions.whole(tmp_path / "alone")
    state, launcher = search(tmp_path / "s", builders=BUILDERS)
    assert verdicts(state) == verdicts(alone)
    assert {event.name for event in happened(tmp_path / "s", e.BuilderJoined)} == set(BUILDERS)  # type: ignore[attr-defined]
    assert built_on(tmp_path / "s") == set(BUILDERS)
    assert {k.worker for k in state.kernels.values() if k.stage is Stage.MEASURED} == set(NAMES)
    for name in NAMES:
        (link,) = launcher.links[name]
        orders = [m.decode_order(frame) for frame in link.received]
        sent = [order.content for order in orders if isinstance(order, m.PutBlob) and is_binary(order.content)]
        assert len(sent) == len(set(sent)), "each binary travels once"
        work = [order for order in orders if isinstance(order, m.DoWork)]
        tried = [kernel for order in work if order.kind in (w.WorkKind.VERIFY, w.WorkKind.MEASURE) for kernel in order.kernels]
        assert all(kernel.binaries for kernel in tried)
        named = {kernel.binaries[0][0] for order in work for kernel in order.kernels if kernel.binaries}
        assert {m.blob_name(one) for one in sent} == named


def breaking(times: int) -> ScriptedProposer:
    """One kernel beside the root during whose build builders are lost."""
    root, other = sessions.draft("root", "time_us = 900"), sessions.draft("bad", "time_us = 100")
    other = replace(other, source=f"// BREAKS {times}\n{other.source}")
    rounds = {0: (sessions.proposal("root", None),), 1: (sessions.proposal("bad", "k1"),)}
    return ScriptedProposer(rounds=rounds, drafts={"root": (root,), "bad": (other,)})


@pytest.mark.parametrize("builders", [BUILDERS[:1], BUILDERS])
def test_the_build_of_a_lost_builder_goes_to_another_one(tmp_path: Path, builders: tuple[str, ...]) -> None:
    state, launcher = search(tmp_path / "s", ideas=breaking(1), builders=builders)
    assert state.kernels["k2"].stage is Stage.MEASURED
    (requeued,) = happened(tmp_path / "s", e.WorkRequeued)
    (lost,) = happened(tmp_path / "s", e.WorkerLost)
    assert isinstance(requeued, e.WorkRequeued)
    assert isinstance(lost, e.WorkerLost)
    assert requeued.work == "build:k2:0"
    assert lost.name == requeued.lost
    assert "killed by signal 9" in lost.reason
    assert sum(len(launcher.links[name]) for name in builders) == len(builders) + 1
    assert built_on(tmp_path / "s") <= set(builders)


def test_a_build_that_loses_two_builders_is_given_up(tmp_path: Path) -> None:
    state, _ = search(tmp_path / "s", ideas=breaking(9), builders=BUILDERS)
    failed = state.kernels["k2"].failure
    assert failed is not None
    assert failed.kind is FailureKind.CRASHED
    assert "2 workers were lost during this build step: " in failed.reason


def changed(change: Callable[[m.Answered, m.CompiledKernel], m.Report]) -> Callable[[bytes], bytes]:
    def garble(frame: bytes) -> bytes:
        report = m.decode_report(frame)
        if not (isinstance(report, m.Answered) and report.kind == "CompiledKernel"):
            return frame
        found, _ = m.decode_answer(report, frozenset({m.CompiledKernel}))
        return m.encode(change(report, found))

    return garble


def with_binary(content: bytes) -> Callable[[bytes], bytes]:
    """The builder sends this under its own hash."""

    def change(answer: m.Answered, found: m.CompiledKernel) -> m.Report:
        other = msgspec.structs.replace(found, binaries=((m.blob_name(content),),))
        logs = [one for one in answer.blobs if not is_binary(one)]
        return m.answered(answer.call, other, {m.blob_name(one): one for one in (content, *logs)})

    return changed(change)


def without_payloads(answer: m.Answered, _: m.CompiledKernel) -> m.Report:
    return msgspec.structs.replace(answer, blobs=tuple(one for one in answer.blobs if not is_binary(one)))


def for_more_shapes(answer: m.Answered, found: m.CompiledKernel) -> m.Report:
    twice = msgspec.structs.replace(found, binaries=found.binaries * 2)
    return m.answered(answer.call, twice, {m.blob_name(one): one for one in answer.blobs})


LIES: Mapping[str, tuple[Callable[[bytes], bytes], str]] = {
    "garbage": (lambda frame: b"\xff" * 9 if b"CompiledKernel" in frame else frame, "cannot be read"),
    "a foreign hash": (changed(without_payloads), "a payload that it did not send"),
    "garbage under its own hash": (with_binary(b"rubbish"), "it sent 7 bytes that are no binary"),
    "the binary of another kernel": (with_binary(b"\x7fELF another"), "the digest of its machine code"),
    "more binaries than shapes": (changed(for_more_shapes), "not those of this problem's shapes"),
    "a verdict": (
        changed(lambda answer, _: msgspec.structs.replace(answer, kind="Verified")),
        "it answered with 'Verified'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("builders", [BUILDERS[:1], BUILDERS])
def test_a_builder_that_lies_costs_its_own_build_and_is_named(tmp_path: Path, lie: str, builders: tuple[str, ...]) -> None:
    garble, words = LIES[lie]
    alone = sessions.whole(tmp_path / "alone")
    garbles: Garble = {"builder:0": garble}
    state, launcher = search(tmp_path / "s", garble=garbles, builders=builders)
    assert verdicts(state) == verdicts(alone)
    (lost,) = happened(tmp_path / "s", e.WorkerLost)
    assert isinstance(lost, e.WorkerLost)
    assert lost.name == "builder:0"
    assert words in lost.reason
    assert "not started again" in lost.reason
    assert len(launcher.links["builder:0"]) == 1
    assert built_on(tmp_path / "s") - {"builder:0"} <= set(builders[1:] or NAMES)


@pytest.mark.slow
def test_a_builder_without_a_compiler_is_named_and_workers_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def compile_(*_: object) -> None:
        raise ToolchainError("nvcc was not found")

    monkeypatch.setattr(fake_worker.FakeBuilder, "compile", compile_)
    alone = sessions.whole(tmp_path / "alone")
    state, _ = search(tmp_path / "s", builders=BUILDERS[:1])
    assert verdicts(state) == verdicts(alone)
    (lost,) = happened(tmp_path / "s", e.WorkerLost)
    assert isinstance(lost, e.WorkerLost)
    assert lost.reason == "it cannot build: nvcc was not found; it is not started again"
    assert built_on(tmp_path / "s") >= set(NAMES)


@pytest.mark.slow
def test_a_resumed_session_builds_what_it_built_before_again(tmp_path: Path) -> None:
    """A new engine does not know the binaries of kernels that an earlier one built."""
    launcher = fake_worker.MemoryLauncher(NAMES, builders=BUILDERS)
    built: list[str] = []

    async def act() -> SessionState:
        slow = FakeBench(Blobs(tmp_path).put, pause=0.05)
        async with LiveSession.create(tmp_path, sessions.opened(), sessions.ports(tmp_path, bench=slow)) as live:
            running = asyncio.ensure_future(live.run())
            await live.wait_until(lambda state: any(k.stage is Stage.VERIFY for k in state.kernels.values()))
            built.extend(k.id for k in live.state.kernels.values() if k.stage is Stage.VERIFY)
            running.cancel()
        bench = fleet(tmp_path, launcher)
        async with LiveSession.resume(tmp_path, replace(sessions.ports(tmp_path, bench=bench), workers=bench)) as live:
            await live.run()
            return live.state

    state: SessionState = sessions.run(act)
    assert state.closed
    builds = [event.work for event in happened(tmp_path, e.WorkAssigned) if event.to in BUILDERS]  # type: ignore[attr-defined]
    assert {f"build:{kernel}:0" for kernel in built} <= set(builds)


@pytest.mark.parametrize(
    ("device", "cores", "count"), [("cpu", 64, 0), ("cuda:0", 2, 1), ("cuda:0", 16, 4), ("cuda:0", 192, 8)]
)
def test_a_machine_has_builders_for_gpu_sessions(device: str, cores: int, count: int) -> None:
    assert builder_count(device, cores) == count


def test_a_builder_is_told_of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert worker_environment(WorkerPlace("builder:0", BUILD))["CUDA_VISIBLE_DEVICES"] == ""


@needs_bubblewrap
def test_a_builder_sees_no_device_file_of_a_gpu() -> None:
    command = without_devices(["ls", "/dev"])
    pretended = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--dev-bind", "/dev/null", "/dev/nvidia0", "--"]
    plain = subprocess.run([*pretended, "ls", "/dev"], capture_output=True, text=True, check=True).stdout.split()
    hidden = subprocess.run([*pretended, *command], capture_output=True, text=True, check=True).stdout.split()
    assert "nvidia0" in plain
    assert "nvidia0" not in hidden
    assert {"null", "zero", "urandom", "shm"} <= set(hidden)


def test_an_adopted_binary_is_found_until_it_is_damaged() -> None:
    name = adopt(b"\x7fELF x")
    assert name == m.blob_name(b"\x7fELF x")
    found = adopted(name)
    assert found is not None
    assert found.binary.is_relative_to(cache_folder())
    assert adopt(b"\x7fELF x") == name
    os.chmod(found.binary, 0o600)
    found.binary.write_bytes(b"\x7fELF y")
    assert adopted(name) is None
    assert adopted("0" * 64) is None


@pytest.mark.parametrize(
    ("content", "is_one"),
    [(b"\x7fELF x", True), (b"", False), (b"#!/bin/sh", False), (b"espalier device images 1\n\xff", False)],
)
def test_what_has_the_form_of_a_binary(content: bytes, is_one: bool) -> None:
    assert is_binary(content) == is_one


def with_versions(changes: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """The builder greets with these versions instead of this machine's."""

    def garble(frame: bytes) -> bytes:
        report = m.decode_report(frame)
        if not isinstance(report, m.WorkerReady):
            return frame
        return m.encode(msgspec.structs.replace(report, versions={**report.versions, **changes}))

    return garble


@pytest.mark.slow
def test_a_builder_with_other_versions_says_so_and_builds(tmp_path: Path) -> None:
    alone = sessions.whole(tmp_path / "alone")
    other = {"torch": "2.1", "nvcc": "9.2\x1b[2J\nnvcc 9.3"}
    state, _ = search(tmp_path / "s", garble={"builder:0": with_versions(other)}, builders=BUILDERS)
    assert verdicts(state) == verdicts(alone)
    joined = {event.name: event for event in happened(tmp_path / "s", e.BuilderJoined) if isinstance(event, e.BuilderJoined)}
    assert joined["builder:1"].notes == ()
    torch, nvcc = joined["builder:0"].notes
    assert torch.startswith("torch 2.1 there, ")
    assert nvcc.startswith("nvcc 9.2")
    assert nvcc.isprintable(), "what a builder sends is shown in a terminal"
    assert not happened(tmp_path / "s", e.WorkerLost)
    assert built_on(tmp_path / "s") == set(BUILDERS)
