"""Naive CUDA kernels on a device: compiled under the host contract, called on a stream, compared with float64."""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from engine.codegen.naive import naive
from engine.domain.model import Contract, Dialect
from engine.problem import catalog, header
from engine.problem.graph import trace_reference
from engine.problem.graph_ir import Graph
from engine.problem.reference import Reference
from engine.toolchain.compilers import find_nvcc

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

FOREIGN = Path(__file__).parents[1] / "problem" / "kernelbench"
PROBLEMS = [
    *catalog.shipped_names(),
    *(str(FOREIGN / f"{n}.py") for n in ("transformer", "batch_norm", "cross_entropy", "gru")),
]
FLOORS = {torch.float32: 3e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Frobenius norm of the error over that of the centred output; relative error for a single number."""
    spread = exact - exact.mean() if exact.numel() > 1 else exact
    return float((found.cpu().double() - exact).norm() / spread.norm().clamp(min=1e-30))


@pytest.mark.parametrize("spec", PROBLEMS, ids=lambda spec: Path(spec).stem)
def test_naive_cuda_kernel_is_as_accurate_as_eager(tmp_path: Path, spec: str) -> None:
    problem = catalog.find(spec)
    reference = Reference(problem, catalog.workload_for(problem, "small"))
    signature, graph = reference.signature(), trace_reference(reference)
    assert isinstance(graph, Graph)
    text = naive(graph, signature, Dialect.CUDA, Contract.HOST)
    assert isinstance(text, str)
    (tmp_path / "problem.h").write_text(header.render(signature, Dialect.CUDA, "small"))
    (tmp_path / "kernel.cu").write_text(text)
    nvcc = str(asyncio.run(find_nvcc()).path)
    major, minor = torch.cuda.get_device_capability()
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-O3", "-std=c++17", f"-arch=sm_{major}{minor}"]
    done = subprocess.run([*command, "kernel.cu", "-o", "k.so"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    library = ctypes.CDLL(str(tmp_path / "k.so"))
    size = 0
    if hasattr(library, "workspace_bytes"):
        library.workspace_bytes.restype = ctypes.c_size_t
        size = library.workspace_bytes()
    model, inputs = reference.model(1), reference.inputs(2)
    eager, exact = reference.call(model, inputs), reference.exact(model, inputs).outputs
    given = [t.cuda() for t in reference.arguments(model, inputs)]
    outputs = [torch.full_like(t, float("nan") if t.is_floating_point() else 77, device="cuda") for t in eager]
    scratch = torch.full((size + 256,), 0xFF, dtype=torch.uint8, device="cuda")
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*given, *outputs, scratch)]
    library.launch(*pointers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()
    assert bool((scratch[size:] == 0xFF).all()), "wrote beyond the workspace"
    for found, plain, right in zip(outputs, eager, exact, strict=True):
        if plain.is_floating_point():
            assert error(found, right) <= max(4 * error(plain, right), FLOORS[plain.dtype])
        else:
            assert torch.equal(found.cpu(), plain)
