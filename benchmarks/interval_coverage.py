"""Coverage of the 95 % interval of a precise measurement: simulated noise, the engine's estimator.

``python benchmarks/interval_coverage.py``: under each noise model a session measures the baseline against itself, then the
kernel in process pairs until the judge's stopping rule ends it. The interval is a hit if it contains the *long-run ratio*,
to which the same estimator converges with more processes. Prints the share of hits with its 95 % interval (Wilson), the typical
half-width, the pairs spent, how often two equal contestants are called different, and the coverage without the floor from the
baseline against itself (as in a race of two kernels).

The estimator, the floor and the stopping rules are the engine's own: ``engine.domain.stats``, and of ``engine.trial.judge``
``log_ratios`` and ``samples_for`` of ``timing.pair_times``, ``claimable`` of ``baselines``, ``is_settled`` and ``is_same`` of
``timing.stopping``. Only the times are simulated. It cannot show that the noise of a real machine resembles one of these
models; ``benchmarks/same_kernel.py`` repeats a real measurement for that.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.domain import stats
from engine.domain.model import Interval
from engine.trial.judge.baselines import SAME_PAIRS, claimable
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.pair_times import KERNEL, PairTimes, log_ratios, samples_for
from engine.trial.judge.timing.stopping import PAIRS, is_same, is_settled

BASELINE = "eager"
ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class Noise:
    """The scatter of times; standard deviations are of logarithms."""

    name: str
    device: str
    process: float
    """Between processes of one contestant: memory layout, clocks."""
    sample: float
    """Between the calls of one process."""
    correlation: float = 0.0
    """Correlation of consecutive calls of one process (first-order autoregressive)."""
    outliers: float = 0.0
    """Share of disturbed calls, which take up to three times as long."""
    modes: float = 0.0
    """Share of a kernel's processes that are 5 % slower throughout, e.g. for an unlucky layout."""
    drift: float = 0.0
    """Standard deviation of a drift that both contestants of a pair share."""
    time_us: float = 200.0


MODELS = (
    Noise("quiet device", "cuda", 0.002, 0.004),
    Noise("quiet processor", "cpu", 0.006, 0.015),
    Noise("processes differ", "cpu", 0.025, 0.01),
    Noise("calls hang together", "cpu", 0.01, 0.03, correlation=0.9),
    Noise("outliers", "cpu", 0.01, 0.02, outliers=0.15),
    Noise("two modes", "cpu", 0.004, 0.01, modes=0.3),
    Noise("drifting clock", "cuda", 0.004, 0.006, correlation=0.5, drift=0.02),
    Noise("everything at once", "cpu", 0.02, 0.03, correlation=0.8, outliers=0.1, modes=0.2, drift=0.03),
    Noise("short kernel", "cuda", 0.006, 0.03, correlation=0.5, outliers=0.05, time_us=8.0),
)


def pair(
    noise: Noise, dice: random.Random, contestants: dict[str, float], samples: int, own: dict[str, float] | None = None
) -> PairTimes:
    """One process per contestant, interleaved; ``contestants`` are undisturbed times relative to the baseline.

    ``own``: what the processes differ by, if they were in another pair.
    """
    own = own or {name: dice.gauss(0, noise.process) for name in contestants}
    if KERNEL in contestants and dice.random() < noise.modes:
        own[KERNEL] += math.log(1.05)
    wander = {name: dice.gauss(0, noise.sample) for name in contestants}
    fresh = math.sqrt(1 - noise.correlation**2) * noise.sample
    shared = 0.0
    times: dict[str, list[Timing]] = {name: [] for name in contestants}
    for _ in range(samples):
        shared += dice.gauss(0, noise.drift) if noise.drift else 0.0
        for name, factor in contestants.items():
            wander[name] = noise.correlation * wander[name] + dice.gauss(0, fresh)
            disturbed = dice.uniform(0.1, math.log(3)) if dice.random() < noise.outliers else 0.0
            claimed = noise.time_us * factor * math.exp(own[name] + wander[name] + shared + disturbed)
            times[name].append(Timing(claimed, claimed + 5.0, 0.0))
    return PairTimes(times)


def baseline_against_itself(noise: Noise, dice: random.Random) -> Interval:
    """The baseline against itself, measured once per session: each process with the next one."""
    pairs: list[PairTimes] = []
    chain = [dice.gauss(0, noise.process) for _ in range(SAME_PAIRS + 1)]
    for one, other in pairwise(chain):
        samples = samples_for(pairs, BASELINE)
        pairs.append(pair(noise, dice, {BASELINE: 1.0, ITSELF: 1.0}, samples, {BASELINE: one, ITSELF: other}))
        if is_same(log_ratios(pairs, BASELINE, ITSELF), (), noise.device):
            break
    return stats.ratio_interval(log_ratios(pairs, BASELINE, ITSELF))


@dataclass(frozen=True, slots=True)
class Repeat:
    """One measurement: its interval, and the number of pairs."""

    interval: Interval
    pairs: int


def measure(noise: Noise, dice: random.Random, speedup: float, *, floored: bool = True) -> Repeat:
    """A session's floor, then one precise measurement with the judge's stopping rule."""
    floor = claimable(baseline_against_itself(noise, dice) if floored else None)
    least, most = PAIRS[noise.device]
    pairs: list[PairTimes] = []
    while len(pairs) < most:
        pairs.append(pair(noise, dice, {BASELINE: 1.0, KERNEL: 1 / speedup}, samples_for(pairs, KERNEL)))
        if len(pairs) >= least and is_settled(log_ratios(pairs, BASELINE, KERNEL), noise.device, floor):
            break
    return Repeat(stats.ratio_interval(log_ratios(pairs, BASELINE, KERNEL), floor), len(pairs))


def long_run(noise: Noise, speedup: float, seed: int, processes: int = 4000) -> float:
    """The limit of the estimator: the mean of very many process pairs."""
    dice = random.Random(f"{noise.name}:{seed}:long run")
    first = [pair(noise, dice, {BASELINE: 1.0, KERNEL: 1 / speedup}, samples_for([], KERNEL))]
    samples = samples_for(first, KERNEL)
    pairs = [pair(noise, dice, {BASELINE: 1.0, KERNEL: 1 / speedup}, samples) for _ in range(processes)]
    return math.exp(statistics.fmean(log_ratios(pairs, BASELINE, KERNEL)))


def wilson(hits: int, repeats: int) -> tuple[float, float]:
    """95 % interval of a proportion."""
    z, share = 1.96, hits / repeats
    middle = (share + z * z / (2 * repeats)) / (1 + z * z / repeats)
    half = z / (1 + z * z / repeats) * math.sqrt(share * (1 - share) / repeats + z * z / (4 * repeats * repeats))
    return middle - half, middle + half


@dataclass(frozen=True, slots=True)
class Coverage:
    """The result of one noise model."""

    model: str
    repeats: int
    hits: int
    share: tuple[float, float]
    """95 % interval of the coverage."""
    long_run: float
    half_width: float
    """Median half-width of the interval, as a share of the ratio."""
    pairs: float
    false_alarms: float
    """Share of repeats in which a kernel as fast as the baseline is called faster or slower."""
    without_floor: float
    """Coverage without widening the interval to the baseline-against-itself difference."""


def coverage(noise: Noise, speedup: float, repeats: int, seed: int) -> Coverage:
    """Repeat the measurement under one noise model."""
    truth = long_run(noise, speedup, seed)
    equal = long_run(noise, 1.0, seed)
    found = [measure(noise, random.Random(f"{noise.name}:{seed}:{n}"), speedup) for n in range(repeats)]
    hits = sum(one.interval.low <= truth <= one.interval.high for one in found)
    bare = [measure(noise, random.Random(f"{noise.name}:{seed}:bare:{n}"), speedup, floored=False) for n in range(repeats)]
    null = [measure(noise, random.Random(f"{noise.name}:{seed}:null:{n}"), 1.0 / equal) for n in range(repeats)]
    alarms = sum(stats.significant(one.interval) != "undecided" for one in null)
    return Coverage(
        noise.name, repeats, hits, wilson(hits, repeats), truth,
        statistics.median(math.log(one.interval.high / one.interval.low) / 2 for one in found),
        statistics.fmean(one.pairs for one in found), alarms / repeats,
        sum(one.interval.low <= truth <= one.interval.high for one in bare) / repeats,
    )  # fmt: skip


def table_row(one: Coverage) -> str:
    """One row of the table."""
    low, high = one.share
    return (
        f"{one.model:<20} {one.hits / one.repeats:6.1%} [{low:.1%}, {high:.1%}]   {one.long_run:.4f}x   "
        f"{one.half_width:6.2%}   {one.pairs:4.1f}   {one.false_alarms:5.1%}   {one.without_floor:11.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every noise model and check that each reaches 90 % coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--speedup", type=float, default=1.25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    print(f"{options.repeats} repeats, speedup {options.speedup:g}, minimum and maximum of process pairs: {PAIRS}")
    print(
        f"{'noise':<20} {'coverage [95%]':<23} {'long run':>9} {'half-width':>10} {'pairs':>6} {'alarms':>7} {'no floor':>14}"
    )
    rows: list[Coverage] = []
    for noise in MODELS:
        rows.append(coverage(noise, options.speedup, options.repeats, options.seed))
        print(table_row(rows[-1]), flush=True)
    short = [row.model for row in rows if row.hits < 0.9 * row.repeats]
    print(f"{len(rows) - len(short)} of {len(rows)} models reach 90 % coverage{': not ' + ', '.join(short) if short else ''}; "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
