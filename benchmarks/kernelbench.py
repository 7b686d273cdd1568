"""KernelBench as a suite: ``python -m benchmarks.kernelbench PATH --device cuda:0,cuda:1``.

PATH is a checkout, one of its folders, or a file. Each chosen file is judged with its own model as the kernel
(``--kernel own``), with the naive port that ``scaffold`` writes (``port``), or with a candidate of a folder, at the sizes it
ships with. Every device has a worker (``--fleet local``: every GPU, or with ``--device cpu`` sets of cores; ``--fleet ray`` or
``HOST:PORT``: the devices of a Ray cluster); each file is judged by a process of its own, which ends with its time limit, and
with this program. On a GPU the process of the next file starts while one is judged, and imports torch; the seconds of a file
begin when it is given to its process and end with its verdict; the last line tells those of the whole run. A line of JSON per
file goes to ``--results``: files with a line there are skipped. With the model itself as the kernel, the speedup is an A/A
interval.

    python -m benchmarks.kernelbench KernelBench --levels 1,2 --sample 20 --seed 1 --results own.jsonl
    python -m benchmarks.kernelbench KernelBench --kernel port --names softmax,19_ReLU --time-limit 120
    python -m benchmarks.kernelbench KernelBench --kernel runs/my_run --results my_run.jsonl

``--set NAME=VALUE`` replaces a number at the top of the files that have it; the row then says so. ``--check-only`` checks
outputs and times nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from benchmarks import kernelbench_process
from benchmarks.kernelbench_files import Entry, chosen_entries
from benchmarks.kernelbench_fleet import judge_on
from benchmarks.kernelbench_judging import GIB, Request, Result, Status, short
from benchmarks.kernelbench_process import JUDGE, JudgingProcess, NextProcess
from benchmarks.peak_memory import PeakMemory
from engine.domain.errors import EspalierError
from engine.fleet.links import WorkerLauncher
from engine.fleet.places import WorkerPlace, local_count
from engine.session.benches import launcher

_VERIFIED = (Status.RIGHT, Status.MEASURED, Status.NOT_CORROBORATED, Status.QUARANTINED)
"""Statuses of kernels whose outputs were right."""
_HEAD = ("file", "device", "status", "seconds", "peak GiB", "x operands", "time us", "speedup over eager [95%]", "why")


@dataclass(frozen=True, slots=True)
class Plan:
    """What every worker does with a file."""

    kernel: str
    workload: str
    settings: Mapping[str, float]
    time_limit: float
    memory_limit: float
    places: Mapping[str, WorkerPlace] = field(default_factory=dict)
    """The workers of ``--fleet``, by name."""
    launcher: WorkerLauncher | None = None
    """Starts them, if they are those of a cluster."""
    suite: str = ""
    """The suite to judge on where a problem has it, instead of ``workload``."""
    accept_unverifiable: bool = False
    check_only: bool = False
    deadline: float = math.inf
    """When no further file starts, and what runs is ended, on the monotonic clock."""

    def request(self, entry: Entry, device: str, cores: tuple[int, ...] = ()) -> Request:
        """What is asked of the process that judges ``entry``."""
        return Request(
            str(entry.path), entry.name, device, entry.kernel or self.kernel, self.workload, dict(self.settings),
            self.memory_limit, cores, self.suite, self.accept_unverifiable, self.check_only,
        )  # fmt: skip

    def seconds(self) -> float:
        """How long a file that starts now may take."""
        return min(self.time_limit, self.deadline - time.monotonic())


async def judged(entry: Entry, device: str, plan: Plan, process: JudgingProcess | None) -> Result:
    """The result of one file, judged in a ``process`` of its own, with the peak memory of all its processes."""
    place = plan.places.get(device)
    if process is None:
        assert place is not None
        assert plan.launcher is not None
        return await _judged_elsewhere(entry, place, plan, plan.launcher)
    label = _label(device, plan)
    cores = place.cores if place is not None else ()
    request, limit = plan.request(entry, label, cores), plan.seconds()
    began = time.monotonic()
    memory = PeakMemory(process.pid, label)
    watching = asyncio.create_task(memory.watch())
    try:
        found = _read(request, await process.judge(request, limit), process.said)
    except TimeoutError:
        reason = f"not judged within {limit:g} s" + "".join(f"; from {step}" for step in process.said)
        found = Result(request.name, device, request.kernel, Status.TIME_LIMIT, short(reason))
    finally:
        watching.cancel()
        await process.end()
    ended = process.answered_at or time.monotonic()
    return replace(found, device=device, seconds=ended - began, peak_bytes=memory.peak, settings=dict(plan.settings))


def _label(device: str, plan: Plan) -> str:
    """``cpu`` or ``cuda:N`` for a device, or for a worker of ``--fleet``."""
    place = plan.places.get(device)
    return "cpu" if place is not None and place.cores else device


async def _judged_elsewhere(entry: Entry, place: WorkerPlace, plan: Plan, launcher: WorkerLauncher) -> Result:
    """The result of one file from a worker of a cluster, which starts for it and ends with it. Its peak memory is not known."""
    device = place.device.partition(":")[0]
    request, limit = plan.request(entry, place.device), plan.seconds()
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit):
            found = await judge_on(launcher, place, request)
    except TimeoutError:
        found = Result(request.name, device, request.kernel, Status.TIME_LIMIT, f"not judged within {limit:g} s")
    where = f"{device}:{place.name}" if not place.name.startswith(device) else place.name
    return replace(found, device=where, seconds=time.monotonic() - began, settings=dict(plan.settings))


def _read(request: Request, out: bytes, said: Sequence[str]) -> Result:
    """What the process printed, or why it printed nothing."""
    lines = out.decode(errors="replace").strip().splitlines()
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
        return Result.from_json(json.loads(lines[-1]))
    why = said[-1] if said else "it ended without a word"
    return Result(request.name, request.device, request.kernel, Status.FAILED, why[-300:])


async def run(entries: Sequence[Entry], devices: Sequence[str], plan: Plan, results: Path) -> list[Result]:
    """Judge the entries on all devices, each by the first worker that is free; results are appended as they come.

    SIGTERM, as ``timeout`` sends it, cancels it and waits for the end of what runs.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    waiting: asyncio.Queue[Entry] = asyncio.Queue()
    for entry in entries:
        waiting.put_nowait(entry)
    done: list[Result] = []

    async def worker(device: str) -> None:
        here = NextProcess(_label(device, plan)) if plan.launcher is None else None
        try:
            while not waiting.empty() and time.monotonic() < plan.deadline:
                entry = waiting.get_nowait()
                process = await here.take(more=not waiting.empty()) if here is not None else None
                found = await judged(entry, device, plan, process)
                done.append(found)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found.to_json()) + "\n")
                print("  ".join(row(found)), flush=True)
        finally:
            if here is not None:
                await here.close()

    try:
        await asyncio.gather(*(worker(device) for device in devices))
    finally:
        if plan.launcher is not None:
            await plan.launcher.close()
    return done


def known_results(results: Path, plan: Plan, kind: str) -> list[Result]:
    """Earlier results of the same kernels, settings and kind of device, the latest of each file. A torn line is skipped.

    A kernel that was only checked counts where no more is asked.

    A plan without a kernel is that of entries with kernels of their own, which their names tell.
    """
    found: dict[str, Result] = {}
    for text in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            one = Result.from_json(json.loads(text))
            same = (dict(one.settings), one.device.partition(":")[0]) == (dict(plan.settings), kind)
            enough = plan.check_only or one.status is not Status.RIGHT
            if same and enough and plan.kernel in ("", one.kernel):
                found[one.name] = one
    return list(found.values())


def row(one: Result) -> tuple[str, ...]:
    """A row of the table."""
    share = f"{one.peak_bytes / one.operand_bytes:.1f}" if one.peak_bytes and one.operand_bytes else ""
    ratio = "{:.3f} [{:.3f}, {:.3f}]".format(*one.speedup) if one.speedup else ""
    ratio += f"; worst of {one.workloads}: {one.worst}" if one.worst else ""
    return (
        one.name, one.device, one.status.replace("_", " "), f"{one.seconds:.1f}",
        f"{one.peak_bytes / GIB:.2f}" if one.peak_bytes else "", share, f"{one.time_us:.1f}" if one.time_us else "", ratio,
        one.reason,
    )  # fmt: skip


def table(found: Sequence[Result]) -> Iterator[str]:
    """All results as a Markdown table."""
    yield "| " + " | ".join(_HEAD) + " |"
    yield "|" + "---|" * len(_HEAD)
    for one in sorted(found, key=lambda r: r.sort_key):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row(one)) + " |"


def summary(found: Sequence[Result]) -> Iterator[str]:
    """Counts by status and by reason, and medians."""
    verified = [one for one in found if one.status in _VERIFIED]
    yield f"{len(found)} files: {len(verified)} verified"
    for status, count in Counter(one.status for one in found).most_common():
        reasons = Counter(one.reason_class for one in found if one.status is status and one.reason)
        shown = ", ".join(f"{why} ({n})" for why, n in reasons.most_common(6))
        yield f"  {status.replace('_', ' ')}: {count}{': ' + shown if shown and status not in _VERIFIED else ''}"
    judged_ones = [one.seconds - one.waited_s for one in found if one.status not in (Status.SKIPPED, Status.TIME_LIMIT)]
    if judged_ones:
        seconds = f"median {median(judged_ones):.1f}, largest {max(judged_ones):.1f}"
        yield f"seconds a verdict, without waiting for the device: {seconds}"
    shares = [one.peak_bytes / one.operand_bytes for one in verified if one.peak_bytes and one.operand_bytes >= GIB]
    if shares:
        largest = f"median {median(shares):.1f} x operands, largest {max(shares):.1f} x"
        yield f"peak memory of {len(shares)} files with at least 1 GiB: {largest}"
    against_itself = [one.speedup for one in found if one.kernel == "own" and one.speedup]
    if against_itself:
        inside = sum(low <= 1.0 <= high for _, low, high in against_itself)
        widths = [100 * (high - low) / 2 for _, low, high in against_itself]
        yield f"A/A: {inside} of {len(against_itself)} intervals contain 1; median half-width {median(widths):.2f} %"


def _numbers(text: str) -> tuple[int, ...]:
    """``1,2`` or ``3-20``."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def _setting(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    number = float(value)
    return name, int(number) if number.is_integer() else number


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernelbench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="a KernelBench checkout, one of its folders, or a file")
    parser.add_argument("--levels", type=_numbers, default=(), help="e.g. 1,2")
    parser.add_argument("--numbers", type=_numbers, default=(), help="problem numbers, e.g. 1-20,33")
    parser.add_argument("--names", default="", help="parts of file names, comma separated")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="a random sample of N files")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the sample")
    parser.add_argument("--kernel", default="own", help="own, port, or a folder of candidates. Default: own")
    parser.add_argument("--device", default="cuda:0", help="one worker for each, comma separated")
    parser.add_argument("--fleet", default="", help="a worker for each device of that kind: local, local:N, ray, HOST:PORT")
    parser.add_argument("--workload", default="full")
    parser.add_argument("--set", dest="settings", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="seconds for a file. Default: 600")
    parser.add_argument("--memory-limit", type=float, default=0.0, metavar="GIB", help="skip files with larger operands")
    parser.add_argument("--results", type=Path, default=Path("kernelbench.jsonl"), help="Default: kernelbench.jsonl")
    parser.add_argument("--check-only", action="store_true", help="check outputs, time nothing")
    parser.add_argument("--again", action="store_true", help="judge files that have a result again")
    parser.add_argument("--list", action="store_true", help="print the chosen files only")
    return parser.parse_args(arguments)


def _fleet(text: str, device: str) -> tuple[Mapping[str, WorkerPlace], WorkerLauncher | None]:
    """The workers of ``--fleet``, and what starts those of a cluster. Raises EspalierError."""
    if not text:
        return {}, None
    found = launcher(text, device)
    places = {place.name: place for place in found.places}
    return places, found if local_count(text) is None else None


def main(arguments: Sequence[str]) -> int:
    """Judge what is chosen and has no result yet; print the table and the summary of all that is chosen."""
    if arguments[:1] == [JUDGE]:
        kernelbench_process.main(arguments[1], int(arguments[2]))
        return 0
    options = _options(arguments)
    entries = chosen_entries(options.path, options.levels, options.numbers, [n for n in options.names.split(",") if n])
    if options.sample:
        entries = sorted(random.Random(options.seed).sample(entries, min(options.sample, len(entries))))
    if options.list:
        print("\n".join(str(entry.path) for entry in entries))
        return 0
    places, cluster = _fleet(options.fleet, options.device)
    plan = Plan(
        options.kernel, options.workload, dict(options.settings), options.time_limit, options.memory_limit, places, cluster,
        check_only=options.check_only,
    )  # fmt: skip
    devices = [*places] or options.device.split(",")
    earlier = [] if options.again else known_results(options.results, plan, options.device.partition(":")[0])
    chosen = {entry.name for entry in entries}
    earlier = [one for one in earlier if one.name in chosen]
    judged_before = {one.name for one in earlier}
    left = [entry for entry in entries if entry.name not in judged_before]
    print(f"{len(entries)} files, {len(earlier)} judged before, on {', '.join(devices)}", flush=True)
    began = time.monotonic()
    found = [*earlier, *asyncio.run(run(left, devices, plan, options.results))]
    print("\n".join(["", *table(found), "", *summary(found)]))
    if left:
        seconds = time.monotonic() - began
        print(f"{len(left)} files in {seconds:.0f} s: {seconds * len(devices) / len(left):.1f} s of a device for each")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except EspalierError as error:
        sys.exit(f"benchmarks.kernelbench: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
