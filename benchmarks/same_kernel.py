"""A kernel against a byte-identical copy of itself, many times over.

``python benchmarks/same_kernel.py --device cpu --runs 20``: each run starts anew (fresh judge, fresh hosts, fresh processes)
and asks for the speedup of the kernel over its copy; the interval should hold 1.0 in at least 19 of 20 runs. Prints each
interval and the count.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from engine.build.source import read_kernel
from engine.build.tunables import default, parse_tunables
from engine.domain import work as w
from engine.problem import catalog
from engine.trial.bench import Assignment, Source, TrialBench


async def once(problem: str, device: str, path: Path) -> tuple[float, float, float]:
    """(speedup, low, high) of the kernel over its copy."""
    found = catalog.find(problem)
    workload = catalog.workload_for(found, "full" if device != "cpu" else "small")
    kernel = read_kernel(path)
    tunables = default(parse_tunables(kernel.text, kernel.dialect))
    source = Source(kernel.name, kernel.text, kernel.dialect, kernel.contract, tunables)
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
    """Run it as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", default="softmax")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernel", default="")
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args()
    folder = catalog.problems_root() / asked.problem / "playbook"
    path = Path(asked.kernel) if asked.kernel else folder / ("prefetch.cpp" if asked.device == "cpu" else "cluster_row.cu")
    held = 0
    for run in range(asked.runs):
        value, low, high = asyncio.run(once(asked.problem, asked.device, path))
        held += low <= 1.0 <= high
        print(f"run {run + 1:2}: {value:.4f}x [{low:.4f}, {high:.4f}]  holds 1.0 in {held} of {run + 1}", flush=True)


if __name__ == "__main__":
    main()
