"""Failures under perf: kernels that crash during counted calls, and perf versions without --control."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.fake_perf import FakePerf

from engine.domain.model import Contract, Dialect
from engine.domain.profile import Profile
from engine.problem import catalog
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.tools import perf

CRASHES = '#include "problem.h"\nextern "C" void launch(const x_t*, out_t*, void*) { *(volatile int*) nullptr = 1; }\n'
LEAVES = '#include "problem.h"\n#include <cstdlib>\nextern "C" void launch(const x_t*, out_t*, void*) { _Exit(0); }\n'
RAISES = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        raise ValueError('not today')\n"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePerf:
    found = FakePerf(tmp_path / "bin")
    found.install()
    monkeypatch.setenv("PATH", str(found.folder), prepend=":")
    return found


def profiled(*sources: KernelSpec) -> list[Profile]:
    problem = catalog.find("softmax")
    bench = TrialBench(Assignment(problem, catalog.workload_for(problem, "small"), "cpu", cold=False), lambda _: "blob")

    async def work() -> list[Profile]:
        try:
            return [await bench.profile_kernel(source, lambda _: None) for source in sources]
        finally:
            await bench.close()

    return asyncio.run(work())


@pytest.mark.slow
def test_a_kernel_that_exits_is_a_note(fake: FakePerf) -> None:
    crashed, left, raised, unbuilt = profiled(
        KernelSpec("crashes.cpp", CRASHES, Dialect.CPP, Contract.HOST),
        KernelSpec("leaves.cpp", LEAVES, Dialect.CPP, Contract.HOST),
        KernelSpec("raises.py", RAISES, Dialect.PYTHON, Contract.MODULE),
        KernelSpec("unbuilt.cpp", "int launch", Dialect.CPP, Contract.HOST),
    )
    for found in (crashed, left, raised):
        assert found.tool == ""
        assert found.note.startswith("the kernel did not finish under perf, status ")
        assert found.log == "blob"
    assert raised.note.endswith("ValueError: not today")
    assert unbuilt.note.startswith("does not build: ")


def test_a_broken_perf_is_a_note(fake: FakePerf) -> None:
    program = fake.folder / "perf"
    program.write_text("#!/bin/sh\necho 'WARNING: perf not found for kernel 6.8.0-31' >&2\nexit 2\n")
    assert asyncio.run(perf.perf_support()) == perf.NoCounters(
        "perf: perf is not installed for this kernel (on Ubuntu: apt install linux-tools-$(uname -r))"
    )
    program.write_text("#!/nowhere/sh\n")
    found = asyncio.run(perf.perf_support())
    assert isinstance(found, perf.NoCounters)
    assert "cannot be run" in found.reason


def test_only_supported_events_are_requested(fake: FakePerf) -> None:
    fake.answer({"task-clock": (1, 1), "cycles": (5, 5), "instructions": "<not counted>"})
    found = asyncio.run(perf.perf_support())
    assert isinstance(found, perf.PerfSupport)
    assert found.events == ("task-clock", "instructions", "cycles"), "a program that does nothing may have been too short"


def test_perf_starts_disabled_and_writes_outside_the_sandbox(tmp_path: Path) -> None:
    words = perf.arguments(Path("/usr/bin/perf"), ["cycles", "branches"], Path("/c"), Path("/a"), Path("/t"))
    assert words == "/usr/bin/perf stat -x, -e cycles,branches --delay -1 --control fifo:/c,/a -o /t --".split()
