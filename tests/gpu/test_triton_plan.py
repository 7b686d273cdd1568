"""Triton plans on a GPU: compiled ahead, launched by trusted code, compared with eager."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.triton_interpreter import installed, resolved_for

from engine.domain.model import Contract, Dialect, Operand, Role, Signature
from engine.sandbox.confinement import detect
from engine.toolchain import device_images
from engine.toolchain.build import Artefact, BuildRequest, build
from engine.toolchain.triton.resolution import encode_jobs
from engine.trial.runner.gpu_launch import Module, PreparedPlan
from engine.trial.shared.cuda import driver

pytestmark = [pytest.mark.gpu, installed, pytest.mark.usefixtures("cache_root")]

ROWS, COLS = 64, 256
CODE = """\
import triton
import triton.language as tl
# @workspace 4 * X_NUMEL zero
# @launch tiles(x, workspace, X_DIM0) grid(X_DIM0 / 16) num_warps(2)
# @launch scale(workspace, out, EPS, 3) grid(X_DIM0)

@triton.jit
def tiles(x, kept, rows, X_DIM1: tl.constexpr):
    a = tl.make_tensor_descriptor(x, shape=[rows, X_DIM1], strides=[X_DIM1, 1], block_shape=[16, 64])
    b = tl.make_tensor_descriptor(kept, shape=[rows, X_DIM1], strides=[X_DIM1, 1], block_shape=[16, 64])
    for start in range(0, X_DIM1, 64):
        b.store([tl.program_id(0) * 16, start], a.load([tl.program_id(0) * 16, start]))

@triton.jit
def scale(kept, out, eps, n, X_DIM1: tl.constexpr):
    i = tl.program_id(0) * X_DIM1 + tl.arange(0, X_DIM1)
    tl.store(out + i, tl.load(kept + i) * n + eps)
"""


@pytest.fixture
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path))


@pytest.fixture
def context() -> Iterator[driver.Context]:
    torch.cuda.init()
    found = driver.Context.open(0)
    yield found
    found.close()


def test_two_images_with_scratch_and_numbers(context: driver.Context) -> None:
    operands = (Operand("x", Role.INPUT, (ROWS, COLS), "float32"), Operand("out", Role.OUTPUT, (ROWS, COLS), "float32"))
    resolved = resolved_for(CODE, Signature(operands, {"EPS": 0.5}))
    request = BuildRequest(
        CODE, Dialect.TRITON, Contract.PLAN, encode_jobs(resolved.jobs), {}, driver.describe(0).arch, "k.py"
    )  # fmt: skip
    artefact = asyncio.run(_built(request))
    data = artefact.binary.read_bytes()
    modules = [Module.load(cubin) for cubin in device_images.cubins(data)]
    plan = device_images.bind(resolved.plan, data)
    x = torch.randn(ROWS, COLS, device="cuda")
    out = torch.full_like(x, float("nan"))
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    loaded = [module for module in modules if isinstance(module, Module)]
    assert len(loaded) == 2
    prepared = PreparedPlan.prepare(loaded, plan, {"x": x.data_ptr(), "out": out.data_ptr()}, workspace=workspace.data_ptr())
    assert isinstance(prepared, PreparedPlan), prepared
    assert prepared() is None
    torch.cuda.synchronize()
    assert torch.allclose(out, x * 3 + 0.5, atol=1e-6)  # the kernel's product and sum are one operation


async def _built(request: BuildRequest) -> Artefact:
    outcome = await build(request, await detect())
    assert isinstance(outcome, Artefact), outcome
    return outcome
