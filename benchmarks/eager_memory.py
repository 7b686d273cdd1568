"""The memory that eager PyTorch takes for KernelBench files: ``python -m benchmarks.eager_memory PATH --results eager.jsonl``.

Each file's model is built, given its inputs and called once, at the sizes that it ships with, in one process for each device.
Counted is what torch's allocator has reserved at most, without the device's context. A line of JSON per file goes to
``--results``: files with a line there are skipped.

With ``--beside own.jsonl``, the results of ``benchmarks.kernelbench``, it prints the peak of judging beside the limit: six
times the operands, or twice what eager takes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kernelbench_files import Entry, chosen_entries
from benchmarks.kernelbench_judging import GIB, Result
from engine.domain.errors import EspalierError
from engine.problem import catalog

_TIMES_OPERANDS, _TIMES_EAGER = 6, 2
_HEAD = f"{'file':52}{'judge':>10}{'operands':>10}{'eager':>10}{'limit':>10}"


@dataclass(frozen=True, slots=True)
class EagerPeak:
    """One line of the results file."""

    name: str
    peak_bytes: int = 0
    error: str = ""


def main() -> int:
    """Command line. Exit status 2 on bad input."""
    options = _parser().parse_args()
    try:
        entries = chosen_entries(options.path, options.levels, (), [part for part in options.names.split(",") if part])
    except EspalierError as error:
        print(f"eager_memory: {error}", file=sys.stderr)
        return 2
    known = {peak.name: peak for peak in _known(options.results)}
    devices = options.device.split(",")
    missing = [entry for entry in entries if entry.name not in known]
    shares = [(device, missing[place :: len(devices)]) for place, device in enumerate(devices)]
    with options.results.open("a") as file, multiprocessing.get_context("spawn").Pool(len(devices)) as pool:
        for peaks in pool.imap_unordered(_measured, shares):
            for peak in peaks:
                known[peak.name] = peak
                print(json.dumps(asdict(peak)), file=file, flush=True)
    if options.beside is not None:
        _print_beside(_results(options.beside), known)
    return 0


def _measured(share: tuple[str, Sequence[Entry]]) -> list[EagerPeak]:
    """The peaks of these files on one device."""
    device, entries = share
    return [_peak(entry, device) for entry in entries]


def _peak(entry: Entry, device: str) -> EagerPeak:
    import torch

    from engine.problem.reference import Reference

    torch.cuda.empty_cache()
    try:
        problem = catalog.find(str(entry.path))
        reference = Reference(problem, catalog.workloads_for(problem, "full", "", "full")[0], device)
        model, inputs = reference.model(0), reference.inputs(0)
        torch.cuda.empty_cache()  # what drawing them took
        torch.cuda.reset_peak_memory_stats(device)
        with torch.no_grad():
            model(*inputs)
        torch.cuda.synchronize(device)
    except (EspalierError, RuntimeError) as error:
        return EagerPeak(entry.name, error=str(error)[:200])
    return EagerPeak(entry.name, torch.cuda.max_memory_reserved(device))


def _known(path: Path) -> Iterator[EagerPeak]:
    for line in path.read_text().splitlines() if path.is_file() else ():
        yield EagerPeak(**json.loads(line))


def _results(path: Path) -> list[Result]:
    found = [Result.from_json(json.loads(line)) for line in path.read_text().splitlines()]
    return sorted((one for one in found if one.peak_bytes and one.operand_bytes), key=lambda one: one.sort_key)


def _print_beside(results: Sequence[Result], eager: dict[str, EagerPeak]) -> None:
    print(_HEAD)
    within = counted = 0
    for one in results:
        peak = eager.get(one.name)
        if peak is None or not peak.peak_bytes:
            continue
        limit = max(_TIMES_OPERANDS * one.operand_bytes, _TIMES_EAGER * peak.peak_bytes)
        counted += 1
        within += one.peak_bytes <= limit
        cells = (one.peak_bytes, one.operand_bytes, peak.peak_bytes, limit)
        over = "" if one.peak_bytes <= limit else f"  {one.peak_bytes / limit:.2f}× the limit"
        print(f"{one.name:52}{''.join(f'{cell / GIB:>10.2f}' for cell in cells)}{over}")
    print(f"within {_TIMES_OPERANDS} × operands or {_TIMES_EAGER} × eager: {within} of {counted} files, in GiB")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a KernelBench checkout, one of its folders, or a file")
    parser.add_argument("--levels", type=lambda text: [int(one) for one in text.split(",")], default=(), help="e.g. 1,2")
    parser.add_argument("--names", default="", help="parts of file names, comma separated")
    parser.add_argument("--device", default="cuda:0", help="one process for each, comma separated")
    parser.add_argument("--results", type=Path, default=Path("eager_memory.jsonl"), help="Default: eager_memory.jsonl")
    parser.add_argument("--beside", type=Path, help="results of benchmarks.kernelbench")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
