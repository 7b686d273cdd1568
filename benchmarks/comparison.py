"""What comparing an output with the expected one costs: ``python -m benchmarks.comparison --device cpu``.

The judge compares block by block. The ratio is to the same formulas over whole tensors, measured in turn in the same run:
above 1, the blocks are faster. ``--blocks`` tries other sizes of a block. On a CPU one thread computes; its processor time
counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch

from engine.trial.judge import blocks
from engine.trial.judge.comparison import compare


def whole(output: torch.Tensor, reference: torch.Tensor) -> tuple[float, float, float]:
    """The errors of ``comparison``, each operator over the whole tensors."""
    spread = float(torch.linalg.vector_norm(reference - reference.mean())) / math.sqrt(reference.numel())
    difference = (output - reference).abs()
    norm = float(torch.linalg.vector_norm(difference)) / (spread * math.sqrt(reference.numel()))
    return norm, float((difference / (reference.abs() + spread)).max()), float(difference.max())


def seconds(work: Callable[[], object], device: str) -> float:
    """Processor time on a CPU; on a GPU the time until it is idle again."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - began


def main() -> None:
    """Print a line for each size of a block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--blocks", type=int, nargs="*", help="elements of a block. Default: the judge's")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = torch.device(options.device).type
    output = torch.randn(options.elements, device=options.device)
    reference = output.double() + 1e-7 * torch.randn(options.elements, dtype=torch.float64, device=options.device)
    for size in options.blocks or [blocks.ELEMENTS[kind]]:
        blocks.ELEMENTS[kind] = size
        plain: list[float] = []
        blocked: list[float] = []
        for _ in range(options.runs + 1):
            plain.append(seconds(lambda: whole(output, reference), kind))
            blocked.append(seconds(lambda: compare([output], [reference], ["out"]), kind))
        one, other = statistics.median(plain[1:]), statistics.median(blocked[1:])  # the first run warms up
        print(f"blocks of {size}: {other * 1e3:.1f} ms, whole tensors {one * 1e3:.1f} ms: {one / other:.2f} x")


if __name__ == "__main__":
    main()
