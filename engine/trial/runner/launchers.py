"""Launchers: call an artefact on a slot, for each contract and device. Run inside the runner. Import torch.

A launcher's ``call`` calls the kernel exactly once and returns the time by the runner's own clock (a claim). Work that is not
the kernel's (copying a module's inputs and outputs) is outside that time.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from engine.domain.model import Role
from engine.trial.messages import ClaimedTimes, Fault, LoadKernel
from engine.trial.runner.calls import Launcher, LauncherError, LentOperands, Timed, compare_inputs_now, same_bits
from engine.trial.runner.modules import ModuleLauncher, load_baseline, load_module


def make_timer(device: str, *, cold: bool, tools: bytes) -> Timed:
    """The runner's timer for ``device``; ``tools`` is the machine code of the hold kernel, if it was linked."""
    if device == "cpu":
        return _timed_on_cpu
    from engine.trial.runner import stopwatch
    from engine.trial.runner.gpu_launch import LaunchFault
    from engine.trial.shared.cuda import driver, hold_kernel

    context = driver.Context.open(int(device.partition(":")[2] or 0))
    clock = stopwatch.Stopwatch(context, tools=tools or hold_kernel.PTX)

    def timed(work: Callable[[], Any], hold_us: float) -> ClaimedTimes | Fault:
        sample = clock.sample(work, cold=cold, hold_us=hold_us)
        if isinstance(sample, LaunchFault):
            return Fault("crashed", sample.text)
        return ClaimedTimes(sample.event_us, sample.wall_us, sample.idle_us, sample.enqueue_us, sample.held)

    return timed


def _timed_on_cpu(work: Callable[[], Any], _: float) -> ClaimedTimes | Fault:
    start = time.perf_counter_ns()
    work()
    elapsed = (time.perf_counter_ns() - start) / 1e3
    return ClaimedTimes(elapsed, elapsed, 0.0)


def make_launcher(load: LoadKernel, lent: LentOperands, artefact: int | None) -> Launcher:
    """The launcher for a ``LoadKernel``; ``artefact`` is the descriptor of the compiled binary, if any."""
    if load.device == "cpu" and not load.starts_threads:
        _pin()
    timed = make_timer(load.device, cold=load.cold, tools=load.stopwatch)
    match load.contract:
        case "null":
            return NullLauncher(lent, timed, copies=load.baseline == "module")
        case "host":
            assert artefact is not None
            return HostLauncher(load, lent, artefact, timed)
        case "plan":
            assert artefact is not None
            return PlanLauncher(load, lent, artefact, timed)
        case "module" | "baseline":
            model = load_module(load, lent) if load.contract == "module" else load_baseline(load, lent)
            return ModuleLauncher(load, lent, model, timed)
    raise ValueError(f"no launcher for contract {load.contract!r}")


def _pin() -> None:
    """Pin this process's first thread to the first core, as OpenMP does with the first thread of a team.

    OpenMP pins once per process, before the host forks, and in the sandbox the host cannot be moved. Unpinned, the first thread
    can end up on the second thread's core, and they spin against each other for whole time slices.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class NullLauncher:
    """An empty call on the same path: shows what a call costs besides the kernel. Does not write to lent memory."""

    def __init__(self, lent: LentOperands, timed: Timed, *, copies: bool) -> None:
        self._timed = timed
        self._lent = lent
        self._private = [torch.zeros_like(t) for t in lent.tensors(0, Role.OUTPUT)] if copies else []
        self._given = [torch.zeros_like(t) for t in lent.tensors(0, Role.INPUT)] if copies else []

    def call(self, slot: int, hold_us: float) -> ClaimedTimes | Fault:
        """On a module's path it copies the inputs, sometimes compares them, and copies as many bytes as the outputs have."""
        if not self._private:
            return self._timed(lambda: None, hold_us)
        lent_inputs = self._lent.tensors(slot, Role.INPUT)
        for mine, theirs in zip(self._given, lent_inputs, strict=True):
            mine.copy_(theirs)
        called = self._timed(lambda: None, hold_us)
        for made, operand in zip(self._private, self._lent.tensors(slot, Role.OUTPUT), strict=True):
            made.copy_(operand)
        if compare_inputs_now():
            for a, b in zip(lent_inputs, self._given, strict=True):
                same_bits(a, b)
        return called


class HostLauncher:
    """A shared object with ``launch(inputs…, parameters…, buffers…, outputs…, workspace[, stream])``."""

    def __init__(self, load: LoadKernel, lent: LentOperands, artefact: int, timed: Timed) -> None:
        self._runtime = _cuda_runtime() if load.device != "cpu" else None
        library = ctypes.CDLL(f"/proc/self/fd/{artefact}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._launch = library.launch
        self._launch.restype = None
        self._timed = timed
        self._lent = lent
        size = 0
        if hasattr(library, "workspace_bytes"):
            library.workspace_bytes.restype = ctypes.c_size_t
            size = int(library.workspace_bytes())
        self._workspace = torch.empty(size, dtype=torch.uint8, device=load.device) if size else None
        scratch = [self._workspace.data_ptr() if self._workspace is not None else None]
        stream = [] if load.device == "cpu" else [None]
        self._arguments = [
            [ctypes.c_void_p(p) for p in (*lent.pointers(i).values(), *scratch, *stream)] for i in range(len(lent.slots))
        ]

    def call(self, slot: int, hold_us: float) -> ClaimedTimes | Fault:
        launch, arguments = self._launch, self._arguments[slot]
        called = self._timed(lambda: launch(*arguments), hold_us)
        if self._runtime is not None and isinstance(called, ClaimedTimes) and (code := self._runtime.cudaGetLastError()):
            text = self._runtime.cudaGetErrorString(code).decode(errors="replace")
            return Fault("crashed", f"the CUDA runtime reports: {text}")  # a failed launch wrote nothing
        return called


def _cuda_runtime() -> ctypes.CDLL | None:
    """The CUDA runtime that torch has loaded, made global: shared objects built with ``-cudart shared`` bind to it."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for name in ("libcudart.so.13", "libcudart.so.12"):
        try:
            runtime = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        runtime.cudaGetErrorString.restype = ctypes.c_char_p
        return runtime
    return None


class PlanLauncher:
    """Device code, launched by trusted code as its plan says. No host code of the candidate runs."""

    def __init__(self, load: LoadKernel, lent: LentOperands, artefact: int, timed: Timed) -> None:
        from engine.toolchain import resolution
        from engine.trial.runner import gpu_launch

        with open(f"/proc/self/fd/{artefact}", "rb") as file:
            module = gpu_launch.Module.load(file.read())
        if isinstance(module, gpu_launch.LaunchFault):
            raise LauncherError(module.text)
        plan = resolution.decode(load.plan)
        size = plan.workspace_bytes
        self._workspace = torch.empty(size, dtype=torch.uint8, device=load.device) if size else None
        scratch = self._workspace.data_ptr() if self._workspace is not None else 0
        prepared = []
        for index in range(len(lent.slots)):
            bound = gpu_launch.PreparedPlan.prepare(module, plan, lent.pointers(index), workspace=scratch)
            if isinstance(bound, gpu_launch.LaunchFault):
                raise LauncherError(bound.text)
            prepared.append(bound)
        self._prepared = prepared
        self._lent = lent
        self._timed = timed

    def call(self, slot: int, hold_us: float) -> ClaimedTimes | Fault:
        return self._timed(self._prepared[slot], hold_us)
