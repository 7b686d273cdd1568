"""Where the time of a verdict goes: ``python benchmarks/verdict_stages.py --device cpu --runs 3``.

Each verdict is an ``espalier eval`` in a fresh process, and its time is printed stage by stage: imports, the probes of the
sandbox, the start of the judge (with torch), the problem, ceilings, preparation, build, verification, measurement, the end.
*cold*: nothing is cached. *prepared*: the problem was evaluated before, with another kernel. Kernels: a plan and a host kernel
of the playbook, a module of PyTorch operators, one with an inline extension, one with ``torch.compile``; and one that is wrong.
On a GPU also a Triton module, where Triton is installed. ``--compilers`` counts the compilers that ran, from ``/proc``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COMPILERS = ("cc1plus", "cicc", "cudafe++", "ptxas", "nvcc")
_MODULE = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.exp(x - x.amax(1, keepdim=True))
        return y / y.sum(1, keepdim=True)
"""
_WRONG = _MODULE.replace("return y", "return 0.9 * y")
_COMPILED = """import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.run = torch.compile(lambda x: torch.softmax(x, 1))

    def forward(self, x):
        return self.run(x)
"""
_INLINE_CPP = """import torch
from torch.utils.cpp_extension import load_inline

_code = "#include <torch/extension.h>\\nat::Tensor run(at::Tensor x) { return at::softmax(x, 1); }"
_built = load_inline("softmax_ext", _code, functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return _built.run(x)
"""
_INLINE_CUDA = '''import torch
from torch.utils.cpp_extension import load_inline

_code = """
#include <torch/extension.h>
__global__ void rows(const float* x, float* y, long n) {
  __shared__ float part[256];
  const float* in = x + blockIdx.x * n;
  float top = -INFINITY, sum = 0;
  for (long i = threadIdx.x; i < n; i += 256) top = fmaxf(top, in[i]);
  part[threadIdx.x] = top; __syncthreads();
  for (int s = 128; s; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + s]);
    __syncthreads();
  }
  top = part[0]; __syncthreads();
  for (long i = threadIdx.x; i < n; i += 256) sum += expf(in[i] - top);
  part[threadIdx.x] = sum; __syncthreads();
  for (int s = 128; s; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  for (long i = threadIdx.x; i < n; i += 256) y[blockIdx.x * n + i] = expf(in[i] - top) / part[0];
}
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  rows<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""
_built = load_inline("softmax_ext", "torch::Tensor run(torch::Tensor x);", _code, functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return _built.run(x)
'''
_TRITON = """import torch
import triton
import triton.language as tl


@triton.jit
def rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    at = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        top = tl.maximum(top, tl.load(x + row + start + at, mask=start + at < n, other=float("-inf")))
    most = tl.max(top, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.exp(tl.load(x + row + start + at, mask=start + at < n, other=float("-inf")) - most)
    whole = tl.sum(total, 0)
    for start in range(0, n, BLOCK):
        value = tl.exp(tl.load(x + row + start + at, mask=start + at < n, other=float("-inf")) - most) / whole
        tl.store(y + row + start + at, value, mask=start + at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=4096)
        return y
"""


def kernels(device: str) -> dict[str, str | Path]:
    """The kernels by kind: a file of the playbook, or a module's text."""
    from engine.problem import catalog

    playbook = catalog.problems_root() / "softmax" / "playbook"
    modules: dict[str, str | Path] = {"module": _MODULE, "wrong": _WRONG, "compile": _COMPILED}
    if device == "cpu":
        return {"host": playbook / "vector_cores.cpp", **modules, "inline": _INLINE_CPP}
    found: dict[str, str | Path] = {"plan": playbook / "online.cu", "host": playbook / "online_host.cu", **modules}
    triton = {"triton": _TRITON} if importlib.util.find_spec("triton") else {}
    return {**found, **triton, "inline": _INLINE_CUDA}


class Stages:
    """Seconds by stage, in the order in which they began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def watch_judge(stages: Stages) -> None:
    """Time every request to the judge, and what it says it does meanwhile."""
    from engine.trial.client import JudgeClient

    plain_start, plain_ask, plain_close = JudgeClient.start, JudgeClient.ask, JudgeClient.close

    async def start(self: JudgeClient, *given: Any) -> None:
        began = time.monotonic()
        await plain_start(self, *given)
        stages.add("judge: process", time.monotonic() - began)

    async def ask(self: JudgeClient, request: Any, say: Any, fds: Sequence[int] = ()) -> Any:
        at = [time.monotonic(), type(request).__name__.removesuffix("Request").lower()]

        def heard(text: str) -> None:
            now = time.monotonic()
            stages.add(f"judge: {at[1]}", now - at[0])
            at[0] = now
            at[1] = f"{type(request).__name__.removesuffix('Request').lower()}: {text.partition(' (')[0].rstrip(' 0123456789')}"
            say(text)

        try:
            return await plain_ask(self, request, heard, fds)
        finally:
            stages.add(f"judge: {at[1]}", time.monotonic() - at[0])

    async def close(self: JudgeClient) -> None:
        began = time.monotonic()
        await plain_close(self)
        stages.add("judge: end", time.monotonic() - began)

    JudgeClient.start, JudgeClient.ask, JudgeClient.close = start, ask, close  # type: ignore[method-assign]


async def one(file: Path, device: str, began: float) -> dict[str, Any]:
    """Evaluate one kernel in this process, as ``espalier eval`` does."""
    stages = Stages()
    from engine.domain.model import Failure
    from engine.problem import catalog
    from engine.session.requirements import check_requirements, sandbox_warning
    from engine.session.seeds import kernel_spec, seed_of
    from engine.session.workbench import open_workbench
    from engine.toolchain.kernel_file import read_kernel_file
    from engine.trial.bench import Assignment

    stages.add("engine: imports", time.time() - began)
    mark = time.monotonic()
    await check_requirements(device)
    sandbox_warning()
    stages.add("engine: compilers and sandbox", time.monotonic() - mark)
    watch_judge(stages)
    problem = catalog.find("softmax")
    workload = catalog.workload_for(problem, "small" if device == "cpu" else "full")
    seed = seed_of(read_kernel_file(file), {})
    assignment = Assignment(problem, workload, device, prepared=True, contract=seed.kernel.contract)
    async with open_workbench(assignment, lambda _: None, accept_unverifiable=False) as bench:
        tried = await bench.attempt(kernel_spec(seed.kernel, seed.tunables))
        stages.add("engine: build", tried.build_s)
    failure: Failure | None = getattr(tried.final, "failure", None)
    return {
        "stages": stages.seconds, "total": time.time() - began, "status": failure.reason if failure else "measured",
    }  # fmt: skip


class CompilerCount:
    """Counts the compiler processes of this machine while it is open."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CompilerCount:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(self._seen.values()).items()))

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
                if pid in self._seen:
                    continue
                try:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                except OSError:
                    continue
                if name in _COMPILERS:
                    self._seen[pid] = name


def evaluated(file: Path, device: str, cache: str) -> dict[str, Any]:
    """The stages of one evaluation in a fresh process."""
    environment = {**os.environ, "ESPALIER_CACHE": cache}
    command = [sys.executable, __file__, "--one", str(file), "--device", device, "--began", repr(time.time())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(name: str, runs: Sequence[dict[str, Any]], compilers: dict[str, int]) -> None:
    """Print the median of each stage."""
    total = statistics.median(run["total"] for run in runs)
    counted = f"  compilers: {compilers}" if compilers else ""
    print(f"\n{name}: {total:.2f} s, {runs[-1]['status'][:90]}{counted}")
    for stage in dict.fromkeys(stage for run in runs for stage in run["stages"]):
        seconds = statistics.median(run["stages"].get(stage, 0.0) for run in runs)
        if seconds >= 0.005:
            print(f"  {seconds:7.2f}  {stage}")
    sys.stdout.flush()


def main() -> None:
    """Print the stages of every kind of kernel, cold and prepared; a JSON object with the totals last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kinds", default="", help="for example host,inline; default: all")
    parser.add_argument("--compilers", action="store_true", help="count the compilers that ran")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(one(options.one, options.device, options.began))))
        return
    chosen = kernels(options.device)
    wanted = options.kinds.split(",") if options.kinds else list(chosen)
    totals: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: _written(Path(folder), kind, chosen[kind]) for kind in wanted}
        other = _written(Path(folder), "other", _MODULE + "\n# another kernel\n")
        for kind, file in files.items():
            for state in ("cold", "prepared"):
                runs = []
                with CompilerCount() as count:
                    for _ in range(options.runs):
                        with tempfile.TemporaryDirectory() as cache:
                            if state == "prepared":
                                evaluated(other, options.device, cache)
                            runs.append(evaluated(file, options.device, cache))
                report(f"{kind}, {state}", runs, count.counts() if options.compilers else {})
                totals[f"{kind}_{state}_s"] = round(statistics.median(run["total"] for run in runs), 2)
    print(json.dumps(totals))


def _written(folder: Path, kind: str, kernel: str | Path) -> Path:
    if isinstance(kernel, Path):
        return kernel
    (folder / f"{kind}.py").write_text(kernel)
    return folder / f"{kind}.py"


if __name__ == "__main__":
    main()
