"""Nsight Compute on a real device: metrics of a kernel with known traffic, or the reason why there are none."""

from __future__ import annotations

import asyncio

import pytest

from engine.domain.model import Contract, Dialect
from engine.domain.profile import Profile
from engine.problem import catalog
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.tools import ncu

pytestmark = pytest.mark.gpu

KERNEL = """#include "problem.h"
// @launch touch(x, out) grid((OUT_NUMEL + 255) / 256) block(256)
extern "C" __global__ void touch(const float* x, float* out)
{
    long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < OUT_NUMEL) out[i] = x[i] * 2.0f;
}
"""


MODULE = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)
"""


def profiled(source: KernelSpec) -> Profile:
    problem = catalog.find("softmax")
    bench = TrialBench(Assignment(problem, catalog.workload_for(problem, "small"), "cuda:0"), lambda _: "blob")

    async def work() -> Profile:
        try:
            return await bench.profile_kernel(source, lambda _: None)
        finally:
            await bench.close()

    return asyncio.run(work())


@pytest.mark.parametrize(
    "source",
    [
        KernelSpec("touch.cu", KERNEL, Dialect.CUDA, Contract.PLAN),
        KernelSpec("soft.py", MODULE, Dialect.PYTHON, Contract.MODULE),
    ],
)  # fmt: skip
def test_a_call_is_profiled_or_a_reason_is_given(source: KernelSpec) -> None:
    found = profiled(source)
    if ncu.find_tool() is None:
        assert "not installed" in found.note
    elif not found.tool:
        assert found.note.startswith("ncu: ")
        pytest.skip(found.note)
    else:
        assert found.launches == 1, "one call, and nothing that goes before it"
        assert found.metrics["duration_us"] > 0
        assert 0 < found.metrics["occupancy_percent"] <= 100
        assert found.metrics["registers"] >= 8
        assert found.stalls
