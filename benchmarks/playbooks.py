"""The strategies on the CPU playbooks, over recorded outcomes: ``python -m benchmarks.playbooks``.

Every kernel that a playbook can make was judged once (``benchmarks/playbook_outcomes.py``, ``benchmarks/outcomes``). The
engine's rules and the real playbook proposer search over these outcomes; no compiler and no judge run. A seed decides which
variants of a kernel are tried first, and the error of every measurement, as large as the recorded interval. Prints per problem
the recorded speedup over eager PyTorch of the incumbent after 12 and after 24 verdicts, and the ratios of the adaptive strategy
to the default and to sequential revision, paired by seed; each with its bootstrap 95 % interval over the seeds. The last column
is the fastest recorded kernel.

This can show how the strategies order and tune ideas that were written in advance. It cannot show how they steer a model.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import outcome_files
from benchmarks.landscapes import BASELINE_US, MemoryBlobs, NoisyBench, search
from benchmarks.outcome_files import FOLDER, Outcome, OutcomeKey, outcome_key
from benchmarks.search_quality import ADAPTIVE, SEQUENTIAL, Budget, Strategy, bootstrap, opened
from engine.domain import queries
from engine.domain import work as w
from engine.domain.model import PLAYBOOK, Blob, Interval
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState
from engine.domain.strategy.values import variance
from engine.ideas.playbook import Playbook
from engine.problem import catalog
from engine.session.ports import Say

DEFAULT = Strategy("branching")
STRATEGIES = (ADAPTIVE, DEFAULT, SEQUENTIAL)
VERDICTS = (12, 24)


@dataclass(frozen=True, slots=True)
class Playground:
    """A problem's playbook, and the outcome of each of its kernels."""

    problem: str
    outcomes: Mapping[OutcomeKey, Outcome]

    @classmethod
    def read(cls, file: Path) -> Playground:
        """From a recorded file. Raises OSError, and ValueError for what is no such file."""
        recorded, outcomes = outcome_files.read(file)
        return cls(recorded.problem, {one.key: one for one in outcomes})

    def outcome(self, kernel: Kernel) -> Outcome:
        """What was recorded of a kernel. Raises LookupError if nothing was."""
        found = self.outcomes.get(outcome_key(kernel.name, kernel.tunables))
        if found is None:
            raise LookupError(
                f"{self.problem}: no outcome of {kernel.name} with {dict(kernel.tunables)}: "
                f"run `python -m benchmarks.playbook_outcomes --problems {self.problem}`"
            )
        return found

    @property
    def fastest(self) -> float:
        """The speedup of the fastest kernel."""
        return max(one.speedup.value for one in self.outcomes.values() if one.speedup is not None)


class RecordedBench(NoisyBench):
    """Answers with the recorded outcome of each kernel; a measurement errs as much as the recorded one did."""

    def __init__(self, store: Callable[[bytes], Blob], playground: Playground, seed: str) -> None:
        super().__init__(store, 0.0, seed)
        self._playground = playground

    def deviation(self, kernel: Kernel) -> float:
        speedup = self._playground.outcome(kernel).speedup
        return math.sqrt(variance(speedup)) if speedup is not None else 0.0

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        return await super().build(kernel, self._marked(kernel, code), say)

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Failed | w.Impossible:
        return await super().verify(kernel, self._marked(kernel, code), say)

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        return await super().measure(kernel, self._marked(kernel, code), say)

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        codes = self._marked(kernel, code), self._marked(other, other_code)
        return await super().race(kernel, codes[0], other, codes[1], effort, regime, say)

    def _marked(self, kernel: Kernel, code: str) -> str:
        """The code with the marks by which a fake bench answers."""
        found = self._playground.outcome(kernel)
        if found.speedup is None:
            return f"{code}\n// FAKE: {found.failure}\n"
        same = f"// FAKE: machine_code = {int(found.machine_code, 16)}\n" if found.machine_code else ""
        return f"{code}\n// FAKE: time_us = {BASELINE_US / found.speedup.value:.9f}\n{same}"


async def searched(playground: Playground, strategy: Strategy, verdicts: int, seed: int) -> SessionState:
    """A whole search. Raises RuntimeError for a kernel that has no outcome."""
    blobs = MemoryBlobs()
    bench = RecordedBench(blobs.put, playground, f"{playground.problem}:{seed}")
    playbook = Playbook(catalog.problems_root() / playground.problem)
    first = opened(strategy, Budget("verdicts", verdicts), seed)
    first = replace(first, settings=replace(first.settings, source=PLAYBOOK))
    return await search(first, bench, playbook, blobs)


async def best(playground: Playground, strategy: Strategy, verdicts: int, seed: int) -> float:
    """Logarithm of the recorded speedup of the incumbent after ``verdicts`` kernels."""
    leader = queries.incumbent(await searched(playground, strategy, verdicts, seed))
    speedup = playground.outcome(leader).speedup if leader is not None else None
    if speedup is None:
        raise RuntimeError(f"{playground.problem}, {strategy}, seed {seed}: no kernel was measured")
    return math.log(speedup.value)


@dataclass(frozen=True, slots=True)
class Row:
    """One problem after some verdicts."""

    problem: str
    best: Mapping[str, Interval]
    """Strategy → speedup over eager, a geometric mean over the seeds."""
    over: Mapping[str, Interval]
    """Other strategy → speedup of the adaptive one over it."""
    fastest: float

    def __str__(self) -> str:
        cells = [*self.best.values(), *self.over.values()]
        return f"{self.problem:<20}" + "".join(f"{_words(one):<25}" for one in cells) + f"{self.fastest:.3f}x"


async def compared(playground: Playground, verdicts: int, seeds: Sequence[int]) -> Row:
    """All strategies on a problem."""
    ends = {str(one): [await best(playground, one, verdicts, seed) for seed in seeds] for one in STRATEGIES}
    first, *others = ends
    over = {name: bootstrap([a - b for a, b in zip(ends[first], ends[name], strict=True)]) for name in others}
    return Row(playground.problem, {name: bootstrap(own) for name, own in ends.items()}, over, playground.fastest)


def _words(ratio: Interval) -> str:
    return f"{ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]"


async def main() -> None:
    """Print a table for each number of verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--verdicts", type=int, nargs="+", default=VERDICTS)
    parser.add_argument("--outcomes", type=Path, default=FOLDER, help="folder of the recorded files")
    options = parser.parse_args()
    playgrounds = [Playground.read(file) for file in sorted(options.outcomes.glob("*.jsonl"))]
    if not playgrounds:
        parser.error(f"no recorded outcomes in {options.outcomes}: run `python -m benchmarks.playbook_outcomes`")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    began = time.monotonic()
    for verdicts in options.verdicts:
        print(f"\nafter {verdicts} verdicts, seeds {seeds[0]} to {seeds[-1]}; geometric means [bootstrap 95%]")
        names = [*map(str, STRATEGIES), *(f"{ADAPTIVE} / {one}" for one in STRATEGIES[1:])]
        print(f"{'problem':<20}" + "".join(f"{name:<25}" for name in names) + "fastest")
        rows = []
        for playground in playgrounds:
            rows.append(await compared(playground, verdicts, seeds))
            print(rows[-1], flush=True)
        for other in STRATEGIES[1:]:
            reached = sum(row.over[str(other)].high >= 1.0 for row in rows)
            print(f"{ADAPTIVE} / {other}: the interval reaches 1 on {reached} of {len(rows)} problems")
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
