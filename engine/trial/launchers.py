"""Artefact → something that can be called on a slot, for each contract on each device. Runs inside the runner.

A launcher's ``call`` performs exactly one call of the kernel and says how long it took by the runner's own clock (a claim).
What is not the kernel's work (fetching inputs for a module, copying its outputs to the lent memory) lies outside that time.
Imports torch.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.domain.model import Role
from engine.trial.lending import Borrowed, dtype_of
from engine.trial.wire import Called, Fault, Load, Slot

_ABI = (Role.INPUT, Role.PARAMETER, Role.BUFFER, Role.OUTPUT)


class Launcher(Protocol):
    """One loaded kernel."""

    def call(self, slot: int, hold_us: float) -> Called | Fault: ...


@dataclass(frozen=True, slots=True)
class Loan:
    """The slots of one runner with the memory behind them."""

    slots: Sequence[Sequence[Slot]]
    inputs: Borrowed
    outputs: Borrowed

    def memory(self, slot: Slot) -> Borrowed:
        return self.outputs if slot.role == Role.OUTPUT.value else self.inputs

    def of(self, slot: int, *roles: Role) -> list[Slot]:
        wanted = [role.value for role in roles]
        return [operand for operand in self.slots[slot] if operand.role in wanted]

    def tensors(self, slot: int, *roles: Role) -> list[torch.Tensor]:
        return [self.memory(operand).tensor(operand) for operand in self.of(slot, *roles)]

    def pointers(self, slot: int) -> dict[str, int]:
        return {operand.name: self.memory(operand).pointer(operand) for operand in self.of(slot, *_ABI)}


Timed = Callable[[Callable[[], Any], float], Called | Fault]
"""Runs a piece of work once, the device held that many microseconds beforehand, and times it on the device it runs on."""


def timer(device: str, *, cold: bool, tools: bytes) -> Timed:
    """The runner's stopwatch for ``device``; ``tools`` is the machine code of its own kernel, if there is any."""
    if device == "cpu":
        return _timed_on_cpu
    from engine.trial.gpu import driver, timing
    from engine.trial.gpu.launch import LaunchFault

    context = driver.Context.open(int(device.partition(":")[2] or 0))
    stopwatch = timing.Stopwatch(context, tools=tools or timing.PTX)

    def timed(work: Callable[[], Any], hold_us: float) -> Called | Fault:
        sample = stopwatch.sample(work, cold=cold, hold_us=hold_us)
        if isinstance(sample, LaunchFault):
            return Fault("crashed", sample.text)
        return Called(sample.event_us, sample.wall_us, sample.idle_us, sample.enqueue_us, sample.held)

    return timed


def _timed_on_cpu(work: Callable[[], Any], _: float) -> Called | Fault:
    start = time.perf_counter_ns()
    work()
    elapsed = (time.perf_counter_ns() - start) / 1e3
    return Called(elapsed, elapsed, 0.0)


def make(load: Load, loan: Loan, artefact: int | None) -> Launcher:
    """The launcher for a ``Load``. ``artefact`` is the descriptor of the compiled binary, where there is one."""
    if load.device == "cpu" and (artefact is None or not _makes_threads(artefact)):
        _pin()
    timed = timer(load.device, cold=load.cold, tools=load.stopwatch)
    match load.contract:
        case "null":
            return _Null(loan, timed, copies=load.baseline == "module")
        case "host":
            assert artefact is not None
            return HostLauncher(load, loan, artefact, timed)
        case "plan":
            assert artefact is not None
            return PlanLauncher(load, loan, artefact, timed)
        case "module" | "baseline":
            from engine.trial.modules import ModuleLauncher, load_baseline, load_module

            model = load_module(load, loan) if load.contract == "module" else load_baseline(load, loan)
            return ModuleLauncher(load, loan, model, timed)
    raise ValueError(f"no launcher for contract {load.contract!r}")


def _pin() -> None:
    """Keep this process's first thread on the first core, as OpenMP does with the first of a team.

    OpenMP itself does so once in a process, before the host has forked, and the sandbox lets nobody move the host. A team whose
    first thread moves ends up on one core with the second, and they spin against each other for whole time slices.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _makes_threads(artefact: int) -> bool:
    """Whether a binary makes threads other than OpenMP's: they would be held on the core of the one that makes them."""
    code = os.pread(artefact, os.fstat(artefact).st_size, 0)
    return any(name in code for name in _OWN_THREADS)


_OWN_THREADS = (b"pthread_create", b"thrd_create", b"_ZNSt6thread")


class _Null:
    """Does nothing, through the same path: what a call costs beside the kernel. It writes to no lent memory."""

    def __init__(self, loan: Loan, timed: Timed, *, copies: bool) -> None:
        self._timed = timed
        self._loan = loan
        self._private = [torch.zeros_like(t) for t in loan.tensors(0, Role.OUTPUT)] if copies else []
        self._given = [torch.zeros_like(t) for t in loan.tensors(0, Role.INPUT)] if copies else []

    def call(self, slot: int, hold_us: float) -> Called | Fault:
        """For a module's path the inputs are copied and at times compared, and as much is copied as the outputs hold."""
        if not self._private:
            return self._timed(lambda: None, hold_us)
        lent = self._loan.tensors(slot, Role.INPUT)
        for mine, theirs in zip(self._given, lent, strict=True):
            mine.copy_(theirs)
        called = self._timed(lambda: None, hold_us)
        for made, operand in zip(self._private, self._loan.tensors(slot, Role.OUTPUT), strict=True):
            made.copy_(operand)
        if compares():
            for a, b in zip(lent, self._given, strict=True):
                same_bits(a, b)
        return called


def compares() -> bool:
    """Whether a module's inputs are compared after this call: in one of four, by chance. In each of them it would make room for
    work that a module hides in its place, since what the null kernel needs is allowed to all."""
    return secrets.randbelow(4) == 0


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type hold the same bytes."""
    return bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))


class HostLauncher:
    """A shared object with ``launch(inputs…, parameters…, buffers…, outputs…, workspace[, stream])``."""

    def __init__(self, load: Load, loan: Loan, artefact: int, timed: Timed) -> None:
        self._runtime = _cuda_runtime() if load.device != "cpu" else None
        library = ctypes.CDLL(f"/proc/self/fd/{artefact}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._launch = library.launch
        self._launch.restype = None
        self._timed = timed
        self._loan = loan
        size = 0
        if hasattr(library, "workspace_bytes"):
            library.workspace_bytes.restype = ctypes.c_size_t
            size = int(library.workspace_bytes())
        self._workspace = torch.empty(size, dtype=torch.uint8, device=load.device) if size else None
        scratch = [self._workspace.data_ptr() if self._workspace is not None else None]
        stream = [] if load.device == "cpu" else [None]
        self._arguments = [
            [ctypes.c_void_p(p) for p in (*loan.pointers(i).values(), *scratch, *stream)] for i in range(len(loan.slots))
        ]

    def call(self, slot: int, hold_us: float) -> Called | Fault:
        launch, arguments = self._launch, self._arguments[slot]
        called = self._timed(lambda: launch(*arguments), hold_us)
        if self._runtime is not None and isinstance(called, Called) and (code := self._runtime.cudaGetLastError()):
            text = self._runtime.cudaGetErrorString(code).decode(errors="replace")
            return Fault("crashed", f"the CUDA runtime reports: {text}")  # a launch that was refused wrote nothing
        return called


def _cuda_runtime() -> ctypes.CDLL | None:
    """The runtime that torch has loaded, for all to see: a shared object built with ``-cudart shared`` finds it then."""
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
    """Device code only: trusted code launches it as its plan says. No host code of the candidate's ever runs."""

    def __init__(self, load: Load, loan: Loan, artefact: int, timed: Timed) -> None:
        from engine.build import resolution
        from engine.trial.gpu import launch

        with open(f"/proc/self/fd/{artefact}", "rb") as file:
            module = launch.Module.load(file.read())
        if isinstance(module, launch.LaunchFault):
            raise LauncherError(module.text)
        plan = resolution.decode(load.plan)
        size = plan.workspace_bytes
        self._workspace = torch.empty(size, dtype=torch.uint8, device=load.device) if size else None
        scratch = self._workspace.data_ptr() if self._workspace is not None else 0
        prepared = []
        for index in range(len(loan.slots)):
            bound = launch.PreparedPlan.prepare(module, plan, loan.pointers(index), workspace=scratch)
            if isinstance(bound, launch.LaunchFault):
                raise LauncherError(bound.text)
            prepared.append(bound)
        self._prepared = prepared
        self._loan = loan
        self._timed = timed

    def call(self, slot: int, hold_us: float) -> Called | Fault:
        return self._timed(self._prepared[slot], hold_us)


class LauncherError(Exception):
    """The artefact cannot be loaded or bound; the text is the kernel's failure."""


class OutputError(Exception):
    """A module returned something that is no plain tensor of the agreed shape and type."""


def checked_output(value: Any, operand: Slot, device: str) -> torch.Tensor:
    """``value`` if it is a plain, dense tensor of the operand's shape, type and device. Raises OutputError."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise OutputError(f"output {operand.name} is a {type(value).__name__}, not a plain tensor")
    if value.device.type != torch.device(device).type:
        raise OutputError(f"output {operand.name} is on {value.device}, not on {device}")
    if tuple(value.shape) != operand.shape:
        raise OutputError(f"output {operand.name} has shape {tuple(value.shape)} instead of {operand.shape}")
    if value.dtype != dtype_of(operand):
        raise OutputError(f"output {operand.name} is {value.dtype} instead of {dtype_of(operand)}")
    if value.layout != torch.strided:
        raise OutputError(f"output {operand.name} is not dense")
    plain: torch.Tensor = value.detach()
    return plain
