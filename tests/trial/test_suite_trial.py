"""A suite with the real judge: a kernel is right on each workload or not right, and each has its figures."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.domain import work as w
from engine.domain.model import FailedWorkload, FailureKind
from engine.domain.preparation import Peaks
from engine.problem import catalog
from engine.toolchain.kernel_file import classify
from engine.trial.bench import Assignment, KernelSpec, TrialBench

REFERENCE = """import torch

rows, width = 8, 64


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
"""
TABLE = """
[workloads.flat]
rows = 8
width = 512

[workloads.tall]
rows = 300
width = 16

[suites]
both = ["flat", "tall"]
"""
RIGHT = """#include "problem.h"
extern "C" void launch(const float* x, float* out, void*)
{
    for (long i = 0; i < OUT_NUMEL; ++i) out[i] = x[i] > 0 ? 2 * x[i] : 0;
    WRONG
}
"""


def kernel(wrong: str) -> KernelSpec:
    code = RIGHT.replace("WRONG", wrong)
    return KernelSpec("k.cpp", code, *classify(code, "k.cpp"), {})


async def judged(folder: Path, said: list[str]) -> tuple[w.Failed | None, w.Verified | w.Suspected | w.Failed]:
    """What is found of a kernel that is wrong on the second workload, and of a right one; what was ``said`` meanwhile."""
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "problem.toml").write_text(TABLE)
    problem = catalog.find(str(folder))
    first, *rest = catalog.suite_for(problem, "both")
    peaks = Peaks(1e12, {"fp32": 1e13})
    bench = TrialBench(Assignment(problem, first, "cpu", rest=tuple(rest), suite="both", peaks=peaks), lambda _: "")
    try:
        async with asyncio.timeout(120):
            wrong = await bench.check_kernel(kernel("if (ROWS == 300) out[7] += 1;"), lambda _: None)
            return wrong, await bench.verify_kernel(kernel(""), said.append)
    finally:
        await bench.close()


def test_a_kernel_must_be_right_on_every_workload_of_the_suite(tmp_path: Path) -> None:
    said: list[str] = []
    wrong, right = asyncio.run(judged(tmp_path, said))
    assert isinstance(right, w.Verified), right
    assert [one.workload for one in right.screen.by_workload] == ["flat", "tall"]
    assert wrong is not None
    assert wrong.failure.kind is FailureKind.MISMATCH
    assert wrong.failure.reason.startswith("on workload tall: ")
    assert wrong.failure.failed_on == FailedWorkload("tall", passed=("flat",))
    assert [one for one in said if "quick" in one] == [
        f"workload {n} of 2, {name}: quick timing" for n, name in ((1, "flat"), (2, "tall"))
    ]
