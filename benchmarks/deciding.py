"""What a decision of the adaptive strategy costs in a long session.

``python benchmarks/deciding.py``: sessions of 100, 1,000 and 10,000 kernels, far from their end and near it; prints the median
processor time over repeated decisions, and its ratio to the time in which the same machine folds one event of that session.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.search_quality import ADAPTIVE, Budget, opened
from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import (
    CATEGORIES,
    ENGINE,
    Author,
    Contract,
    Dialect,
    IdeaText,
    Interval,
    Measurement,
    PrecisionClass,
    Verification,
)
from engine.domain.rules import adaptive
from engine.domain.state import SessionState

_AUTHOR = Author("simulated")


def entries(kernels: int) -> list[e.Entry]:
    """A journal in which every kernel has a random earlier one as its parent and a speedup near its parent's."""
    dice = random.Random(kernels)
    speed = [0.0]
    events: list[e.Event] = [opened(ADAPTIVE, Budget("verdicts", kernels + 1)), e.RoundOpened(0, ())]
    for number in range(1, kernels + 1):
        parent = dice.randrange(max(1, number - 50), number) if number > 1 else 0
        speed.append(speed[parent] + dice.gauss(0.02, 0.1) if parent else 0.0)
        events += _kernel(number, parent, 2.718281828 ** speed[number], dice)
    return [e.Entry(n, float(n), ENGINE, event) for n, event in enumerate(events)]


def _kernel(number: int, parent: int, speedup: float, dice: random.Random) -> tuple[e.Event, ...]:
    idea, kernel, above = f"i{number}", f"k{number}", f"k{parent}" if parent else None
    text = IdeaText(f"idea {number}", CATEGORIES[number % len(CATEGORIES)], "", 1.1, f"+{dice.randrange(60)}#{number}")
    time_us = Interval(1000.0 / speedup, 990.0 / speedup, 1010.0 / speedup)
    ratio = Interval(speedup, speedup * 0.99, speedup * 1.01)
    measured = Measurement("precise", time_us, 200, 5, {"eager": ratio}, None, True)
    checked = Verification("class:fp32 (10x)", 5, 1e-7, 1e-5, 1e-6, 1e-6, 1e-4, PrecisionClass.FP32)
    return (
        e.IdeasProposed(0, (e.ProposedIdea(idea, text, above, _AUTHOR, 1),), from_source=False),
        e.IdeaSelected(idea),
        e.KernelDrafted(kernel, idea, above, 0, _AUTHOR, "k.cpp", Dialect.CPP, Contract.HOST, "0" * 64),
        e.IdeaImplemented(idea, (kernel,)),
        e.KernelVerified(kernel, checked, measured, 0.1),
        e.KernelMeasured(kernel, measured, 0.1),
    )


def decided(state: SessionState) -> object:
    """Between two rounds: a race if one is worth more, and the next round."""
    adaptive.decision.cache_clear()
    return adaptive.race_due(state), adaptive.opened_round(state, len(state.rounds))


def median_ms(act: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        act()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=(100, 1000, 10_000))
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    for kernels in options.kernels:
        state = advance(SessionState(), entries(kernels))
        entry = e.Entry(state.seq + 1, state.at, ENGINE, e.KernelPinned("k1"))
        fold = median_ms(lambda state=state, entry=entry: advance(state, [entry]), options.repeats)
        for limit, where in ((None, "far from the end"), (kernels + 1, "near it")):
            limited = replace(state, limits=replace(state.limits, kernels=limit))
            decide = median_ms(lambda state=limited: decided(state), options.repeats)
            took = f"a decision takes {decide:.1f} ms, {decide / fold:.0f} times the fold of one event"
            print(f"{kernels:>6} kernels, {where}: {took}")


if __name__ == "__main__":
    main()
