"""Verdicts a minute on one worker and on several: ``python -m benchmarks.fleet_speed softmax matmul_fp16 --counts 1,2,4``.

For each problem the same session runs to its end with ``--fleet local:N`` for each N of ``--counts``, one after the other, each
in an engine of its own with an empty cache. It is seeded with ``--variants`` kernels: the playbook's, each with further values
of its tunables. All of them are built, verified and measured beside the naive port. Counted are the verdicts on these kernels,
from when a worker begins the first of them to the last verdict, without what precedes it: the start of the workers, their
baselines and ceilings, and the first builds.

With ``--side-by-side`` runs for several N and problems share the machine, if it has enough GPUs. Each has GPUs of its own,
and as many cores for each GPU as any other; runs that share a machine slow each other down (``docs/explanation/scale.md``).

Prints for each problem and N the verdicts, the minutes, the verdicts a minute and their ratio to the first N, the seconds of
preparation, the seconds until the last kernel was built (a rate that builds limit), the engine's own processor time as a share
of one core, how many kernels have a speedup whose interval overlaps that of the first N, and each worker's share of the
verdicts. Speedups are relative to a baseline on the same worker. ``--timeline`` prints what each worker did when, from the
journal.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import KernelCodeError
from engine.domain.folds import advance
from engine.domain.model import Dialect, Interval
from engine.domain.state import SessionState
from engine.domain.work_key import WorkKey
from engine.ideas.playbook_file import PlaybookImplementation, read_playbook
from engine.journal.journal import read
from engine.problem import catalog
from engine.session.devices import gpu_names
from engine.toolchain.tunables import variants

_VERDICTS = (e.KernelMeasured, e.KernelFailed, e.KernelQuarantined)
_TICKS = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.5
_HEAD = (
    f"{'problem':16}{'workers':>8}{'verdicts':>10}{'minutes':>9}{'a minute':>10}{'ratio':>8}{'prepared':>10}{'built':>7}"
    f"{'engine':>8}  agreement  shares"
)


@dataclass(frozen=True, slots=True)
class Search:
    """One session on so many workers."""

    problem: str
    workers: int
    verdicts: int
    failed: int
    """Those of them that found no right kernel."""
    minutes: float
    """From the first work on a counted kernel to the last verdict."""
    preparation_s: float
    """From the start of the command to the first work on a counted kernel."""
    built_s: float
    """From the first work on a counted kernel until all were built."""
    engine_share: float
    """Processor seconds of the engine's process per second of the whole run."""
    speedups: Mapping[str, Interval]
    """Over the ranking baseline, by kernel name."""
    shares: Mapping[str, int]
    """Verdicts of each worker."""

    @property
    def rate(self) -> float:
        return self.verdicts / self.minutes


def seeds(problem: str, device: str, workload: str, count: int) -> dict[str, str]:
    """``count`` kernels of the problem's playbook by file name: the files in turn, each with fixed values of its tunables.

    Raises SystemExit where the playbook has fewer.
    """
    found = catalog.find(problem)
    folder = catalog.folder(found)
    dialect = Dialect.CPP if device == "cpu" else Dialect.CUDA
    chosen = catalog.workload_for(found, workload or ("small" if device == "cpu" else "full"))
    names = {name.upper(): value for name, value in chosen.settings.items()}
    ideas = read_playbook(folder).ideas if folder is not None else ()
    files = {one.kernel.name: one for idea in ideas for one in idea.implementations.get(dialect, ())}
    lists = [list(_variants_of(one, names, count)) for one in files.values()]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*lists))
    made = dict(itertools.islice((one for one in turns if one is not None), count))
    if len(made) < count:
        raise SystemExit(f"{problem}: its playbook has {len(made)} {dialect} variants: use --variants {len(made)}")
    return made


def _variants_of(one: PlaybookImplementation, names: Mapping[str, float], limit: int) -> Iterator[tuple[str, str]]:
    """File name and text of each combination of tunables; of a file whose requirements cannot be evaluated here, none."""
    with suppress(KernelCodeError):
        stem, _, suffix = one.kernel.name.rpartition(".")
        for values in variants(one.tunables, one.requires, names, limit, 0):
            text = one.kernel.text
            for name, value in values.items():
                text = re.sub(rf"(@tune\s+{name}\s*=).*", rf"\1 {value}", text)
            yield "-".join((stem, *(f"{name.lower()}{value}" for name, value in values.items()))) + f".{suffix}", text


@dataclass(frozen=True, slots=True)
class Part:
    """What a run may use of the machine."""

    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them; none: all."""
    cores: tuple[int, ...] = ()
    """None: all."""

    def environment(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}

    def command(self) -> list[str]:
        """What starts a command within the part, as its first words."""
        return ["taskset", "--cpu-list", ",".join(map(str, self.cores))] if self.cores else []


@dataclass(frozen=True, slots=True)
class Run:
    """One session to make: a problem on so many workers."""

    problem: str
    workers: int
    part: Part = Part()


def side_by_side(runs: Sequence[Run], gpus: Sequence[str], cores: Sequence[int]) -> Iterator[list[Run]]:
    """Groups of runs that are to share the machine, each with its part; those with fewer workers first."""
    each = len(cores) // len(gpus)
    group: list[Run] = []
    used = 0
    for run in sorted(runs, key=lambda one: one.workers):
        if group and used + run.workers > len(gpus):
            yield group
            group, used = [], 0
        end = used + run.workers
        group.append(replace(run, part=Part(tuple(gpus[used:end]), tuple(cores[used * each : end * each]))))
        used = end
    yield group


def search(run: Run, given: argparse.Namespace) -> Search:
    """Make one session in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        session, kernels = Path(folder, "session"), Path(folder, "kernels")
        kernels.mkdir()
        command = [
            *run.part.command(), sys.executable, "-m", "espalier", "run", run.problem, "--headless", "--quiet",
            "--device", given.device, "--fleet", f"local:{run.workers}", "--rounds", "1", "--kernels", str(given.variants + 1),
            "--session", str(session), "--regime", given.regime,
        ]  # fmt: skip
        command += ["--workload", given.workload] if given.workload else []
        for name, text in seeds(run.problem, given.device, given.workload, given.variants).items():
            (kernels / name).write_text(text)
            command += ["--seed-kernel", str(kernels / name)]
        environment = {
            **os.environ,
            **run.part.environment(),
            "ESPALIER_CACHE": f"{folder}/cache",
            "ESPALIER_HOME": f"{folder}/home",
        }
        began, used = time.time(), 0.0
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as engine:
            while engine.poll() is None:
                used = processor_seconds(engine.pid, used)
                time.sleep(_POLL_S)
        if engine.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {engine.returncode}")
        entries = read(session).entries
        if given.timeline:
            print(*timeline(entries, began), sep="\n", flush=True)
        return counted(entries, run, began, used / (time.time() - began))


def processor_seconds(pid: int, before: float) -> float:
    """What a process has used itself, its children not counted; ``before`` once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return before
    return max(before, (int(fields[11]) + int(fields[12])) / _TICKS)


def counted(entries: Sequence[e.Entry], run: Run, began: float, engine_share: float) -> Search:
    """What the journal of a session says that began at ``began``."""
    state = advance(SessionState(), entries)
    mine = {name for name, kernel in state.kernels.items() if kernel.seed}
    on_device = {name for name, record in state.workers.items() if record.device is not None}
    first = next(one.at for one in entries if isinstance(one.event, e.WorkAssigned) and _is_work_on(one.event, mine, on_device))
    verdicts = [one for one in entries if isinstance(one.event, _VERDICTS) and one.event.kernel in mine]
    built = [one.at for one in entries if isinstance(one.event, e.KernelBuilt) and one.event.kernel in mine]
    settled = [state.kernels[name] for name in mine if state.kernels[name].stage.settled]
    speedups = {kernel.name: ratio for kernel in settled if (ratio := queries.speedup(state, kernel)) is not None}
    last = max(one.at for one in verdicts)
    return Search(
        run.problem, run.workers, len(settled), sum(kernel.failure is not None for kernel in settled), (last - first) / 60,
        first - began, max(built, default=first) - first, engine_share, speedups,
        Counter(kernel.worker or "builders" for kernel in settled),
    )  # fmt: skip


def _is_work_on(assigned: e.WorkAssigned, kernels: set[str], workers: set[str]) -> bool:
    return assigned.to in workers and bool(kernels & set(WorkKey.parse(assigned.work).subjects))


def timeline(entries: Sequence[e.Entry], began: float) -> Iterator[str]:
    """One line for each event of a worker, a preparation or a verdict, with the seconds since ``began``."""
    for one in entries:
        match one.event:
            case e.WorkerJoined(name) | e.BuilderJoined(name) | e.WorkerPrepared(name) | e.WorkerLost(name):
                what = f"{one.event.KIND} {name}"
            case e.WorkAssigned(work, to):
                what = f"{work} -> {to}"
            case e.SessionPrepared():
                what = one.event.KIND
            case e.KernelBuilt() | e.KernelVerified() | e.KernelMeasured() | e.KernelFailed() | e.KernelQuarantined():
                what = f"{one.event.KIND} {one.event.kernel}"
            case _:
                continue
        yield f"{one.at - began:8.2f}  {what}"


def agreeing(one: Search, other: Search) -> tuple[int, int]:
    """How many of the kernels measured in both have overlapping intervals, and how many those are."""
    both = one.speedups.keys() & other.speedups.keys()
    overlap = (
        one.speedups[key].low <= other.speedups[key].high and other.speedups[key].low <= one.speedups[key].high for key in both
    )
    return sum(overlap), len(both)


def row(one: Search, first: Search) -> str:
    """The line of a table; ratio and agreement are with ``first``."""
    same, both = agreeing(first, one)
    shares = ", ".join(f"{name} {count / one.verdicts:.0%}" for name, count in sorted(one.shares.items()))
    failed = f" ({one.failed} failed)" if one.failed else ""
    return (
        f"{one.problem:16}{one.workers:8}{one.verdicts:10}{one.minutes:9.2f}{one.rate:10.1f}{one.rate / first.rate:8.2f}"
        f"{one.preparation_s:8.0f} s{one.built_s:5.0f} s{one.engine_share:8.0%}  {same} of {both}  {shares}{failed}"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", metavar="PROBLEM")
    parser.add_argument("--counts", default="1,2,4", help="workers, comma separated")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 for GPUs, or cpu")
    parser.add_argument("--workload", default="")
    parser.add_argument("--variants", type=int, default=48, help="kernels beside the naive port")
    parser.add_argument("--regime", default="single", help="auto also times calls back to back, 10 s for each kernel")
    parser.add_argument("--side-by-side", action="store_true", help="several runs at a time, each with GPUs of its own")
    parser.add_argument("--timeline", action="store_true", help="print what each worker did when")
    given = parser.parse_args()
    counts = [int(count) for count in given.counts.split(",")]
    runs = [Run(problem, count) for problem in given.problems for count in counts]
    groups = [[run] for run in runs]
    if given.side_by_side:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = visible.split(",") if visible else list(map(str, range(len(gpu_names()))))
        groups = list(side_by_side(runs, gpus, sorted(os.sched_getaffinity(0))))
    first: dict[str, Search] = {}
    print(_HEAD, flush=True)
    for group in groups:
        with ThreadPoolExecutor() as pool:
            for one in pool.map(lambda run: search(run, given), group):
                print(row(one, first.setdefault(one.problem, one)), flush=True)


if __name__ == "__main__":
    main()
