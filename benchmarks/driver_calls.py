"""What calls of the driver cost, alone and while other GPUs make the same: ``python -m benchmarks.driver_calls``.

A verdict's processes create a context, map lent memory, load code and wait for the device. Where the driver does such a call
for one GPU at a time, GPUs wait for each other, and a fleet on that host scales only as far as the rest of a verdict does.

Each call is repeated for ``--seconds`` in a process on the first GPU, then in a process on every GPU at once. Printed are the
medians in microseconds, their ratio (1: GPUs do not hinder each other), and the calls that all GPUs together make in the time
of one alone: of N GPUs N where nothing is shared, 1 where one lock is. Contexts are created in processes of their own, with
eight work queues (the driver's default) and with two, as kernels of the plan contract get them. Such a context is also reset
and opened again, as it is for the next kernel in the same process. Last, both kinds of context, and one that was opened again,
time a clearing of 4 KiB with events: a difference would be a bias between a kernel and a baseline, or between kernels.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median

import msgspec

from engine.domain.errors import DeviceError
from engine.session.devices import gpu_names
from engine.trial.judge.nvml import NvmlMissing, open_gpu
from engine.trial.runner.device_context import context_of, open_context, renew_context
from engine.trial.runner.gpu_launch import LaunchFault, Module
from engine.trial.runner.stopwatch import Stopwatch
from engine.trial.shared.cuda import driver as cuda
from engine.trial.shared.cuda import hold_kernel
from engine.trial.shared.cuda.device_memory import BorrowedArena, LentArena

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_FEW_QUEUES = {_QUEUES: "2"}
_PLAIN: Mapping[str, str] = {}
_LENT_BYTES = 128 << 20
_SMALL_BYTES = 4 << 20
_PERSISTING_L2 = 6
"""``CU_LIMIT_PERSISTING_L2_CACHE_SIZE``."""
_SAMPLES = 200
_LEAST = 3
_RUNNERS = 3
"""Processes of a kernel's verdict."""
_Times = dict[str, list[float]]
"""Seconds of each repetition, by the call's name."""


def _calls(context: cuda.Context, gpu: str) -> Mapping[str, Callable[[], object]]:
    """The calls of a verdict, in the order in which its processes make them."""
    driver, native = cuda.bindings(), cuda.native()
    lent = LentArena.create(context.index, _LENT_BYTES)
    image = hold_kernel.link()

    def map_once() -> None:
        BorrowedArena.map(lent.handle(), writable=False).close()

    def allocate_once() -> None:
        driver.cuMemFree(cuda.check(driver.cuMemAlloc(_SMALL_BYTES), "allocating"))

    def load_once() -> None:
        module = Module.load(image)
        if isinstance(module, LaunchFault):
            raise DeviceError(module.text)
        module.function("espalier_hold")
        module.unload()

    def wait_once() -> None:
        native.cuMemsetD8Async(ctypes.c_uint64(lent.pointer), ctypes.c_ubyte(0), ctypes.c_size_t(4096), None)
        native.cuCtxSynchronize()

    calls: dict[str, Callable[[], object]] = {
        "map 128 MiB of another process": map_once,
        "allocate and free 4 MiB": allocate_once,
        "load and unload code": load_once,
        "enqueue and wait for the device": wait_once,
        "reset persisting L2 lines": native.cuCtxResetPersistingL2Cache,
        "set the limit of persisting L2": lambda: native.cuCtxSetLimit(_PERSISTING_L2, ctypes.c_size_t(0)),
    }
    with suppress(NvmlMissing):
        nvml = open_gpu(gpu)
        calls["NVML: clock and throttling"] = lambda: (nvml.slowed_by(), nvml.sm_mhz())
        calls["NVML: a whole reading"] = nvml.reading
    return calls


def time_calls(seconds: float) -> _Times:
    """Times of every call in this process, on its first GPU."""
    cuda.initialise()
    context = cuda.Context.open(0)
    times: _Times = {}
    for name, call in _calls(context, cuda.bus_id(0)).items():
        _meet(name)
        times[name] = _repeated(call, seconds)
    return times


def _repeated(call: Callable[[], object], seconds: float) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < _LEAST:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return took


def time_context() -> _Times:
    """The times of starting the driver and creating a context in this process, its only ones."""
    cuda.bindings()
    start = time.perf_counter()
    cuda.initialise()
    began = time.perf_counter()
    cuda.Context.open(0)
    return {"start the driver": [began - start], "create a context": [time.perf_counter() - began]}


def time_resets(seconds: float) -> _Times:
    """The times of resetting the context of this process and opening it again; each has a runner's stopwatch to drop."""
    cuda.initialise()
    open_context(0)
    name = "reset and reopen a context"
    _meet(name)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < _LEAST:
        Stopwatch(context_of(0))
        start = time.perf_counter()
        renew_context(0)
        took.append(time.perf_counter() - start)
    return {name: took}


def time_events(*, renewed: bool = False) -> list[float]:
    """Microseconds of clearing 4 KiB by a runner's stopwatch, held and with cold caches; in a context that was ``renewed``."""
    cuda.initialise()
    open_context(0)
    if renewed:
        renew_context(0)
    context = context_of(0)
    watch = Stopwatch(context, tools=hold_kernel.link())
    place = int(cuda.check(cuda.bindings().cuMemAlloc(_SMALL_BYTES), "allocating"))
    native = cuda.native()

    def work() -> None:
        native.cuMemsetD32Async(ctypes.c_uint64(place), ctypes.c_uint32(0), ctypes.c_size_t(1024), None)

    found = [watch.sample(work, hold_us=60.0) for _ in range(_SAMPLES)]
    return [one.event_us for one in found if not isinstance(one, LaunchFault) and one.held]


# Processes: each writes a line when it is ready and reads one before it goes on, so that all make the same call at a time.


def _meet(name: str) -> None:
    print(name, flush=True)
    sys.stdin.readline()


class Process:
    """A process of this benchmark on one GPU."""

    def __init__(self, gpu: str, part: str, seconds: float, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.driver_calls", "--part", part, "--seconds", str(seconds)]
        chosen = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, **environment}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=chosen)

    def line(self) -> str:
        """Its next line. Raises DeviceError if it has ended."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if not found:
            raise DeviceError(f"a process of the benchmark ended with status {self._process.wait()}")
        return found.rstrip("\n")

    def go_on(self) -> None:
        """Let it make its next call."""
        assert self._process.stdin is not None
        print("", file=self._process.stdin, flush=True)

    def kill(self) -> None:
        """End it, without waiting until it has ended."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self._process.kill()
        self._process.wait()


def together(gpus: Sequence[str], seconds: float, part: str = "calls", environment: Mapping[str, str] = _PLAIN) -> _Times:
    """Times of the calls of a part in a process on each of these GPUs, all at once."""
    processes = [Process(gpu, part, seconds, environment) for gpu in gpus]
    times: _Times = {}
    try:
        while True:
            lines = [process.line() for process in processes]
            if lines[0].startswith("{"):
                for line in lines:
                    for name, took in msgspec.json.decode(line, type=_Times).items():
                        times.setdefault(name, []).extend(took)
                return times
            for process in processes:
                process.go_on()
    finally:
        for process in processes:
            process.end()


def _with_contexts(gpus: Sequence[str], environment: Mapping[str, str]) -> list[tuple[Process, _Times]]:
    """A process with a context on each of these GPUs, all made at once, and what that took."""
    processes = [Process(gpu, "context", 0.0, environment) for gpu in gpus]
    for process in processes:
        process.line()
    for process in processes:
        process.go_on()
    return [(process, msgspec.json.decode(process.line(), type=_Times)) for process in processes]


def contexts(gpus: Sequence[str], environment: Mapping[str, str], rounds: int) -> _Times:
    """Times of contexts in fresh processes, one on each of these GPUs at a time. The first round warms up."""
    times: _Times = {}
    for number in range(rounds + 1):
        made = _with_contexts(gpus, environment)
        ended = _end_all([process for process, _ in made], at_once=True)
        for one in [found for _, found in made] if number else ():
            for name, took in (*one.items(), ("end the processes", [ended])):
                times.setdefault(name, []).extend(took)
    return times


def _end_all(processes: Sequence[Process], *, at_once: bool) -> float:
    """Seconds until all of them have ended, killed one after the other or ``at_once``; their contexts end with them."""
    start = time.perf_counter()
    if at_once:
        for process in processes:
            process.kill()
    for process in processes:
        process.end()
    return time.perf_counter() - start


def _report(gpus: Sequence[str], alone: Mapping[str, list[float]], beside: Mapping[str, list[float]], note: str = "") -> None:
    for name, took in alone.items():
        one, all_of_them = median(took) * 1e6, median(beside[name]) * 1e6
        ratio = all_of_them / one
        print(f"{name + note:46}{one:12,.0f}{all_of_them:12,.0f}{ratio:8.2f}{len(gpus) / ratio:8.2f}", flush=True)


def main() -> None:
    """Print a line for each call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="", help="numbers of GPUs, comma separated. Default: all")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each call")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each kind of context and GPU")
    parser.add_argument("--part", choices=("calls", "context", "resets", "events", "renewed"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.part:
            _part(options.part, options.seconds)
        else:
            _compare(options)
    except DeviceError as error:
        sys.exit(f"driver_calls: {error}")


def _part(part: str, seconds: float) -> None:
    if part == "context":
        _meet("ready")
    found = {
        "calls": lambda: time_calls(seconds), "context": time_context, "resets": lambda: time_resets(seconds),
        "events": time_events, "renewed": lambda: time_events(renewed=True),
    }[part]()  # fmt: skip
    print(msgspec.json.encode(found).decode(), flush=True)
    sys.stdin.readline()


def _compare(options: argparse.Namespace) -> None:
    names = gpu_names()
    gpus = options.devices.split(",") if options.devices else [str(number) for number in range(len(names))]
    if not gpus:
        raise DeviceError("no GPU on this machine")
    print(f"{len(gpus)} of {', '.join(dict.fromkeys(names))}")
    print(f"{'microseconds, median':46}{'alone':>12}{'together':>12}{'ratio':>8}{'gain':>8}")
    for note, environment in ((", eight queues", {}), (", two queues", _FEW_QUEUES)):
        _report(gpus, contexts(gpus[:1], environment, options.rounds), contexts(gpus, environment, options.rounds), note)
    resets = (together(some, options.seconds, "resets", _FEW_QUEUES) for some in (gpus[:1], gpus))
    _report(gpus, *resets, ", two queues")
    for at_once, how in ((False, "one after the other"), (True, "at once")):
        made = (_with_contexts(gpus[:1] * _RUNNERS, _FEW_QUEUES) for _ in range(options.rounds))
        took = median(_end_all([process for process, _ in one], at_once=at_once) for one in made)
        print(f"{f'end {_RUNNERS} processes of one GPU, {how}':46}{took * 1e6:12,.0f}", flush=True)
    _report(gpus, together(gpus[:1], options.seconds), together(gpus, options.seconds))
    kinds = (
        ("eight queues", "events", _PLAIN), ("two queues", "events", _FEW_QUEUES), ("two, reopened", "renewed", _FEW_QUEUES),
    )  # fmt: skip
    for note, part, environment in kinds:
        process = Process(gpus[0], part, 0.0, environment)
        found = msgspec.json.decode(process.line(), type=list[float])
        process.end()
        print(f"events around a clearing of 4 KiB, {note}: {median(found):.2f} µs in {len(found)} samples")


if __name__ == "__main__":
    main()
