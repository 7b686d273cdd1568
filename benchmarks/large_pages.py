"""Seconds to write a fresh tensor of the host in small pages and in large ones: ``python -m benchmarks.large_pages``.

A judge on a GPU and the processes of its kernels ask torch for large pages (``engine/sandbox/python_process.py``): models are
made on the CPU, and level 3 of KernelBench has weights of several GiB. Each size is written in processes with and without, in
turns. The system has to allow it: ``/sys/kernel/mm/transparent_hugepage/enabled`` says ``madvise`` or ``always``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from engine.sandbox.python_process import LARGE_PAGES

_WRITE = """
import sys, time, torch
torch.set_num_threads(1)
count, source = int(sys.argv[1]) << 18, torch.ones(1 << 20)
for _ in range(3):
    began = time.perf_counter()
    made = torch.empty(count)
    for part in made.split(1 << 20):
        part.copy_(source[: part.numel()])
    print(time.perf_counter() - began)
    del made
"""


def seconds(mebibytes: int, extra: dict[str, str]) -> float:
    """The least of three times in one process: its first also loads torch's code."""
    command = [sys.executable, "-c", _WRITE, str(mebibytes)]
    ended = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=True)
    return min(map(float, ended.stdout.split()))


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.large_pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="64,512", metavar="MIB", help="comma separated. Default: 64,512")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args(arguments)
    print(f"{'MiB':>8}{'small pages':>14}{'large pages':>14}{'ratio':>8}")
    for size in map(int, given.sizes.split(",")):
        turns = [(seconds(size, {}), seconds(size, LARGE_PAGES)) for _ in range(given.turns)]
        small, large = (median(one) for one in zip(*turns, strict=True))
        ratio = median(few / many for many, few in turns)
        print(f"{size:>8}{small:>12.3f} s{large:>12.3f} s{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
