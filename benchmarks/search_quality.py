"""The strategies side by side at equal budget, on simulated landscapes.

``python benchmarks/search_quality.py``: for each family of landscapes (``benchmarks/families``) and each seed, every strategy
starts from the same naive port and receives ideas from the same short-sighted proposer; the engine's rules decide the rest
(``benchmarks/landscapes.py``). Prints per family the true speedup over the naive port of a search's last incumbent (geometric
mean over seeds), and two ratios of the adaptive strategy, paired by seed, with their bootstrap 95 % intervals: to the better of
sequential revision and branching in the one shape that is best over the families, and to the best of all others. The better one
is chosen on each family by its mean: an engineer could not know it beforehand.

The budget is equal in verdicts (kernels tried), in paid calls (one for the ideas of a round, one per implementation), or in
dollars (``--call-usd`` and ``--verdict-usd``).

This can show which strategy pays in worlds like these. It cannot show how often real kernels have traps, how good a real
model's ideas are, how an engineer's approval changes a search, or how a model revises that reads its own history.
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
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.landscapes import FAMILY_FILES, Family, MemoryBlobs, NoisyBench, Walker, code_of, families, search
from engine.domain import events as e
from engine.domain import queries
from engine.domain import work as w
from engine.domain.model import Interval, Problem, Workload
from engine.domain.settings import Limits, Settings
from engine.domain.state import SessionState


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy; for branching also its shape: ideas per round, implementations of each, kernels kept as parents."""

    name: str
    ideas: int = 3
    branch: int = 3
    beam: int = 2

    def __str__(self) -> str:
        return f"{self.ideas}x{self.branch}x{self.beam}" if self.name == "branching" else self.name


ADAPTIVE = Strategy("adaptive")
SEQUENTIAL = Strategy("sequential", 1, 1, 1)
SHAPES = (Strategy("branching"), Strategy("branching", 3, 1, 3), Strategy("branching", 2, 1, 2), Strategy("branching", 5, 1, 1))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may spend: ``verdicts``, ``calls`` or ``dollars``."""

    unit: str
    amount: float
    call_usd: float = 0.02
    verdict_usd: float = 0.01

    def spent(self, kernels: int, calls: int) -> float:
        match self.unit:
            case "verdicts":
                return kernels
            case "calls":
                return calls
            case _:
                return calls * self.call_usd + kernels * self.verdict_usd

    def affords(self, state: SessionState, work: w.Work, calls: int) -> bool:
        """Whether the work fits. Ideas are asked for only if at least one of them can still be tried."""
        branch = state.ideas[work.idea].branch if isinstance(work, w.Implement) else 1
        more = (branch, branch) if isinstance(work, w.Implement) else (1, 2)
        return self.spent(len(state.kernels) + more[0], calls + more[1]) <= self.amount + 1e-9


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """The end of one search."""

    log_speedup: float
    """The incumbent's true speed, without measurement noise."""
    kernels: int
    calls: int


def opened(strategy: Strategy, budget: Budget, seed: int = 0) -> e.SessionOpened:
    """The first event of a session whose only limit is the budget."""
    kernels = int(budget.amount) if budget.unit == "verdicts" else None
    limits = Limits(rounds=None, kernels=kernels, plateau=None, light=None)
    problem = Problem("simulated", "A simulated problem", "", "", (Workload("small"),), {})
    chosen = Settings(
        strategy.name, strategy.ideas, strategy.branch, strategy.beam, repairs=0, source="simulated", seed=seed, limits=limits
    )
    return e.SessionOpened(problem, "cpu", chosen, "autopilot", {})


async def run(family: Family, seed: int, strategy: Strategy, budget: Budget) -> SearchEnd:
    """Run one search. Raises RuntimeError if it exceeds its budget or finds nothing."""
    name = f"{family.world.name}:{seed}"
    blobs = MemoryBlobs()
    walker = Walker(family.make(random.Random(name)), family.world, name)
    bench = NoisyBench(blobs.put, family.world.noise, name)

    def affordable(state: SessionState, work: w.Work) -> bool:
        return budget.unit == "verdicts" or budget.affords(state, work, walker.calls)

    state = await search(opened(strategy, budget, seed), bench, walker, blobs, affordable)
    best = queries.incumbent(state)
    spent = budget.spent(len(state.kernels), walker.calls)
    if best is None or spent > budget.amount + 1e-9:
        raise RuntimeError(f"{name}, {strategy}: {spent:g} of {budget.amount:g} {budget.unit} spent ({state.closed})")
    return SearchEnd(walker.speed(code_of(blobs.text(best.source))), len(state.kernels), walker.calls)


def bootstrap(values: Sequence[float], seed: int = 0, repeats: int = 2000) -> Interval:
    """exp(mean) with its percentile bootstrap 95 % interval."""
    dice = random.Random(seed)
    means = sorted(statistics.fmean(dice.choices(values, k=len(values))) for _ in range(repeats))
    low, high = means[int(0.025 * repeats)], means[int(0.975 * repeats) - 1]
    return Interval(math.exp(statistics.fmean(values)), math.exp(low), math.exp(high))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first strategy against the best of some others on one family."""

    rival: str
    """The other with the highest mean."""
    ratio: Interval
    better: tuple[int, int]
    """Seeds on which the first strategy, and on which the rival, ended with the faster kernel."""

    def __str__(self) -> str:
        """``1.10x [1.02, 1.19] sequential 18:12``."""
        ratio, (won, lost) = self.ratio, self.better
        behind = "" if ratio.high >= 1.0 else " behind"
        return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] {self.rival} {won}:{lost}{behind}"


@dataclass(frozen=True, slots=True)
class Row:
    """One family at one budget."""

    family: str
    budget: str
    ends: dict[str, list[SearchEnd]]
    """Strategy → its searches, in the order of the seeds."""

    def mean(self, strategy: str) -> float:
        """The mean logarithm of its speedups."""
        return statistics.fmean(end.log_speedup for end in self.ends[strategy])

    def against(self, rivals: Sequence[str]) -> Comparison:
        """The first strategy against the best of ``rivals``, paired by seed."""
        first = next(iter(self.ends))
        rival = max(rivals, key=self.mean)
        pairs = [(a.log_speedup, b.log_speedup) for a, b in zip(self.ends[first], self.ends[rival], strict=True)]
        better = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
        return Comparison(rival, bootstrap([a - b for a, b in pairs]), better)


Search = tuple[Family, int, Strategy, Budget]


def searched(one: Search) -> SearchEnd:
    """One search, in a process of its own."""
    return asyncio.run(run(*one))


async def compare(
    family: Family,
    strategies: Sequence[Strategy],
    budgets: Sequence[Budget],
    seeds: Sequence[int],
    pool: Executor | None = None,
) -> list[Row]:
    """Every strategy on the same landscapes, for each budget; ``pool`` runs the searches side by side."""
    searches = [(family, seed, strategy, budget) for budget in budgets for strategy in strategies for seed in seeds]
    ends = iter([await run(*one) for one in searches] if pool is None else pool.map(searched, searches))
    return [Row(family.world.name, b.unit, {str(s): list(islice(ends, len(seeds))) for s in strategies}) for b in budgets]


def rivals(rows: Sequence[Row], strategies: Sequence[Strategy]) -> list[str]:
    """Sequential revision, and branching in the shape with the highest mean over the families, where they are compared."""
    shapes = [str(one) for one in strategies[1:] if one.name == "branching"]
    best = max(shapes, key=lambda name: statistics.fmean(row.mean(name) for row in rows), default=None)
    return [str(one) for one in strategies[1:] if one.name != "branching" or str(one) == best]


def table_lines(rows: Sequence[Row], budget: Budget, strategies: Sequence[Strategy]) -> list[str]:
    """The printed table of one budget."""
    chosen = [one for one in rows if one.budget == budget.unit]
    first, *others = (str(one) for one in strategies)
    few = rivals(chosen, strategies)
    better_of = f"better of {', '.join(few)}"
    lines = [f"\nequal {budget.unit} ({budget.amount:g})"]
    head = "".join(f"{name:>11}" for name in (first, *others))
    lines.append(f"{'family':<15}{head}  {f'{first} / {better_of}':<48}{first} / best of all")
    for one in chosen:
        speeds = "".join(f"{math.exp(one.mean(name)):>10.2f}x" for name in (first, *others))
        lines.append(f"{one.family:<15}{speeds}  {one.against(few)!s:<48}{one.against(others)}")
    for words, among in ((better_of, few), ("best of all", others)):
        ratios = [one.against(among).ratio for one in chosen]
        mean, reached = (
            math.exp(statistics.fmean(math.log(ratio.value) for ratio in ratios)),
            sum(r.high >= 1.0 for r in ratios),
        )
        lines.append(
            f"over the {words}: geometric mean {mean:.3f}x; the interval reaches 1 on {reached} of {len(chosen)} families"
        )
    for name in (first, *others):
        ends = [end for one in chosen for end in one.ends[name]]
        kernels, calls = (statistics.fmean(getattr(end, what) for end in ends) for what in ("kernels", "calls"))
        lines.append(f"  {name}: {kernels:.0f} kernels tried, {calls:.0f} paid calls")
    return lines


def _strategy(text: str) -> Strategy:
    if text in ("adaptive", "sequential"):
        return ADAPTIVE if text == "adaptive" else SEQUENTIAL
    ideas, branch, beam = (int(part) for part in text.split("x"))
    return Strategy("branching", ideas, branch, beam)


async def main() -> None:
    """Compare on every chosen family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", type=_strategy, nargs="+", default=(ADAPTIVE, SEQUENTIAL, *SHAPES),
                        metavar="adaptive|sequential|KxBxBEAM",
                        help="the first is compared with the others")  # fmt: skip
    parser.add_argument("--verdicts", type=int, default=46, help="kernels per search, the naive port included; 0 for none")
    parser.add_argument("--calls", type=int, default=62, help="paid calls per search; 0 for none")
    parser.add_argument("--dollars", type=float, default=1.7, help="dollars per search; 0 for none")
    parser.add_argument("--call-usd", type=float, default=0.02, help="what a call costs")
    parser.add_argument("--verdict-usd", type=float, default=0.01, help="what a verdict costs")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--families", default="", help="names, separated by commas; default: all")
    parser.add_argument("--folder", type=Path, default=FAMILY_FILES, help="folder of the families' files")
    parser.add_argument("--workers", type=int, default=1, help="searches that run side by side, each in a process")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    if len(options.strategies) < 2:
        parser.error("--strategies: name two or more, the one to compare first")
    amounts = {"verdicts": options.verdicts, "calls": options.calls, "dollars": options.dollars}
    prices = (options.call_usd, options.verdict_usd)
    budgets = [Budget(unit, amount, *prices) for unit, amount in amounts.items() if amount]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    began = time.monotonic()
    print(f"seeds {seeds[0]} to {seeds[-1]}; geometric means [bootstrap 95%]")
    rows: list[Row] = []
    with ExitStack() as closing:
        pool = closing.enter_context(ProcessPoolExecutor(options.workers)) if options.workers > 1 else None
        for name, one in families(options.folder).items():
            if not options.families or name in options.families.split(","):
                rows += await compare(one, options.strategies, budgets, seeds, pool)
                print(f"  {name}: {one.world.words}; {one.world.failures:.0%} of drafts fail, sloppiness "
                      f"{one.world.sloppiness:g}, foresight error {one.world.foresight:g}, noise {one.world.noise:g}",
                      flush=True)  # fmt: skip
    print("\n".join([line for budget in budgets for line in table_lines(rows, budget, options.strategies)]))
    print(f"\n{time.monotonic() - began:.0f} s")
    if options.json:
        print(json.dumps({"seeds": list(seeds), "rows": [asdict(one) for one in rows]}))


if __name__ == "__main__":
    asyncio.run(main())
