"""How far one engine scales: ``python -m benchmarks.fleet_scale [SESSION ...]``.

Three parts. The seconds of every stage come from recorded sessions (by default those that ship). The engine's own cost of a
verdict (rules, fold, scheduler, journal) is measured by a real session on a bench that computes nothing. A discrete-event
simulation then runs rounds of kernels on 1 to 1,000 devices: compilers and devices work in parallel, the engine handles one
event after the other.

    python -m benchmarks.fleet_scale --per-device 48 --builders-per-device 4
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import sessions  # noqa: E402
from support.scripted import ScriptedProposer  # noqa: E402

from engine.domain import events as e  # noqa: E402
from engine.journal.journal import NAME, read  # noqa: E402
from engine.session.live import LiveSession  # noqa: E402

DEVICES = (1, 2, 4, 8, 16, 64, 256, 1000)
_EVENTS_OF_A_KERNEL = 3
"""How often the engine acts on a kernel: built, verified, measured."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of each stage as they were recorded; the k-th entries belong to any kernel."""

    build: Sequence[float]
    verify: Sequence[float]
    measure: Sequence[float]
    measured_share: float
    """Of the verified kernels, those that were measured precisely."""


@dataclass(frozen=True, slots=True)
class EngineCost:
    """The engine's own cost of a kernel's way through all stages."""

    seconds: float
    journal_bytes: float


def recorded(folders: Sequence[Path]) -> StageTimes:
    """The stage times of recorded sessions."""
    build, verify, measure = [], [], []
    for entry in itertools.chain.from_iterable(read(folder).entries for folder in folders):
        match entry.event:
            case e.KernelBuilt(seconds=seconds):
                build.append(seconds)
            case e.KernelVerified(seconds=seconds):
                verify.append(seconds)
            case e.KernelMeasured(seconds=seconds) if seconds:
                measure.append(seconds)
    if not (build and verify and measure):
        raise SystemExit("benchmarks.fleet_scale: these sessions have no verified and measured kernels")
    return StageTimes(build, verify, measure, len(measure) / len(verify))


def engine_cost(kernels: int) -> EngineCost:
    """Measured by a real session whose bench answers at once."""
    drafts = tuple(sessions.draft(f"k{n}", f"time_us = {300 + n}") for n in range(kernels))
    ideas = ScriptedProposer(
        rounds={0: (sessions.proposal("root", None),), 1: (sessions.proposal("wide", "k1"),)},
        drafts={"root": (sessions.draft("root", "time_us = 900"),), "wide": drafts},
    )

    async def run(folder: Path) -> None:
        opened = sessions.opened(branch=kernels, ideas=1)
        async with LiveSession.create(folder, opened, sessions.ports(folder, ideas)) as live:
            await live.run()

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "s"
        began = time.process_time()
        asyncio.run(run(folder))
        return EngineCost((time.process_time() - began) / kernels, (folder / NAME).stat().st_size / kernels)


@dataclass(frozen=True, slots=True)
class Scaled:
    """One simulated round."""

    devices: int
    kernels: int
    seconds: float
    engine_busy: float
    """Share of the time in which the engine worked."""
    devices_busy: float

    @property
    def per_minute(self) -> float:
        return 60 * self.kernels / self.seconds


def simulate(times: StageTimes, cost: float, devices: int, kernels: int, builders: int, seed: int = 0) -> Scaled:
    """A round of kernels: builds on ``builders`` compilers, trials on ``devices``, every result handled by one engine."""
    chance = random.Random(seed)
    builds, trials = deque(range(kernels)), deque[int]()
    done: list[tuple[float, int, str, int]] = []
    numbers = itertools.count()
    now = engine_free = engine_used = device_used = 0.0
    free_builders, free_devices = builders, devices
    while True:
        while builds and free_builders:
            free_builders -= 1
            heapq.heappush(done, (now + chance.choice(times.build), next(numbers), "build", builds.popleft()))
        while trials and free_devices:
            free_devices -= 1
            spent = chance.choice(times.verify)
            if chance.random() < times.measured_share:
                spent += chance.choice(times.measure)
            device_used += spent
            heapq.heappush(done, (now + spent, next(numbers), "trial", trials.popleft()))
        if not done:
            return Scaled(devices, kernels, now, engine_used / now, device_used / (now * devices))
        at, _, kind, kernel = heapq.heappop(done)
        share = cost / _EVENTS_OF_A_KERNEL * (1 if kind == "build" else 2)
        engine_free = max(engine_free, at) + share
        engine_used += share
        now = max(now, engine_free)
        if kind == "build":
            free_builders += 1
            trials.append(kernel)
        else:
            free_devices += 1


def table(times: StageTimes, cost: EngineCost, per_device: int, builders: int) -> Iterator[str]:
    yield "| devices | kernels | verdicts a minute | of linear | engine busy | devices busy | journal |"
    yield "|---|---|---|---|---|---|---|"
    alone = None
    for devices in DEVICES:
        one = simulate(times, cost.seconds, devices, per_device * devices, builders * devices)
        alone = alone or one.per_minute
        share = one.per_minute / (alone * devices)
        journal = one.per_minute * 60 * cost.journal_bytes / 1e6
        yield (
            f"| {devices:,} | {one.kernels:,} | {one.per_minute:,.0f} | {100 * share:.0f} % | {100 * one.engine_busy:.0f} % | "
            f"{100 * one.devices_busy:.0f} % | {journal:,.1f} MB/h |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_scale", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("sessions", nargs="*", type=Path)
    parser.add_argument("--per-device", type=int, default=48, metavar="N", help="kernels of a round for each device")
    parser.add_argument("--builders-per-device", type=int, default=4, metavar="N")
    parser.add_argument("--kernels", type=int, default=300, metavar="N", help="kernels of the session that measures the engine")
    options = parser.parse_args()
    folders = options.sessions or sorted(path.parent for path in (ROOT / "sessions").glob(f"*/{NAME}"))
    times, cost = recorded(folders), engine_cost(options.kernels)
    medians = f"build {median(times.build):.2f}, verify {median(times.verify):.2f}, measure {median(times.measure):.2f}"
    print(f"stages of {len(folders)} sessions, median seconds: {medians} for {100 * times.measured_share:.0f} % of the kernels")
    most = f"at most {60 / cost.seconds:,.0f} verdicts a minute"
    print(f"engine: {1e3 * cost.seconds:.2f} ms and {cost.journal_bytes:,.0f} bytes of journal a kernel, so {most}")
    print("\n".join(table(times, cost, options.per_device, options.builders_per_device)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
