"""Verdicts a minute on one worker and on several: ``python -m benchmarks.fleet_speed softmax matmul --counts 1,2,4``.

For each problem the same search runs to its end with ``--fleet local:N`` for each N of ``--counts``, one after the other: one
round of the playbook, ``--ideas`` times ``--branch`` kernels behind the naive port, each in an engine of its own with an empty
build cache. Counted is what is settled between the first build and the last verdict, without the preparation. Prints for each N
the verdicts a minute, their ratio to the first N, the engine's own processor time as a share of one core, and how many kernels
have a speedup whose interval overlaps that of the first N. Speedups are relative to a baseline on the same worker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from engine.domain import events as e
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.journal.journal import read

_VERDICTS = (e.KernelMeasured, e.KernelFailed, e.KernelQuarantined)
_TICKS = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Search:
    """One search on so many workers."""

    workers: int
    verdicts: int
    minutes: float
    """From the first build to the last verdict."""
    engine_share: float
    """Processor seconds of the engine's process per second of the whole run."""
    speedups: dict[tuple[str, tuple[tuple[str, int], ...]], Interval]
    """Over the ranking baseline, by kernel name and tunables."""

    @property
    def rate(self) -> float:
        return self.verdicts / self.minutes


def search(problem: str, workers: int, given: argparse.Namespace) -> Search:
    """Run one search in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder, "session")
        command = [
            sys.executable, "-m", "espalier", "run", problem, "--headless", "--quiet", "--device", given.device,
            "--fleet", f"local:{workers}", "--rounds", "1", "--ideas", str(given.ideas), "--branch", str(given.branch),
            "--session", str(session),
        ]  # fmt: skip
        command += ["--workload", given.workload] if given.workload else []
        environment = {**os.environ, "ESPALIER_CACHE": f"{folder}/cache", "ESPALIER_HOME": f"{folder}/home"}
        began, used = time.monotonic(), 0.0
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as engine:
            while engine.poll() is None:
                used = processor_seconds(engine.pid, used)
                time.sleep(_POLL_S)
        if engine.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {engine.returncode}")
        return counted(session, workers, used / (time.monotonic() - began))


def processor_seconds(pid: int, before: float) -> float:
    """What a process has used itself, its children not counted; ``before`` once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return before
    return max(before, (int(fields[11]) + int(fields[12])) / _TICKS)


def counted(session: Path, workers: int, engine_share: float) -> Search:
    """What the journal of a search says."""
    entries = read(session).entries
    state = advance(SessionState(), entries)
    first = next(one.at for one in entries if isinstance(one.event, e.KernelBuilt))
    last = max(one.at for one in entries if isinstance(one.event, _VERDICTS))
    speedups = {
        (kernel.name, tuple(sorted(kernel.tunables.items()))): ratio
        for kernel in state.kernels.values()
        if (ratio := queries.speedup(state, kernel)) is not None
    }
    settled = sum(kernel.stage.settled for kernel in state.kernels.values())
    return Search(workers, settled, (last - first) / 60, engine_share, speedups)


def agreeing(one: Search, other: Search) -> tuple[int, int]:
    """How many of the kernels measured in both have overlapping intervals, and how many those are."""
    both = one.speedups.keys() & other.speedups.keys()
    overlap = (
        one.speedups[key].low <= other.speedups[key].high and other.speedups[key].low <= one.speedups[key].high for key in both
    )
    return sum(overlap), len(both)


def main() -> None:
    """Print a table for each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="PROBLEM")
    parser.add_argument("--counts", default="1,2,4", help="workers, comma separated")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 for GPUs, or cpu")
    parser.add_argument("--workload", default="")
    parser.add_argument("--ideas", type=int, default=8)
    parser.add_argument("--branch", type=int, default=6)
    given = parser.parse_args()
    for problem in given.problems:
        found = []
        print(
            f"{problem}\n{'workers':>8}{'verdicts':>10}{'minutes':>9}{'a minute':>10}{'ratio':>8}{'engine':>8}  agreement",
            flush=True,
        )
        for count in map(int, given.counts.split(",")):
            found.append(one := search(problem, count, given))
            same, both = agreeing(found[0], one)
            print(
                f"{count:8}{one.verdicts:10}{one.minutes:9.2f}{one.rate:10.1f}{one.rate / found[0].rate:8.2f}"
                f"{one.engine_share:8.0%}  {same} of {both}",
                flush=True,
            )


if __name__ == "__main__":
    main()
