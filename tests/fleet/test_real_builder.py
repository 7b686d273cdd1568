"""A builder's process with its real compilers: what it builds is verified on a worker that cannot compile."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest
from contracts.test_trial_bench import TestTrialBench as Sources

from engine.domain import events as e
from engine.domain import work as w
from engine.domain.model import ENGINE, Blob, Contract, Dialect
from engine.domain.state import Kernel
from engine.fleet.bench import FleetBench
from engine.fleet.links import WORKER, LocalLauncher
from engine.fleet.places import BUILD, WorkerPlace, core_groups
from engine.problem import catalog
from engine.trial.assignment import Assignment

TESTS = Path(__file__).parent.parent
SILENT = lambda _: None  # noqa: E731


def blob(payload: bytes) -> Blob:
    return hashlib.sha256(payload).hexdigest()


def kernel(name: str, code: str) -> tuple[Kernel, str]:
    return Kernel(name, "i1", None, 0, ENGINE, f"{name}.cpp", Dialect.CPP, Contract.HOST, blob(code.encode()), {}, False), code


@pytest.mark.slow  # a judge and real compilers
@pytest.mark.skipif(shutil.which("bwrap") is None or shutil.which("g++") is None, reason="bubblewrap or g++ is missing")
def test_a_worker_that_cannot_compile_verifies_what_a_builder_built(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "bwrap").symlink_to(shutil.which("bwrap") or "")
    poor = ("/usr/bin/env", f"PATH={programs}", f"ESPALIER_CACHE={tmp_path / 'worker'}", *WORKER)
    cores = tuple(core for group in core_groups() for core in group)
    problem = catalog.find(str(TESTS / "trial" / "problems" / "scaled_softmax"))
    launcher = LocalLauncher((WorkerPlace("cpu:0", "cpu", cores[:1]),), (WorkerPlace("builder:0", BUILD),), command=poor)
    bench = FleetBench(Assignment(problem, catalog.workload_for(problem, "small"), "cpu"), blob, launcher)
    happened: list[e.Event] = []

    async def act() -> tuple[object, object, object]:
        bench.listen(happened.extend)
        try:
            good = kernel("good", Sources.good)
            built = await bench.build(*good, SILENT)
            bad = await bench.build(*kernel("bad", "this is no C++"), SILENT)
            return built, await bench.verify(*good, SILENT), bad
        finally:
            await bench.close()

    built, verified, bad = asyncio.run(act())
    assert isinstance(built, w.Built), built
    assert isinstance(verified, w.Verified | w.Suspected), verified
    assert isinstance(bad, w.Failed), bad
    assert "error" in bad.failure.reason
    assert built.machine_code
    assert built.instructions
    places = {event.work: event.to for event in happened if isinstance(event, e.WorkAssigned)}
    assert places == {"build:good:0": "builder:0", "build:bad:0": "builder:0", "verify:good:0": "cpu:0"}
    (joined,) = [event for event in happened if isinstance(event, e.BuilderJoined)]
    assert not joined.notes
