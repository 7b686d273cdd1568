"""Do repeated sessions agree? ``python benchmarks/repeats.py --device cuda:0 [--repeats 20] [--kernels 10]``.

Variants of a playbook are measured precisely, again and again on a bench of its own each time, so with fresh processes, inputs
and baselines. Printed: in how many pairs of kernels whose intervals do not overlap in two repeats the order differs between
them, and how often the interval holds the long-run ratio (the geometric mean over all repeats; its own error is given).
With ``--keep FILE`` every repeat is written there when it is done, and those that the file holds count: an hour that a machine
does not have in one piece can be spent in several. Put repeats of one machine and one version in a file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
from pathlib import Path

import msgspec

from engine.build.source import read_kernel
from engine.build.tunables import parse_requires, parse_tunables, variants
from engine.domain import work
from engine.domain.model import Interval
from engine.problem import catalog, header
from engine.session.single import Table, table
from engine.trial.bench import Assignment, Source

Repeat = dict[str, Interval]
_REPEAT = msgspec.json.Decoder(Repeat)


def sources(bench: Table, folder: Path, dialect: str, most: int) -> dict[str, Source]:
    """Kernels of a playbook by a name of their own, as many of each file as it takes to have ``most``."""
    names = header.plan_names(bench.signature, bench.device.units)
    by_file: list[list[Source]] = []
    for path in sorted(folder.glob("*.cu" if dialect == "cuda" else "*.cpp")):
        kernel = read_kernel(path)
        found = parse_tunables(kernel.text, kernel.dialect)
        chosen = variants(found, parse_requires(kernel.text, kernel.dialect), names, 4, 0)
        by_file.append([Source(kernel.name, kernel.text, kernel.dialect, kernel.contract, one) for one in chosen])
    turns = (one for row in itertools.zip_longest(*by_file) for one in row if one is not None)
    told = ((f"{one.name} {' '.join(f'{k}={v}' for k, v in one.tunables.items())}", one) for one in turns)
    return dict(itertools.islice(told, most))


async def measured(problem: str, device: str, most: int) -> Repeat:
    """One session's speedups over eager."""
    found = catalog.find(problem)
    workload = catalog.workload_for(found, "small" if device == "cpu" else "full")
    told: Repeat = {}
    async with table(Assignment(found, workload, device), lambda _: None, accept_unverifiable=False) as bench:
        playbook = catalog.problems_root() / problem / "playbook"
        for name, source in sources(bench, playbook, "cpp" if device == "cpu" else "cuda", most).items():
            await bench.bench.make(source, lambda _: None)
            done = await bench.bench.try_measure(source, lambda _: None)
            if isinstance(done, work.Measured):
                told[name] = done.measurement.speedup["eager"]
            else:
                print(f"  {name}: {done}", flush=True)
    return told


def apart(one: Interval, other: Interval) -> int:
    """1 where the first lies above, -1 where below, 0 where they overlap."""
    return (one.low > other.high) - (one.high < other.low)


def contradictions(repeats: list[Repeat]) -> tuple[int, int]:
    """(pairs of repeats that order two kernels differently, pairs of repeats that both order them)."""
    against = both = 0
    for a, b in itertools.combinations(sorted(set.intersection(*(set(r) for r in repeats))), 2):
        orders = [order for r in repeats if (order := apart(r[a], r[b]))]
        for one, other in itertools.combinations(orders, 2):
            both += 1
            against += one != other
    return against, both


def coverage(repeats: list[Repeat]) -> tuple[int, int]:
    """(intervals that hold the long-run ratio, all intervals)."""
    held = total = 0
    for name in set.intersection(*(set(r) for r in repeats)):
        long_run = math.exp(statistics.fmean(math.log(r[name].value) for r in repeats))
        held += sum(r[name].low <= long_run <= r[name].high for r in repeats)
        total += len(repeats)
    return held, total


async def main() -> None:
    """Print a line a repeat and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--problem", default="softmax")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="a file for what was measured, and to go on from")
    asked = parser.parse_args()
    kept = asked.keep.read_bytes() if asked.keep and asked.keep.exists() else b""
    repeats = [_REPEAT.decode(line) for line in kept.splitlines()]
    for index in range(len(repeats), asked.repeats):
        repeats.append(await measured(asked.problem, asked.device, asked.kernels))
        if asked.keep:
            with asked.keep.open("ab") as file:
                file.write(msgspec.json.encode(repeats[-1]) + b"\n")
        best = max(repeats[-1], key=lambda name: repeats[-1][name].value)
        print(f"repeat {index + 1}: {len(repeats[-1])} kernels, best {best} {repeats[-1][best].value:.3f}", flush=True)
    for name in sorted(set.intersection(*(set(r) for r in repeats))):
        values = [r[name].value for r in repeats]
        halves = statistics.median(math.log(r[name].high / r[name].low) / 2 for r in repeats)
        spread = statistics.stdev(math.log(v) for v in values) if len(values) > 1 else 0.0
        error = spread / math.sqrt(len(values))
        told = f"median {statistics.median(values):.4f}, spread {spread:.2%}, half-width {halves:.2%}"
        print(f"  {name}: {told}, long run known to {error:.2%}")
    against, both = contradictions(repeats)
    held, total = coverage(repeats)
    print(f"orders: {against} of {both} pairs of repeats with both intervals apart disagree")
    print(f"coverage: {held} of {total} intervals ({held / total:.1%}) hold the long-run ratio")


if __name__ == "__main__":
    asyncio.run(main())
