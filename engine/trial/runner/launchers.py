"""Launchers: call an artefact on a slot, for each contract and device. Run inside the runner. Import torch.

A launcher's ``call`` calls the kernel exactly once and returns the time by the runner's own clock (a claim). Operands are lent
without a copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tarfile
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from engine.trial.messages import Armed, ClaimedTimes, Fault, LoadKernel, RunKernel
from engine.trial.runner import module_caches
from engine.trial.runner.calls import (
    Addresses,
    Launcher,
    LauncherError,
    LentOperands,
    Send,
    Timed,
    no_outputs,
    rotated,
    timed_plainly,
)
from engine.trial.runner.modules import ModuleLauncher, defined_classes, load_baseline, load_module, may_start_threads
from engine.trial.runner.null_kernel import null_launcher
from engine.trial.runner.workspace import KernelWorkspace
from engine.trial.shared.arena import Borrowed
from engine.trial.shared.layout import GATE_DONE, GATE_OPENED

if TYPE_CHECKING:
    from engine.trial.runner.gpu_launch import LaunchFault


def make_timer(load: LoadKernel, gate: Borrowed | None, send: Send) -> Timed:
    """The runner's timer for a device; ``gate`` is the lent memory of its gate."""
    if load.device == "cpu":
        return _timed_on_cpu
    from engine.trial.runner.device_context import stopwatch_of
    from engine.trial.runner.gpu_launch import LaunchFault
    from engine.trial.runner.stopwatch import GateWait
    from engine.trial.shared.cuda import hold_kernel

    clock = stopwatch_of(int(load.device.partition(":")[2] or 0), load.stopwatch or hold_kernel.PTX)

    def timed(work: Callable[[], Any], order: RunKernel, outputs: Addresses = no_outputs) -> ClaimedTimes | Fault:
        gated = None
        if gate is not None and order.gate:
            words = gate.pointer(GATE_OPENED), gate.pointer(GATE_DONE)
            gated = GateWait(*words, order.gate, lambda: send(Armed(outputs())))
        sample = clock.sample(work, cold=load.cold and order.calls == 1, hold_us=order.hold_us, gate=gated)
        if isinstance(sample, LaunchFault):
            return Fault("crashed", sample.text)
        return ClaimedTimes(sample.event_us, sample.wall_us, sample.idle_us, sample.enqueue_us, sample.held)

    return timed


def _timed_on_cpu(work: Callable[[], Any], order: RunKernel, outputs: Addresses = no_outputs) -> ClaimedTimes | Fault:
    start = time.perf_counter_ns()
    work()
    elapsed = (time.perf_counter_ns() - start) / 1e3
    return ClaimedTimes(elapsed, elapsed, 0.0)


def make_launcher(load: LoadKernel, lent: LentOperands, artefact: int | None, gate: Borrowed | None, send: Send) -> Launcher:
    """The launcher for a ``LoadKernel``; ``artefact`` is the descriptor of the compiled binary, if any."""
    if load.device == "cpu" and not (load.starts_threads or (load.contract == "module" and may_start_threads(load.source))):
        _pin()
    timed = make_timer(load, gate, send)
    match load.contract:
        case "null":
            return null_launcher(load, lent, timed)
        case "host":
            assert artefact is not None
            return HostLauncher(load, lent, artefact, timed)
        case "plan":
            assert artefact is not None
            with open(artefact, "rb"):  # closes it: a process loads many
                return PlanLauncher(load, lent, artefact, timed)
        case "module" | "baseline":
            if load.contract == "module":
                _find_compiled(load, artefact)
                return ModuleLauncher(load, lent, load_module(load), timed, send, defined_classes(load))
            model, classes = load_baseline(load, lent)
            return ModuleLauncher(load, lent, model, timed, send, classes)
    raise ValueError(f"no launcher for contract {load.contract!r}")


def _find_compiled(load: LoadKernel, artefact: int | None) -> None:
    """Put what the builder has compiled where the module's compilers look; without it they compile for this device only."""
    if load.device != "cpu":
        major, minor = torch.cuda.get_device_capability(load.device)
        os.environ.setdefault(module_caches.ARCHITECTURES, f"{major}.{minor}")
    if artefact is not None:
        with contextlib.suppress(OSError, tarfile.TarError):  # then they compile
            module_caches.unpack(artefact)


def _pin() -> None:
    """Pin this process's first thread to the first core, as OpenMP does with the first thread of a team.

    OpenMP pins once per process, before the host forks, and in the sandbox the host cannot be moved. Unpinned, the first thread
    can end up on the second thread's core, and they spin against each other for whole time slices.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class HostLauncher:
    """A shared object with ``launch(inputs…, parameters…, buffers…, outputs…, workspace[, stream])``."""

    def __init__(self, load: LoadKernel, lent: LentOperands, artefact: int, timed: Timed, *, guarded: bool = True) -> None:
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
        self.workspace = KernelWorkspace(size, load.device, guarded=guarded)
        scratch = [self.workspace.pointer or None]
        stream = [] if load.device == "cpu" else [None]
        self._arguments = [
            [ctypes.c_void_p(p) for p in (*lent.pointers(i).values(), *scratch, *stream)] for i in range(len(lent.slots))
        ]

    def call(self, order: RunKernel) -> ClaimedTimes | Fault:
        launch, (arguments, *others) = self._launch, rotated(self._arguments, order)

        def burst() -> None:
            launch(*arguments)
            for more in others:
                launch(*more)

        called = self._timed(burst if others else lambda: launch(*arguments), order)
        if self._runtime is not None and isinstance(called, ClaimedTimes) and (code := self._runtime.cudaGetLastError()):
            text = self._runtime.cudaGetErrorString(code).decode(errors="replace")
            return Fault("crashed", f"the CUDA runtime reports: {text}")  # a failed launch wrote nothing
        return called

    def plain_call(self) -> Callable[[int], float] | None:
        if self._runtime is not None:
            return None
        return timed_plainly([partial(self._launch, *arguments) for arguments in self._arguments])


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

    def __init__(self, load: LoadKernel, lent: LentOperands, artefact: int, timed: Timed, *, guarded: bool = True) -> None:
        from engine.toolchain import device_images, resolution
        from engine.trial.runner import gpu_launch

        with open(f"/proc/self/fd/{artefact}", "rb") as file:
            data = file.read()
        modules: list[gpu_launch.Module] = []
        for cubin in device_images.cubins(data):
            module = gpu_launch.Module.load(cubin)
            if isinstance(module, gpu_launch.LaunchFault):
                raise LauncherError(module.text)
            modules.append(module)
        plan = device_images.bind(resolution.decode(load.plan), data)
        self.workspace = KernelWorkspace(plan.workspace_bytes, load.device, guarded=guarded)
        prepared = []
        for index in range(len(lent.slots)):
            bound = gpu_launch.PreparedPlan.prepare(modules, plan, lent.pointers(index), workspace=self.workspace.pointer)
            if isinstance(bound, gpu_launch.LaunchFault):
                raise LauncherError(bound.text)
            prepared.append(bound)
        self._prepared = prepared
        self._lent = lent
        self._timed = timed

    def call(self, order: RunKernel) -> ClaimedTimes | Fault:
        one, *others = rotated(self._prepared, order)

        def burst() -> LaunchFault | None:
            fault = one()
            for call in others:
                if fault is not None:
                    return fault
                fault = call()
            return fault

        return self._timed(burst if others else one, order)

    def plain_call(self) -> None:
        """On a GPU there is more to do."""
