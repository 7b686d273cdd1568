"""A fleet fulfils the contract of every bench: two workers in this process, and two as processes of their own."""

from __future__ import annotations

import pytest
from contracts.bench_contract import ScriptedBenchContract
from support import builders, fake_worker

from engine.fleet.bench import FleetBench
from engine.fleet.links import LocalLauncher
from engine.fleet.places import WorkerPlace
from engine.session.ports import Bench, StoreBlob
from engine.trial.assignment import Assignment


def assignment() -> Assignment:
    problem = builders.opened().problem
    return Assignment(problem, problem.workloads[0], "cpu")


class TestFleetInOneProcess(ScriptedBenchContract):
    @classmethod
    def bench(cls, store: StoreBlob) -> Bench:
        return FleetBench(assignment(), store, fake_worker.MemoryLauncher(("cpu:0", "cpu:1")))


@pytest.mark.slow  # two processes that import the toolchain
class TestFleetOfProcesses(TestFleetInOneProcess):
    @classmethod
    def bench(cls, store: StoreBlob) -> Bench:
        places = (WorkerPlace("cpu:0", "cpu"), WorkerPlace("cpu:1", "cpu"))
        return FleetBench(assignment(), store, LocalLauncher(places, command=fake_worker.COMMAND))
