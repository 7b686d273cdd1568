"""The same work under six stopwatches: ``python -m benchmarks.stopwatches --device cuda:0 [--kernelbench PATH]``.

This program's in both regimes (single: median of interleaved samples in several processes, cold caches, the device held until
the call is enqueued; sustained: back to back until clock and power have settled), Triton's ``do_bench`` (median), KernelBench's
CUDA events (its own code if ``--kernelbench`` names its ``src`` folder), a plain loop of calls over four sets of inputs (its
first tenth of a second, and its third second) and Nsight Compute's ``gpu__time_duration`` (caches flushed, clocks not locked).
Prints microseconds, their ratio to this program's single calls, for those that call without a pause also to its sustained ones,
and the clock and power after the loop if NVML is available. Work at the power limit is timed at a lower clock than a single
call; ``do_bench`` and KernelBench flush the caches between calls, which takes power too.

Eager's sustained time is that of the baseline beside the reference itself, judged as a module.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import ctypes
import io
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import torch

from engine.api.evaluation import code as classified
from engine.domain import work as w
from engine.domain.model import Workload
from engine.domain.regimes import Sustained
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.session.seeds import kernel_spec, seed_of
from engine.session.workbench import Workbench, open_workbench
from engine.toolchain.kernel_file import read_kernel_file
from engine.trial.bench import Assignment, BuiltKernel, KernelSpec

_EAGER = ("softmax", "layernorm", "matmul_fp32", "matmul_fp16", "attention_fp16", "conv2d", "conv2d_relu_maxpool")
_HOST = ("softmax", "online_host.cu")
_CALLS = 7
_WARM_UP_MS = 1000
"""Milliseconds of calls before ``do_bench`` and KernelBench count: with theirs, of 25 ms and three calls, an H200 still ran at
full clock after matmul_fp16, and at a lowered one after attention."""
_SETS = 4
_BLOCK_US, _EARLY_MS, _LOOP_MS = 20e3, 100.0, 3000.0
"""Of the plain loop: the length of a block, and the milliseconds that count as early, and as all."""
_PROFILED = "ESPALIER_PROFILED"

Call = Callable[[], object]


def eager(problem: str, device: str) -> Call:
    """The reference as PyTorch runs it, on its own inputs: on the next set of them in each call."""
    found = catalog.find(problem)
    reference = Reference(found, full(problem), device)
    model, sets = reference.model(1), cycle([reference.inputs(2 + one) for one in range(_SETS)])
    return lambda: model(*next(sets))


def compiled(binary: str, problem: str, device: str) -> Call:
    """A host-contract kernel without a workspace, called in this process."""
    reference = Reference(catalog.find(problem), full(problem), device)
    inputs = [x for one in range(_SETS) for x in reference.inputs(2 + one) if isinstance(x, torch.Tensor)]
    out = torch.empty_like(inputs[0])
    launch = ctypes.CDLL(binary).launch
    orders = cycle([[ctypes.c_void_p(p) for p in (x.data_ptr(), out.data_ptr(), None, None)] for x in inputs])
    return lambda: (launch(*next(orders)), inputs, out)


def full(problem: str) -> Workload:
    return catalog.workload_for(catalog.find(problem), "full")


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work with this program's microseconds in both regimes."""

    name: str
    single: float
    sustained: float
    binary: str = ""


async def espalier_cases(problem: str, device: str) -> list[Case]:
    """Eager, and for one problem a host kernel."""
    found = catalog.find(problem)
    itself = classified(f"{found.reference}\n\nModelNew = Model\n", "eager.py")
    async with open_workbench(Assignment(found, full(problem), device), lambda _: None, accept_unverifiable=False) as bench:
        single = bench.preparation.baselines["eager"].time_us.value
        beside = await sustained_times(bench, kernel_spec(itself, {}))
        cases = [Case(f"eager {problem}", single, beside.time_us.value * beside.speedup["eager"].value)]
        if problem == _HOST[0]:
            seed = seed_of(read_kernel_file(catalog.problems_root() / problem / "playbook" / _HOST[1]), {})
            source = kernel_spec(seed.kernel, seed.tunables)
            tried = await bench.attempt(source)
            assert tried.measurement is not None, tried.final
            ready = await bench.bench.build_candidate(source, lambda _: None)
            assert isinstance(ready, BuiltKernel)
            own = await sustained_times(bench, source)
            single = tried.measurement.time_us.value
            cases.append(Case(f"kernel {problem}", single, own.time_us.value, ready.candidate.built.binary))
    return cases


async def sustained_times(bench: Workbench, kernel: KernelSpec) -> Sustained:
    found = await bench.bench.sustain_kernel(kernel, lambda _: None)
    assert isinstance(found, w.BackToBack), found
    assert found.times is not None, found.note
    return found.times


def by_do_bench(call: Call) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, warmup=_WARM_UP_MS, return_mode="median")) * 1e3


def by_loop(call: Call, usual_us: float) -> tuple[float, float]:
    """A call's time without a pause and without a flush: over the first tenth of a second, and over the third second.

    ``usual_us``: about the time of a call. Blocks of calls lie between two events each, and the host stays two ahead.
    """
    calls = max(1, round(_BLOCK_US / usual_us))
    call()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    ended: list[tuple[float, float]] = []
    while not ended or ended[-1][0] < _LOOP_MS:
        for _ in range(calls):
            call()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > 3:
            last = events[-3]
            last.synchronize()
            ended.append((events[0].elapsed_time(last), events[-4].elapsed_time(last) * 1e3 / calls))
    torch.cuda.synchronize()
    early = [us for at, us in ended if at <= _EARLY_MS]
    late = [us for at, us in ended if at > _LOOP_MS - 1000]
    return statistics.median(early or [ended[0][1]]), statistics.median(late)


def clock_and_power(device: str) -> str:
    """The current SM clock and power; empty if NVML is not available."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        return f"  {clock} MHz, {pynvml.nvmlDeviceGetPowerUsage(handle) / 1000:.0f} W"
    except Exception:  # no NVML: print times only
        return ""


def by_kernelbench(call: Call, checkout: str, usual_us: float) -> float:
    """Median of its event timing. ``usual_us``: about the time of a call."""
    sys.path.insert(0, checkout)
    from kernelbench.timing import time_execution_with_cuda_event

    with contextlib.redirect_stdout(io.StringIO()):
        warm_up = max(3, round(_WARM_UP_MS * 1e3 / usual_us))
        times = time_execution_with_cuda_event(call, [], num_warmup=warm_up, num_trials=30, verbose=False)
    return statistics.median(times) * 1e3


def by_ncu(name: str, binary: str, device: str) -> float | str:
    """Duration of one call (the sum over its kernels, the median over calls), or the reason why it is missing."""
    tool = shutil.which("ncu")
    if tool is None:
        return "no ncu"
    command = [
        tool, "--csv", "--metrics", "gpu__time_duration.sum", "--clock-control", "none", "--profile-from-start", "off",
        sys.executable, os.path.abspath(__file__), "--device", device, "--only", name, "--binary", binary,
    ]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, _PROFILED: "1"}, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    times = [_us(row) for row in csv.DictReader(lines) if row.get("Metric Name") == "gpu__time_duration.sum"]
    if not times:
        return (done.stderr or done.stdout).strip().splitlines()[-1][:80]
    per_call = len(times) // _CALLS
    return statistics.median(sum(times[i : i + per_call]) for i in range(0, len(times), per_call))


def _us(row: dict[str, str]) -> float:
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    return float(row["Metric Value"].replace(",", "")) * scale[row["Metric Unit"]]


def run_profiled(call: Call) -> None:
    """Run the calls under ncu."""
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(_CALLS):
        call()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def call_of(name: str, binary: str, device: str) -> Call:
    kind, problem = name.split()
    return eager(problem, device) if kind == "eager" else compiled(binary, problem, device)


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernelbench", default="")
    parser.add_argument("--problems", default=",".join(_EAGER))
    parser.add_argument("--only", default="")
    parser.add_argument("--binary", default="")
    options = parser.parse_args()
    with torch.no_grad():
        if os.environ.get(_PROFILED):
            run_profiled(call_of(options.only, options.binary, options.device))
            return
        others = "".join(f"{name:>26}" for name in ("do_bench", "KernelBench", "loop, 0.1 s", "loop, third second"))
        print(f"{'us':26}{'single':>10}{'sustained':>18}{others}{'ncu':>18}")
        for problem in options.problems.split(","):
            for case in asyncio.run(espalier_cases(problem, options.device)):
                print(line(case, options.device, options.kernelbench), flush=True)


def line(case: Case, device: str, kernelbench: str) -> str:
    """This program's figures on a piece of work, and the other stopwatches'."""
    call = call_of(case.name, case.binary, device)
    back_to_back: list[float | str] = [by_do_bench(call)]
    back_to_back.append(by_kernelbench(call, kernelbench, case.single) if kernelbench else "not asked")
    back_to_back += by_loop(call, case.single)
    left_at = clock_and_power(device)
    del call
    torch.cuda.empty_cache()
    figures = "".join(compared(one, case.single, case.sustained) for one in back_to_back)
    ncu = compared(by_ncu(case.name, case.binary, device), case.single)
    return f"{case.name:26}{case.single:10.1f}{compared(case.sustained, case.single)}{figures}{ncu}{left_at}"


def compared(found: float | str, *ours: float) -> str:
    """Another stopwatch's figure with its ratios to this program's."""
    if isinstance(found, str):
        return f"{found:>{10 + 8 * len(ours)}}"
    return f"{found:10.1f}" + "".join(f" {found / one:6.3f}x" for one in ours)


if __name__ == "__main__":
    main()
