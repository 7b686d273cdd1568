"""Problems of other formats as a suite: ``python -m benchmarks.formats PATH... --device cuda:0,cuda:1``.

PATH is a checkout of flashinfer-bench, SOL-ExecBench or reference-kernels, a folder of one, or a file of a problem. Each is
judged with its own reference as the kernel (its outputs are right, and the speedup is an A/A interval), then with each solution
that comes with it. A problem is judged on the suite of its benchmarks, else on ``--workload``. Processes, limits, results and
their resumption are those of ``benchmarks.kernelbench``.

    python -m benchmarks.formats flashinfer-bench SOL-ExecBench reference-kernels --device cuda:0 --results formats.jsonl
    python -m benchmarks.formats reference-kernels --names pmpp_v2 --kernels own --time-limit 120 --deadline 550
    python -m benchmarks.formats SOL-ExecBench/examples --device cpu --suite "" --workload small
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import kernelbench
from benchmarks.formats_files import OWN, chosen_entries
from benchmarks.kernelbench_judging import Result, Status
from engine.domain.errors import EspalierError
from engine.problem.formats.building import BENCHMARKS

_LANGUAGES = "python,pytorch,triton,cuda,cpp,cuda_cpp"


def summary(found: Sequence[Result]) -> Iterator[str]:
    """The counts of problems and of solutions apart, with the reason of everything that has no measurement."""
    for title, group in (
        ("problems, their reference as the kernel", [one for one in found if one.kernel == OWN]),
        ("solutions that came with them", [one for one in found if one.kernel != OWN]),
    ):
        if group:
            yield f"{title}:"
            yield from kernelbench.summary(group)
            for one in sorted(group, key=lambda r: r.name):
                if one.status is not Status.MEASURED:
                    yield f"    {one.name}: {one.status.replace('_', ' ')}: {one.reason}"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.formats", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a checkout, a folder of one, or a problem's file")
    parser.add_argument("--names", default="", help="parts of names, comma separated")
    parser.add_argument("--kernels", choices=("own", "solutions", "all"), default="all", help="Default: all")
    parser.add_argument("--languages", default=_LANGUAGES, help=f"of the solutions to judge. Default: {_LANGUAGES}")
    parser.add_argument("--device", default="cuda:0", help="one worker for each, comma separated")
    parser.add_argument("--suite", default=BENCHMARKS, help="the suite to judge on where a problem has it. Default: benchmarks")
    parser.add_argument("--workload", default="full", help="the workload to judge on where it has not. Default: full")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="seconds for a kernel. Default: 300")
    parser.add_argument("--deadline", type=float, default=math.inf, metavar="S", help="seconds for the run")
    parser.add_argument("--memory-limit", type=float, default=0.0, metavar="GIB", help="skip problems with larger operands")
    parser.add_argument("--accept-unverifiable", action="store_true", help="judge where a trivial model passes the check, too")
    parser.add_argument("--results", type=Path, default=Path("formats.jsonl"), help="Default: formats.jsonl")
    parser.add_argument("--again", action="store_true", help="judge what has a result again")
    parser.add_argument("--list", action="store_true", help="print what is chosen only")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Judge what is chosen and has no result yet; print the table and the summary of all that is chosen."""
    options = _options(arguments)
    entries = chosen_entries(
        options.paths, _parts(options.names), _parts(options.languages),
        own=options.kernels != "solutions", solved=options.kernels != OWN,
    )  # fmt: skip
    if options.list:
        print("\n".join(entry.name for entry in entries))
        return 0
    plan = kernelbench.Plan(
        "", options.workload, {}, options.time_limit, options.memory_limit, suite=options.suite,
        accept_unverifiable=options.accept_unverifiable, deadline=time.monotonic() + options.deadline,
    )  # fmt: skip
    devices = _parts(options.device)
    earlier = [] if options.again else kernelbench.known_results(options.results, plan, devices[0].partition(":")[0])
    chosen = {entry.name for entry in entries}
    earlier = [one for one in earlier if one.name in chosen]
    left = [entry for entry in entries if entry.name not in {one.name for one in earlier}]
    print(f"{len(entries)} kernels, {len(earlier)} judged before, on {', '.join(devices)}", flush=True)
    found = [*earlier, *asyncio.run(kernelbench.run(left, devices, plan, options.results))]
    print("\n".join(["", *kernelbench.table(found), "", *summary(found)]))
    if len(found) < len(entries):
        print(f"{len(entries) - len(found)} of {len(entries)} not judged before the deadline: the same command continues")
    return 0


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except EspalierError as error:
        sys.exit(f"benchmarks.formats: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
