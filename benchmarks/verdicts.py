"""Latency of a verdict, and verdicts per minute: ``python benchmarks/verdicts.py --device cuda:0``.

Latency: every kernel of the chosen playbooks, from code to precise verdict with nothing cached and warm hosts. Rate: tunable
variants of one playbook, with builds ahead on every core and precise measurements as in a session, and the share of time in
which the device was verifying or measuring. With ``--kernelbench PATH`` (the ``src`` folder of a KernelBench checkout) the
host-contract softmax kernel is also evaluated by KernelBench at its defaults, in the same run, and the ratio is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from engine.domain import work
from engine.domain.model import Dialect
from engine.problem import catalog, header
from engine.session.seeds import kernel_spec, seed_of
from engine.session.workbench import KernelTrial, Workbench, open_workbench
from engine.toolchain.kernel_file import read_kernel_file
from engine.toolchain.tunables import parse_requires, parse_tunables, variants
from engine.trial.bench import Assignment, KernelSpec

_SAMPLE = "softmax"
_INLINE = "online_host.cu"


def playbook_sources(problem: str, dialect: str) -> Iterator[Path]:
    """Kernel files of a playbook's ideas, without the naive port."""
    folder = catalog.problems_root() / problem / "playbook"
    for idea in tomllib.loads((folder / "playbook.toml").read_text()).get("idea", []):
        yield from (folder / name for name in idea.get(dialect, []))


def with_defaults(path: Path) -> KernelSpec:
    """The kernel in ``path`` with the first value of each tunable."""
    seed = seed_of(read_kernel_file(path), {})
    return kernel_spec(seed.kernel, seed.tunables)


def latency_row(name: str, tried: KernelTrial) -> str:
    """One line of the latency table."""
    seconds = [tried.build_s, tried.verify_s or 0.0, tried.measure_s or 0.0]
    measured = tried.measurement
    found = f"{measured.time_us.value:9.1f} us" if measured else "failed"
    stages = "  ".join(f"{stage} {s:5.2f}" for stage, s in zip(("build", "verify", "measure"), seconds, strict=True))
    return f"  {name:34} {found:>14}  {stages}  = {sum(seconds):5.2f} s"


async def latency(device: str, problems: list[str]) -> list[float]:
    """Seconds from code to precise verdict of each measured kernel."""
    dialect = "cuda" if device != "cpu" else "cpp"
    totals: list[float] = []
    for problem in problems:
        async with warm_bench(problem, device) as bench:
            for path in playbook_sources(problem, dialect):
                tried = await bench.attempt(with_defaults(path))
                print(latency_row(f"{problem}/{path.name}", tried), flush=True)
                if tried.measurement is not None:
                    totals.append(tried.build_s + (tried.verify_s or 0.0) + (tried.measure_s or 0.0))
    return totals


def warm_bench(problem: str, device: str):  # type: ignore[no-untyped-def]
    """A warm bench for one problem."""
    found = catalog.find(problem)
    workload = catalog.workload_for(found, "full" if device != "cpu" else "small")
    return open_workbench(Assignment(found, workload, device), lambda _: None, accept_unverifiable=False)


async def rate(device: str, most: int) -> dict[str, float]:
    """Verdicts per minute with builds ahead of the device, and the device's utilisation.

    As in a session every kernel is verified and screened, and those are measured precisely whose screen says they may lead.
    """
    dialect = "cuda" if device != "cpu" else "cpp"
    async with warm_bench(_SAMPLE, device) as bench:
        queue = list(all_variants(bench, dialect))[:most]
        ahead = asyncio.Semaphore(os.cpu_count() or 1)

        async def build(source: KernelSpec) -> None:
            async with ahead:
                await bench.bench.build_candidate(source, lambda _: None)

        began = time.monotonic()
        builds = [asyncio.create_task(build(source)) for source in queue]
        best, precise, waited = 0.0, 0, 0.0
        for source, built in zip(queue, builds, strict=True):
            idle = time.monotonic()
            await built
            waited += time.monotonic() - idle
            verified = await bench.bench.try_verify(source, lambda _: None)
            if isinstance(verified, work.Verified) and verified.screen.speedup["eager"].high > best:
                measured = await bench.bench.try_measure(source, lambda _: None)
                if isinstance(measured, work.Measured):
                    precise += 1
                    best = max(best, measured.measurement.speedup["eager"].low)
        seconds = time.monotonic() - began
        return {
            "rate_verdicts": len(queue), "precise_among_them": precise, "rate_per_minute": 60 * len(queue) / seconds,
            "device_in_use": 1 - waited / seconds,
        }  # fmt: skip


def all_variants(bench: Workbench, dialect: str) -> Iterator[KernelSpec]:
    """Every kernel file of the sample playbook with up to eight combinations of its tunables."""
    names = header.plan_names(bench.signature, bench.device.units)
    for path in playbook_sources(_SAMPLE, dialect):
        kernel = read_kernel_file(path)
        tunables = parse_tunables(kernel.text, kernel.dialect)
        requires = parse_requires(kernel.text, kernel.dialect)
        for chosen in variants(tunables, requires, names, 8, 0):
            yield kernel_spec(kernel, chosen)


def inline_module(problem: str, signature_header: str, source: KernelSpec) -> str:
    """The host-contract kernel as a typical KernelBench answer: an inline extension with a torch binding."""
    defines = "\n".join(f"#define {name} {value}" for name, value in source.tunables.items())
    body = source.text.replace('#include "problem.h"', signature_header)
    code = f"{defines}\n#include <torch/extension.h>\n#include <c10/cuda/CUDAStream.h>\n{body}\n" + (
        "torch::Tensor run(torch::Tensor x) { auto out = torch::empty_like(x);"
        " launch(x.data_ptr<float>(), out.data_ptr<float>(), nullptr, c10::cuda::getCurrentCUDAStream()); return out; }"
    )
    return (
        "import torch\nfrom torch.utils.cpp_extension import load_inline\n"
        f"_code = {code!r}\n"
        "_built = load_inline('inline_kernel', 'torch::Tensor run(torch::Tensor x);', _code, functions=['run'])\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return _built.run(x)\n"
    )


def by_kernelbench(checkout: str, reference: str, module: str) -> float:
    """Seconds that KernelBench's evaluator takes for one candidate in a separate process, including the build."""
    script = (
        "import sys, json, torch\nfrom kernelbench.eval import eval_kernel_against_ref\n"
        "ref, new = open(sys.argv[1]).read(), open(sys.argv[2]).read()\n"
        "r = eval_kernel_against_ref(ref, new, num_correct_trials=5, num_perf_trials=100, measure_performance=True,"
        " build_dir=sys.argv[3], device=torch.device('cuda:0'))\nprint(r)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ref.py").write_text(reference)
        (Path(folder) / "new.py").write_text(module)
        command = [sys.executable, "-c", script, f"{folder}/ref.py", f"{folder}/new.py", f"{folder}/build"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([checkout, os.environ.get("PYTHONPATH", "")])}
        began = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    print(f"  KernelBench: {done.stdout.strip()[-300:]} {done.stderr.strip()[-300:] if done.returncode else ''}")
    return seconds


async def against_kernelbench(device: str, checkout: str) -> tuple[float, float]:
    """(seconds by KernelBench, seconds here) for the same kernel"""
    async with warm_bench(_SAMPLE, device) as bench:
        source = with_defaults(catalog.problems_root() / _SAMPLE / "playbook" / _INLINE)
        text = header.render(bench.signature, Dialect.CUDA, "full")
        tried = await bench.attempt(source)
        print(latency_row(f"{_SAMPLE}/{_INLINE}", tried))
        problem = catalog.find(_SAMPLE)
        theirs = by_kernelbench(checkout, problem.reference, inline_module(_SAMPLE, text, source))
        return theirs, tried.build_s + (tried.verify_s or 0.0) + (tried.measure_s or 0.0)


async def main() -> None:
    """Run the chosen parts; prints a JSON summary last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--problems", default=",".join(catalog.shipped_names()))
    parser.add_argument("--variants", type=int, default=32)
    parser.add_argument("--kernelbench", default="")
    options = parser.parse_args()
    summary: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ESPALIER_CACHE"] = cache
        print("from code to precise verdict, nothing cached, warm hosts")
        totals = await latency(options.device, [name for name in options.problems.split(",") if name])
        if totals:
            summary |= {"latency_median_s": statistics.median(totals), "kernels": len(totals)}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ESPALIER_CACHE"] = cache
        summary |= await rate(options.device, options.variants)
    if options.kernelbench:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["ESPALIER_CACHE"] = cache
            theirs, ours = await against_kernelbench(options.device, options.kernelbench)
            summary |= {"kernelbench_s": theirs, "same_kernel_s": ours, "ratio": theirs / ours}
    print(json.dumps({key: round(value, 3) for key, value in summary.items()}))


if __name__ == "__main__":
    asyncio.run(main())
