"""Agreement of repeated sessions: ``python benchmarks/repeats.py --device cuda:0 [--repeats 20] [--kernels 10]``.

Measures variants of a playbook precisely, each time on a new bench with new processes, inputs and baselines. Prints how many
pairs of kernels, with non-overlapping intervals in both of two repeats, change their order between them, and how often the
interval contains the long-run ratio (the geometric mean over all repeats, given with its error).
``--keep FILE`` writes each finished repeat to a file and counts those already in it, so a long run can be split. Use one file
per machine and version.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
from pathlib import Path

import msgspec

from engine.domain import work
from engine.domain.model import Interval
from engine.problem import catalog, header
from engine.session.seeds import kernel_spec
from engine.session.workbench import Workbench, open_workbench
from engine.toolchain.kernel_file import read_kernel_file
from engine.toolchain.tunables import parse_requires, parse_tunables, variants
from engine.trial.bench import Assignment, KernelSpec

Repeat = dict[str, Interval]
_REPEAT = msgspec.json.Decoder(Repeat)


def sources(bench: Workbench, folder: Path, dialect: str, most: int) -> dict[str, KernelSpec]:
    """Up to ``most`` kernels of a playbook by unique name, the same number of variants per file."""
    names = header.plan_names(bench.signature, bench.device.units)
    by_file: list[list[KernelSpec]] = []
    for path in sorted(folder.glob("*.cu" if dialect == "cuda" else "*.cpp")):
        kernel = read_kernel_file(path)
        found = parse_tunables(kernel.text, kernel.dialect)
        chosen = variants(found, parse_requires(kernel.text, kernel.dialect), names, 4, 0)
        by_file.append([kernel_spec(kernel, one) for one in chosen])
    turns = (one for row in itertools.zip_longest(*by_file) for one in row if one is not None)
    named = ((f"{one.name} {' '.join(f'{k}={v}' for k, v in one.tunables.items())}", one) for one in turns)
    return dict(itertools.islice(named, most))


async def measure_session(problem: str, device: str, most: int) -> Repeat:
    """One session's speedups over eager."""
    found = catalog.find(problem)
    workload = catalog.workload_for(found, "small" if device == "cpu" else "full")
    speedups: Repeat = {}
    async with open_workbench(Assignment(found, workload, device), lambda _: None, accept_unverifiable=False) as bench:
        playbook = catalog.problems_root() / problem / "playbook"
        for name, source in sources(bench, playbook, "cpp" if device == "cpu" else "cuda", most).items():
            await bench.bench.build_candidate(source, lambda _: None)
            done = await bench.bench.try_measure(source, lambda _: None)
            if isinstance(done, work.Measured):
                speedups[name] = done.measurement.speedup["eager"]
            else:
                print(f"  {name}: {done}", flush=True)
    return speedups


def order(one: Interval, other: Interval) -> int:
    """1 if the first lies above, -1 if below, 0 if they overlap."""
    return (one.low > other.high) - (one.high < other.low)


def contradictions(repeats: list[Repeat]) -> tuple[int, int]:
    """(pairs of repeats that disagree on the order of two kernels, pairs of repeats that both order them)"""
    against = both = 0
    for a, b in itertools.combinations(sorted(set.intersection(*(set(r) for r in repeats))), 2):
        orders = [found for r in repeats if (found := order(r[a], r[b]))]
        for one, other in itertools.combinations(orders, 2):
            both += 1
            against += one != other
    return against, both


def coverage(repeats: list[Repeat]) -> tuple[int, int]:
    """(intervals that contain the long-run ratio, all intervals)"""
    held = total = 0
    for name in set.intersection(*(set(r) for r in repeats)):
        long_run = math.exp(statistics.fmean(math.log(r[name].value) for r in repeats))
        held += sum(r[name].low <= long_run <= r[name].high for r in repeats)
        total += len(repeats)
    return held, total


async def main() -> None:
    """Print one line per repeat, then the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--problem", default="softmax")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="file of finished repeats, to resume from")
    options = parser.parse_args()
    kept = options.keep.read_bytes() if options.keep and options.keep.exists() else b""
    repeats = [_REPEAT.decode(line) for line in kept.splitlines()]
    for index in range(len(repeats), options.repeats):
        repeats.append(await measure_session(options.problem, options.device, options.kernels))
        if options.keep:
            with options.keep.open("ab") as file:
                file.write(msgspec.json.encode(repeats[-1]) + b"\n")
        best = max(repeats[-1], key=lambda name: repeats[-1][name].value)
        print(f"repeat {index + 1}: {len(repeats[-1])} kernels, best measured {best} {repeats[-1][best].value:.3f}", flush=True)
    for name in sorted(set.intersection(*(set(r) for r in repeats))):
        values = [r[name].value for r in repeats]
        halves = statistics.median(math.log(r[name].high / r[name].low) / 2 for r in repeats)
        spread = statistics.stdev(math.log(v) for v in values) if len(values) > 1 else 0.0
        error = spread / math.sqrt(len(values))
        figures = f"median {statistics.median(values):.4f}, spread {spread:.2%}, half-width {halves:.2%}"
        print(f"  {name}: {figures}, error of the long-run ratio {error:.2%}")
    against, both = contradictions(repeats)
    held, total = coverage(repeats)
    print(f"orders: {against} of {both} pairs of repeats with disjoint intervals disagree")
    print(f"coverage: {held} of {total} intervals ({held / total:.1%}) contain the long-run ratio")


if __name__ == "__main__":
    asyncio.run(main())
