"""What comparing an output with the expected one costs: ``python -m benchmarks.comparison --device cpu``.

The judge compares block by block, and large tensors of a GPU in one pass each ("fused"). The ratio is to the same formulas over
whole tensors, measured in turn in the same run: above 1, the judge's way is faster. ``--blocks`` tries other sizes of a block,
``--dtype`` other types of the output. The moments of the expected output are computed every time; the judge computes them once
for several outputs. On a CPU one thread computes; its processor time counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch

from engine.trial.judge.outputs import blocks, fused_comparison
from engine.trial.judge.outputs.comparison import Errors, compare


def whole(output: torch.Tensor, reference: torch.Tensor) -> tuple[float, float, float]:
    """The errors of ``comparison``, each operator over the whole tensors."""
    spread = float(torch.linalg.vector_norm(reference - reference.mean())) / math.sqrt(reference.numel())
    difference = (output - reference).abs_()
    norm = float(torch.linalg.vector_norm(difference)) / (spread * math.sqrt(reference.numel()))
    return norm, float((difference / reference.abs().add_(spread)).max()), float(difference.max())


def seconds(work: Callable[[], object], device: str) -> float:
    """Processor time on a CPU; on a GPU the time until it is idle again."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - began


def judged(output: torch.Tensor, reference: torch.Tensor, *, fused: bool) -> Errors:
    """The judge's errors. Moments are remembered for a tensor object, and a view is another one."""
    before, fused_comparison.LEAST = fused_comparison.LEAST, 0 if fused else reference.numel() + 1
    try:
        return compare([output], [reference.view(-1)], ["out"])
    finally:
        fused_comparison.LEAST = before


def can_fuse(output: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether the kernels can read these tensors; says why not. Ends the program if they find what blocks do not."""
    kernels = fused_comparison.KERNELS
    before, fused_comparison.LEAST = fused_comparison.LEAST, 0
    pairs = [fused_comparison.fused_pair(one, reference) for one in (reference, output)]
    fused_comparison.LEAST = before
    if None in pairs:
        print(f"not fused: {getattr(kernels, 'missing', '') or f'only tensors of {kernels.device_type} are'}")
        return False
    one, other = judged(output, reference, fused=True), judged(output, reference, fused=False)
    found = ((one.rel_fro, other.rel_fro), (one.max_scaled, other.max_scaled), (one.max_abs, other.max_abs))
    if not all(math.isclose(a, b, rel_tol=1e-11) for a, b in found):
        raise SystemExit(f"fused: {one}, in blocks: {other}")
    return True


def main() -> None:
    """Print a line for each size of a block, and two for the fused comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--blocks", type=int, nargs="*", help="elements of a block. Default: the judge's")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64", "float16", "bfloat16"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = torch.device(options.device).type
    output = torch.randn(options.elements, device=options.device)
    reference = output.double()
    reference += torch.randn(options.elements, device=options.device).mul_(1e-7)
    output = output.to(getattr(torch, options.dtype))
    fusible = can_fuse(output, reference)
    for size in options.blocks or [blocks.ELEMENTS[kind]]:
        blocks.ELEMENTS[kind] = size
        ways: dict[str, Callable[[], object]] = {
            "whole tensors": lambda: whole(output, reference),
            f"blocks of {size}": lambda: judged(output, reference, fused=False),
        }
        if fusible:
            ways["fused"] = lambda: judged(output, reference, fused=True)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.runs + 1):
            for name, work in ways.items():
                times[name].append(seconds(work, kind))
        (_, one), *others = ((name, statistics.median(found[1:])) for name, found in times.items())  # the first run warms up
        for name, other in others:
            print(f"{name}: {other * 1e3:.1f} ms, whole tensors {one * 1e3:.1f} ms: {one / other:.2f} x")
        if fusible:
            print(f"fused: {others[0][1] / others[1][1]:.2f} x blocks")


if __name__ == "__main__":
    main()
