"""How much a reference's time depends on where its memory lies: ``python -m benchmarks.memory_places FILE --places 20``.

FILE is a problem's file. Eager PyTorch, in this process, is called with the same inputs and weights; between places its memory
is given back to the driver and allocated again, behind memory that nothing uses. Printed are the fastest of several calls at
each place, with a cold L2 cache, and the ratio of the slowest place to the fastest.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.kernelbench_judging import OWN, Request, find_problem
from engine.domain.errors import EspalierError
from engine.problem.loading import use_device
from engine.problem.reference import Reference

if TYPE_CHECKING:
    import torch

_PAGE_BYTES = 2 << 20
_MOST_PAGES = 256
_CALLS = 4
_COLD_BYTES = 256 << 20


def main() -> int:
    """Command line. Exit status 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_places", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--places", type=int, default=20)
    options = parser.parse_args()
    try:
        times = _at_places(options.file, options.device, options.places)
    except EspalierError as error:
        print(f"memory_places: {error}", file=sys.stderr)
        return 2
    print("us at each place:", " ".join(f"{one:.0f}" for one in sorted(times)))
    print(f"slowest / fastest place: {max(times) / min(times):.3f}")
    return 0


def _at_places(file: Path, device: str, places: int) -> list[float]:
    import torch

    if use_device(device).type != "cuda":
        raise EspalierError("--device must be a GPU, e.g. cuda:0")
    problem, (workload, *_) = find_problem(Request(str(file), file.stem, device, OWN, "full", {}, 0.0))
    reference = Reference(problem, workload, device)
    model, inputs = reference.model(0), reference.inputs(0)
    cold = torch.empty(_COLD_BYTES, dtype=torch.uint8, device=device)

    def call() -> None:
        reference.call(model, inputs)

    return [_at_a_place(call, cold) for _ in range(places)]


def _at_a_place(call: Callable[[], None], cold: torch.Tensor) -> float:
    """The fastest of several calls, in µs, where the allocations of the first one happen to lie."""
    import torch

    torch.cuda.empty_cache()
    unused = torch.empty((1 + secrets.randbelow(_MOST_PAGES)) * _PAGE_BYTES, dtype=torch.uint8, device="cuda")
    call()
    found: list[float] = []
    for _ in range(_CALLS):
        cold.zero_()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        call()
        ended.record()
        torch.cuda.synchronize()
        found.append(began.elapsed_time(ended) * 1e3)
    del unused
    return min(found)


if __name__ == "__main__":
    sys.exit(main())
