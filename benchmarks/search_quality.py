"""Branching against sequential revision at equal budget, on simulated landscapes with traps.

``python benchmarks/search_quality.py``: for each family of landscapes and each seed, both strategies start from the same naive
port and receive ideas from the same short-sighted proposer; the engine's rules decide everything else
(``benchmarks/landscapes.py``). Prints per family: the true speedup over the naive port of a search's last incumbent (geometric
mean over seeds), the paired ratio branching ÷ sequential, both with bootstrap 95 % intervals, and the number of seeds on which
each was better. Branching has shapes: ideas per round x implementations of each, and the beam.

The budget is equal in kernels tried, or in paid calls (one for a round's ideas, one per implementation). A sequential search
asks for ideas once per kernel, so the first favours it and the second favours branching; both are printed.

This can show which shape of search pays in worlds like these. It cannot show how often real kernels have traps, how good a real
model's ideas are, how an engineer's approval changes either search, or how a model revises that reads its own history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.landscapes import Forks, Landscape, MemoryBlobs, Net, Rugged, Walker, World, code_of, search
from engine.domain import events as e
from engine.domain import queries
from engine.domain.model import Interval, Problem, Workload
from engine.domain.settings import Limits, Settings
from engine.session.fake_bench import FakeBench

Make = Callable[[random.Random], Landscape]


def independent(dice: random.Random) -> Landscape:
    """Independent small gains, no obstacles."""
    return Net(tuple(dice.uniform(0.03, 0.15) for _ in range(24)), {}, {}, {})


def ladder(dice: random.Random) -> Landscape:
    """One long chain: each optimisation requires the previous one."""
    return Net(tuple(dice.uniform(0.06, 0.12) for _ in range(40)), {m: m - 1 for m in range(1, 40)}, {}, {})


def hit_or_miss(dice: random.Random) -> Landscape:
    """Three ideas in four are harmful, and predictions do not show which."""
    gains = [dice.uniform(0.1, 0.5) if m % 4 == 0 else -dice.uniform(0.05, 0.4) for m in range(40)]
    return Net(tuple(gains), {}, {}, {})


def traps(dice: random.Random) -> Landscape:
    """Four optimisations help at first and spoil most later ones."""
    early = [dice.uniform(0.25, 0.4) for _ in range(4)]
    late = [dice.uniform(0.1, 0.35) for _ in range(12)]
    after = {m: m - 1 for m in range(4, 16) if m % 3 != 1}
    spoils = {m: frozenset(dice.sample(range(4, 16), 7)) for m in range(4)}
    return Net((*early, *late), after, spoils, {})


def dead_ends(dice: random.Random) -> Landscape:
    """Four algorithms exclude each other; the one with the best start has the lowest ceiling."""
    firsts, lengths = (0.5, 0.35, 0.25, 0.2), (2, 4, 6, 9)
    gains: list[float] = []
    after: dict[int, int] = {}
    exclusive: dict[int, int] = {}
    for first, length in zip(firsts, lengths, strict=True):
        exclusive[len(gains)] = 0
        for step in range(length):
            if step:
                after[len(gains)] = len(gains) - 1
            gains.append(first if step == 0 else dice.uniform(0.15, 0.3))
    return Net(tuple(gains), after, {}, exclusive)


def forks(dice: random.Random) -> Landscape:
    """Five irreversible decisions among six options each."""
    return Forks(str(dice.random()), 5, 6, 0.3)


def rugged(dice: random.Random) -> Landscape:
    """Every optimisation's gain depends on five others (NK, N = 16, K = 5)."""
    return Rugged(str(dice.random()), 16, 5, 6.0)


FAMILIES: tuple[tuple[World, Make], ...] = (
    (World("independent", "many small gains, nothing in the way"), independent),
    (World("ladder", "one long way up, each step needs the last"), ladder),
    (World("hit or miss", "three ideas in four do harm, and stay", undo=False), hit_or_miss),
    (World("miss undone", "the same, but what did harm can be taken out"), hit_or_miss),
    (World("traps", "early gains that spoil later ones, for good", undo=False), traps),
    (World("traps undone", "the same, but what was put in can be taken out"), traps),
    (World("dead ends", "four algorithms, the best start ends first, no way back", undo=False), dead_ends),
    (World("forks", "five decisions among six options, each for good", undo=False), forks),
    (World("rugged", "NK landscape, N = 16, K = 5"), rugged),
    (World("hard code", "traps, half of all drafts fail, code varies", failures=0.5, sloppiness=0.25, undo=False), traps),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a branching search."""

    ideas: int
    branch: int
    beam: int

    def __str__(self) -> str:
        return f"{self.ideas}x{self.branch} beam {self.beam}"


SHAPES = (Shape(3, 3, 2), Shape(3, 1, 3))
SEQUENTIAL = Shape(1, 1, 1)


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """The end of one search."""

    log_speedup: float
    """The incumbent's true speed, without measurement noise."""
    kernels: int
    calls: int
    rounds: int


def opened(shape: Shape, kernels: int) -> e.SessionOpened:
    """The first event of a session whose only limit is the number of kernels."""
    strategy = "sequential" if shape == SEQUENTIAL else "branching"
    limits = Limits(rounds=None, kernels=kernels, plateau=None, light=None)
    problem = Problem("simulated", "A simulated problem", "", "", (Workload("small"),), {})
    chosen = Settings(strategy, shape.ideas, shape.branch, shape.beam, repairs=0, source="simulated", limits=limits)
    return e.SessionOpened(problem, "cpu", chosen, "autopilot", {})


async def run(world: World, make: Make, seed: int, shape: Shape, kernels: int) -> SearchEnd:
    """Run one search. Raises RuntimeError if it did not spend its whole budget."""
    name = f"{world.name}:{seed}"
    landscape = make(random.Random(name))
    blobs = MemoryBlobs()
    walker = Walker(landscape, world, name)
    state = await search(opened(shape, kernels), FakeBench(blobs.put), walker, blobs)
    best = queries.incumbent(state)
    if best is None or len(state.kernels) != kernels:
        raise RuntimeError(f"{name}, {shape}: {len(state.kernels)} of {kernels} kernels tried ({state.closed})")
    speed = code_of(blobs.text(best.source)).speed(landscape)
    return SearchEnd(speed, len(state.kernels), walker.calls, queries.last_round(state))


def affordable(calls: int) -> int:
    """Kernels that a sequential search tries for this many paid calls: two for the naive port, and two per kernel."""
    return calls // 2


def bootstrap(values: Sequence[float], seed: int = 0, repeats: int = 2000) -> Interval:
    """exp(mean) with its percentile bootstrap 95 % interval."""
    dice = random.Random(seed)
    means = sorted(statistics.fmean(dice.choices(values, k=len(values))) for _ in range(repeats))
    low, high = means[int(0.025 * repeats)], means[int(0.975 * repeats) - 1]
    return Interval(math.exp(statistics.fmean(values)), math.exp(low), math.exp(high))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One family and shape: the results of both strategies, and their paired ratio."""

    family: str
    shape: str
    budget: str
    branching: Interval
    sequential: Interval
    ratio: Interval
    better: tuple[int, int]
    """Number of seeds on which branching, and on which sequential revision, ended with the faster kernel."""
    kernels: tuple[float, float]
    calls: tuple[float, float]
    rounds: tuple[float, float]

    @property
    def verdict(self) -> str:
        if self.ratio.low > 1.0:
            return "branching ahead"
        return "sequential ahead" if self.ratio.high < 1.0 else "no difference shown"


def comparison(world: World, shape: Shape, budget: str, pairs: Sequence[tuple[SearchEnd, SearchEnd]]) -> Comparison:
    """Compare the searches of one family and shape. Raises RuntimeError for unequal budgets."""
    for branching, sequential in pairs:
        spent = (branching.kernels, sequential.kernels) if budget == "kernels" else (branching.calls, sequential.calls)
        if not 0 <= spent[0] - spent[1] <= (0 if budget == "kernels" else 1):
            raise RuntimeError(f"{world.name}, {shape}: unequal budgets: {spent[0]} and {spent[1]} {budget}")
    ends = [(b.log_speedup, s.log_speedup) for b, s in pairs]
    means = [tuple(statistics.fmean(getattr(pair[n], name) for pair in pairs) for n in (0, 1)) for name in _SPENT]
    return Comparison(
        world.name, str(shape), budget, bootstrap([b for b, _ in ends]), bootstrap([s for _, s in ends]),
        bootstrap([b - s for b, s in ends]), (sum(b > s for b, s in ends), sum(b < s for b, s in ends)),
        *((mean[0], mean[1]) for mean in means),
    )  # fmt: skip


_SPENT = ("kernels", "calls", "rounds")


async def compare(world: World, make: Make, kernels: int, seeds: int, shapes: Sequence[Shape]) -> list[Comparison]:
    """Compare every shape with sequential revision on the same landscapes, for both definitions of an equal budget."""
    same = [await run(world, make, seed, SEQUENTIAL, kernels) for seed in range(seeds)]
    rows: list[Comparison] = []
    for shape in shapes:
        branching = [await run(world, make, seed, shape, kernels) for seed in range(seeds)]
        rows.append(comparison(world, shape, "kernels", list(zip(branching, same, strict=True))))
        paid = [await run(world, make, n, SEQUENTIAL, affordable(b.calls)) for n, b in enumerate(branching)]
        rows.append(comparison(world, shape, "calls", list(zip(branching, paid, strict=True))))
    return rows


def times(interval: Interval) -> str:
    return f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def table_lines(rows: Sequence[Comparison], budget: str) -> list[str]:
    """The printed table."""
    chosen = [row for row in rows if row.budget == budget]
    head = f"{'family':<13} {'branching':<14} {'ends with':<22} {'sequential':<22} {'branching/sequential':<21} better"
    lines = [f"\nequal {budget}", head]
    lines += [
        f"{row.family:<13} {row.shape:<14} {times(row.branching):<22} {times(row.sequential):<22} {times(row.ratio):<21} "
        f"{row.better[0]:>3} : {row.better[1]:<3} {row.verdict}"
        for row in chosen
    ]
    for shape in dict.fromkeys(row.shape for row in chosen):
        own = [row for row in chosen if row.shape == shape]
        for place, name in enumerate((f"branching {shape}", "sequential")):
            spent = [statistics.fmean(getattr(row, what)[place] for row in own) for what in _SPENT]
            lines.append(f"  {name}: {spent[0]:.0f} kernels tried, {spent[1]:.0f} paid calls, {spent[2]:.0f} rounds")
    return lines


def _shape(text: str) -> Shape:
    ideas, branch, beam = (int(part) for part in text.split("x"))
    return Shape(ideas, branch, beam)


async def main() -> None:
    """Compare on every chosen family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=46, help="kernels per search, including the naive port")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--shapes", type=_shape, nargs="+", default=SHAPES, metavar="IDEASxIMPLEMENTATIONSxBEAM")
    parser.add_argument("--families", default=",".join(world.name for world, _ in FAMILIES))
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    began = time.monotonic()
    print(f"{options.kernels} kernels per search, seeds 0 to {options.seeds - 1}; geometric means [bootstrap 95 %]")
    rows: list[Comparison] = []
    for world, make in FAMILIES:
        if world.name in options.families.split(","):
            rows += await compare(world, make, options.kernels, options.seeds, options.shapes)
            print(f"  {world.name}: {world.words}; {world.failures:.0%} of drafts fail, sloppiness {world.sloppiness:g}, "
                  f"foresight error {world.foresight:g}, noise {world.noise:g}", flush=True)  # fmt: skip
    print("\n".join([*table_lines(rows, "kernels"), *table_lines(rows, "calls"), f"\n{time.monotonic() - began:.0f} s"]))
    if options.json:
        print(json.dumps({"kernels": options.kernels, "seeds": options.seeds, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    asyncio.run(main())
