"""Counters of kernels on a CPU through the whole program: real session, compiler, judge and sandbox, a perf that pretends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fake_perf import COUNTS, REFUSAL, FakePerf
from support.program import SHRINK, CommandResult, command, environment

pytestmark = pytest.mark.slow
MODULE = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))

    def forward(self, x, floor):
        return torch.relu(x * self.weight - floor)
"""
VECTORS = """#include "problem.h"
#include <cstdio>
#include <cstdint>
#include <cstdlib>
extern "C" void launch(const x_t* x, const weight_t* weight, out_t* out, void*)
{
    if ((uintptr_t) x % 512 || (uintptr_t) out % 512) abort();
    printf("a kernel that talks, without an end of line");
    for (long i = 0; i < X_NUMEL; ++i) {
        const float v = x[i] * weight[i % X_DIM1] - 0.25f;
        out[i] = v > 0.0f ? v : 0.0f;
    }
}
"""
CALL = {
    "cpu_us": 1500.0, "instructions": 5e6, "cycles": 4e6, "branches": 4e5, "branch_misses": 2e3, "cache_references": 9e4,
    "cache_misses": 4e3, "l1_misses": 6e4, "ipc": 1.25,
}  # fmt: skip
"""What ``COUNTS`` says of one call once opening and closing the counters is taken off."""


@dataclass(frozen=True)
class Place:
    """A folder with a session of three kernels, and a perf at the head of the PATH."""

    folder: Path

    @property
    def perf(self) -> FakePerf:
        return FakePerf(self.folder / "bin")

    @property
    def env(self) -> Mapping[str, str]:
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return environment(self.folder / "home", PATH=path)

    def call(self, *arguments: object, env: Mapping[str, str] | None = None) -> CommandResult:
        done = subprocess.run(
            command(*arguments), env={**self.env, **(env or {})}, cwd=self.folder, capture_output=True, text=True, timeout=150,
            check=False,
        )  # fmt: skip
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def profiled(self, kernel: str) -> CommandResult:
        return self.call("kernel", "profile", "./session", kernel, "--json")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("counted")
    (folder / "shrink.py").write_text(SHRINK)
    (folder / "vectors.cpp").write_text(VECTORS)
    (folder / "module.py").write_text(MODULE)
    found = Place(folder)
    found.perf.install()
    small = ("--device", "cpu", "--headless", "--rounds", "1", "--ideas", "1", "--branch", "1")
    started = found.call("run", "shrink.py", *small, "--session", "session", "--json")
    assert started.status in (0, 4), started.err  # not corroborated beside other work: profiles do not need it
    for kernel in ("vectors.cpp", "module.py"):
        seeded = found.call("kernel", "seed", "./session", kernel, "--parent", "k1")
        assert seeded.status == 0, seeded.err
    return found


@pytest.fixture(autouse=True)
def usual(place: Place) -> None:
    place.perf.answer()


def test_each_counter_is_of_one_call_and_compared_with_the_parent_s(place: Place) -> None:
    place.perf.answer({**COUNTS, "instructions": (30_000, 10_000_000), "cache-misses": (100, 4_000)})
    assert place.profiled("k1").status == 0
    place.perf.answer()
    result = place.call("kernel", "profile", "./session", "k2")
    assert result.status == 0, result.out + result.err
    assert "mean of" in result.out
    assert "by perf" in result.out
    assert "compared with k1" in result.out
    row = next(line for line in result.out.splitlines() if line.startswith("instructions  "))
    assert row.split() == ["instructions", "5", "M", "−50%", "from", "10", "M"]
    assert "cache misses" in result.out
    assert "unchanged" in result.out
    assert "1.25 instructions a cycle: the cores stall part of the time." in result.out
    assert "Likely bottleneck: memory traffic" in result.out
    assert "not counted on this machine: LLC-load-misses" in result.out


def test_a_module_is_profiled_without_the_cost_of_opening_counters(place: Place) -> None:
    result = place.profiled("k3")
    assert result.status == 0, result.out + result.err
    found = result.json()
    assert (found["tool"], found["launches"]) == ("perf", 1)
    assert found["calls"] >= 3
    assert found["metrics"] == pytest.approx({**CALL, "calls": found["calls"]}, rel=1e-3)
    assert found["reason"] == "not counted on this machine: LLC-load-misses"
    assert found["summary"].startswith("1.25 instructions a cycle")


def test_a_setting_that_forbids_counters_is_named(place: Place) -> None:
    place.perf.answer(refusal=REFUSAL)
    result = place.call("kernel", "profile", "./session", "k3")
    assert result.status == 1, "a module has no machine code of its own to sample"
    assert "kernel.perf_event_paranoid is 4" in result.out
    assert "sysctl kernel.perf_event_paranoid=2" in result.out
    assert result.out.count("\n") == 1


def test_a_machine_without_counters_samples_the_program_counter(place: Place) -> None:
    place.perf.answer({"task-clock": (0.02, 1.5)})
    result = place.profiled("k1")
    assert result.status == 0, result.out + result.err
    found = result.json()
    assert "no hardware counters" in found["reason"]
    assert found["hot_code"]["samples"] >= 100


def test_a_missing_perf_names_its_package(place: Place, tmp_path: Path) -> None:
    result = place.call("kernel", "profile", "./session", "k1", env={"PATH": str(tmp_path)})
    assert result.status == 1
    assert "perf is not installed" in result.out
