"""Race a kernel against a byte-identical copy of itself, repeatedly.

``python benchmarks/same_kernel.py --device cpu --runs 20``: each run uses a new judge, new hosts and new processes, and
measures the speedup of the kernel over its copy. The interval should contain 1.0 in at least 19 of 20 runs. Prints each
interval and the count.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from engine.domain import work as w
from engine.problem import catalog
from engine.session.seeds import kernel_spec, seed_of
from engine.toolchain.kernel_file import read_kernel_file
from engine.trial.bench import Assignment, TrialBench


async def speedup_over_copy(problem: str, device: str, path: Path) -> tuple[float, float, float]:
    """(speedup, low, high) of the kernel over its copy."""
    found = catalog.find(problem)
    workload = catalog.workload_for(found, "full" if device != "cpu" else "small")
    seed = seed_of(read_kernel_file(path), {})
    source = kernel_spec(seed.kernel, seed.tunables)
    bench = TrialBench(Assignment(found, workload, device), lambda _: "")
    try:
        await bench.prepare(lambda _: None)
        result = await bench.versus(source, source, lambda _: None)
    finally:
        await bench.close()
    if isinstance(result, w.Failed):
        raise SystemExit(f"the kernel failed: {result.failure.reason}")
    ratio = result.measurement.speedup["other"]
    return ratio.value, ratio.low, ratio.high


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", default="softmax")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernel", default="")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    folder = catalog.problems_root() / options.problem / "playbook"
    path = (
        Path(options.kernel) if options.kernel else folder / ("prefetch.cpp" if options.device == "cpu" else "cluster_row.cu")
    )
    held = 0
    for run in range(options.runs):
        value, low, high = asyncio.run(speedup_over_copy(options.problem, options.device, path))
        held += low <= 1.0 <= high
        print(f"run {run + 1:2}: {value:.4f}x [{low:.4f}, {high:.4f}]  contains 1.0 in {held} of {run + 1}", flush=True)


if __name__ == "__main__":
    main()
