"""On a GPU: a device's lease is named by its UUID, and a module's inline extension is compiled once, before its trial."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from engine.domain.model import Contract, Dialect
from engine.problem import catalog
from engine.session.workbench import open_workbench
from engine.trial import lease
from engine.trial.bench import Assignment, KernelSpec

pytestmark = pytest.mark.gpu

EXTENSION = '''
import torch
from torch.utils.cpp_extension import load_inline

_code = """
#include <torch/extension.h>
__global__ void twice(const float* x, float* y, long n) {
  long i = blockIdx.x * 256L + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
_built = load_inline("twice_ext", "torch::Tensor run(torch::Tensor x);", _code, functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return _built.run(x)
'''
REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return 2 * x


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return []
"""


def test_the_lease_of_a_gpu_has_its_uuid() -> None:
    assert re.fullmatch(r"gpu-[0-9a-f]{32}", lease.device_key("cuda:0"))


def test_an_inline_extension_is_compiled_before_the_trial_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "twice.py").write_text(REFERENCE)
    problem = catalog.find(str(tmp_path / "twice.py"))
    kernel = KernelSpec("twice_ext.py", EXTENSION, Dialect.PYTHON, Contract.MODULE, {})

    async def seconds() -> tuple[float, float]:
        assignment = Assignment(problem, problem.workloads[0], "cuda:0", prepared=True)
        async with open_workbench(assignment, lambda _: None, accept_unverifiable=False) as bench:
            tried = await bench.attempt(kernel)
            assert tried.measurement is not None, tried.final
            assert tried.verify_s is not None
            return tried.build_s, tried.verify_s

    built, verified = asyncio.run(seconds())
    assert next((tmp_path / "cache").rglob("caches.tar")).stat().st_size > 0
    assert verified < built, "the runner compiled again"
    again, _ = asyncio.run(seconds())
    assert again < built / 2
