"""The terminal UI in a storm of keys, clicks and resizes: ``python -m benchmarks.storms --acts 10000 [--only live]``.

Per opening (a live session, a replay, a session that another process writes): the longest times that the event loop went
without a pause, in which nothing is drawn. Waiting for a core is subtracted, so that a busy machine does not count; work of
the thread and its garbage collections are given beside it. The longest are printed with what ran then. An exception, an error
that was logged and a journal that cannot be replayed fail a part, which is a storm with a seed of its own, in a process of
its own: its traceback is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import storm  # noqa: E402  # the tests' storm
from support.stalls import LoopWatch, Stretch  # noqa: E402

from tui.garbage import shorten_collections  # noqa: E402

OPENINGS = ("live", "replay", "follow")
FREEZE = 0.2
"""Seconds that an engineer notices."""
_LIMITS = (0.05, 0.1, 0.15, FREEZE)
_SHARES = (0.5, 0.95, 0.99, 0.999)
_CALLS = 14
"""How many of the innermost calls of a stack are printed."""

Part = tuple[storm.Storm, list[Stretch]]


def run_part(opening: str, seed: int, acts: int, limit: float) -> Part:
    """One storm, in the process that calls this."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(limit, exit=True)
    watch = LoopWatch()
    shorten_collections()  # as the program does when it starts
    with tempfile.TemporaryDirectory(prefix="espalier-storm-") as name:
        told = storm.run(opening, Path(name), seed, acts, watch)
    faulthandler.cancel_dump_traceback_later()
    return told, watch.stretches


def run_parts(opening: str, seeds: Sequence[int], acts: int, limit: float) -> tuple[list[Part], list[str]]:
    """One storm per seed, one after the other; and the tracebacks of those that failed."""
    parts, failures = [], []
    for seed in seeds:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                parts.append(pool.submit(run_part, opening, seed, acts, limit).result())
            except Exception as error:  # whatever a storm finds; the next one finds more
                failures.append(f"{opening}, seed {seed}, {acts} acts: {error!r}{error.__cause__ or ''}")
    return parts, failures


def summary(opening: str, parts: Sequence[Part]) -> list[str]:
    """What a storm did, and how long it kept the loop."""
    stretches = [one for _, found in parts for one in found]
    own = sorted(one.own for one in stretches)
    acts, quits = sum(told.acts for told, _ in parts), sum(told.quits for told, _ in parts)
    screens: Counter[str] = sum((told.screens for told, _ in parts), Counter())
    shares = ", ".join(f"{100 * share:g} % {_ms(own[int(share * (len(own) - 1))])}" for share in _SHARES)
    over = ", ".join(f"{sum(one > limit for one in own)} over {_ms(limit)}" for limit in _LIMITS)
    visited = ", ".join(f"{name} {count}" for name, count in screens.most_common())
    return [
        f"{opening}: {acts} acts, {quits} quits; longest {_ms(own[-1])}: {'MISSED' if own[-1] > FREEZE else 'met'}",
        f"  of {len(own)} stretches over 1 ms: {shares}; {over}",
        f"  longest by the wall clock {_ms(max(one.wall for one in stretches))}, "
        f"work {_ms(max(one.work for one in stretches))}, collections {_ms(max(one.collected for one in stretches))}",
        f"  acts by screen: {visited}",
    ]


def description(one: Stretch) -> list[str]:
    """A long stretch and what ran in it: the innermost calls of its stacks, those that all share once."""
    figures = f"work {_ms(one.work)}, of it collections {_ms(one.collected)}; waited for a core {_ms(one.queued)}"
    lines = [f"  {_ms(one.own)}: {figures}"]
    if one.stacks:
        levels = zip(*one.stacks, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda calls: len(set(calls)) == 1, levels))
        lines += [f"    {call}" for call in one.stacks[0][max(0, shared - _CALLS) : shared]]
        inner = Counter(" → ".join(stack[shared : shared + 4]) for stack in one.stacks if stack[shared:])
        lines += [f"    {count:>3}× {calls}" for calls, count in inner.most_common(6)]
    return lines


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--acts", type=int, default=2000, help="acts per opening")
    parser.add_argument("--part", type=int, default=1000, help="acts with one seed, in one process")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first part; the next ones follow")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one part, after which it counts as hung")
    parser.add_argument("--longest", type=int, default=3, help="how many stretches are printed with their stacks")
    parser.add_argument("--only", choices=tuple(storm.OPENINGS), action="append")
    options = parser.parse_args()
    failed = False
    for opening in options.only or OPENINGS:
        seeds = range(options.seed, options.seed + max(1, options.acts // options.part))
        parts, failures = run_parts(opening, seeds, min(options.acts, options.part), options.limit)
        failed = failed or bool(failures)
        lines = summary(opening, parts) if parts else []
        found = sorted((one for _, stretches in parts for one in stretches), key=lambda one: one.own, reverse=True)
        for one in found[: options.longest]:
            lines += description(one)
        print("\n".join((*lines, f"  load of the machine {os.getloadavg()[0]:.1f}", *failures)), flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
