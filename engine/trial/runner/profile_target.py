"""Calls a GPU kernel a few times outside a trial, for compute-sanitizer and Nsight Compute.

``python -m engine.trial.runner.profile_target SPEC INPUTS…``: ``SPEC`` is a ``LoadKernel`` message with one row of slots and
the binary's path as its source (for a module its code); each of ``INPUTS`` contains the inputs of one call. Every operand gets
its own allocation in each call: a tool detects an access past its end. Imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.domain.model import Role
from engine.trial.messages import PROFILED, ClaimedTimes, Fault, LoadKernel, RunKernel, Slot
from engine.trial.runner.calls import Addresses, Launcher, LentOperands, Timed, no_outputs
from engine.trial.runner.launchers import HostLauncher, PlanLauncher
from engine.trial.shared.arena import torch_dtype
from engine.trial.shared.layout import ALIGNMENT


class SeparateOperands:
    """Operands as separate allocations, by name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def tensor(self, slot: Slot) -> torch.Tensor:
        return self._tensors[slot.name]

    def pointer(self, slot: Slot) -> int:
        return self._tensors[slot.name].data_ptr()


def main() -> None:
    """Call the kernel once on each file of inputs. Exits with status 1 and one line if it cannot be called."""
    spec, *files = sys.argv[1:]
    load = msgspec.msgpack.decode(Path(spec).read_bytes(), type=LoadKernel)
    for file in files:
        fault = call_once(load, Path(file))
        if fault is not None:
            sys.exit(fault.text)


def call_once(load: LoadKernel, file: Path) -> Fault | None:
    """One call on the inputs of ``file``; returns its fault, if any. A profiler that waits for the mark sees this call only.

    A module is called once before, because it may compile and tune itself in its first call.
    """
    clock = _ProfiledClock(profiled=bool(os.environ.get(PROFILED)) and load.contract != "module")
    launcher = make_launcher(load, file, clock.timed)
    result = launcher.call(RunKernel(0))
    if load.contract == "module" and os.environ.get(PROFILED) and not isinstance(result, Fault):
        clock.profiled = True
        result = launcher.call(RunKernel(0))
    torch.cuda.synchronize()
    return result if isinstance(result, Fault) else None


def load_launcher(spec: Path, file: Path, timed: Timed) -> tuple[LoadKernel, Launcher]:
    """The kernel that ``spec`` describes, ready to be called on the inputs of ``file``."""
    load = msgspec.msgpack.decode(spec.read_bytes(), type=LoadKernel)
    return load, make_launcher(load, file, timed)


def make_launcher(load: LoadKernel, file: Path, timed: Timed) -> Launcher:
    """A kernel of any contract on separate operands."""
    operands = SeparateOperands(_tensors(load.slots[0], file.read_bytes(), load.device))
    lent = LentOperands(load.slots, operands, operands)
    if load.contract == "module":
        from engine.trial.runner.modules import ModuleLauncher, defined_classes, load_module

        return ModuleLauncher(load, lent, load_module(load), timed, classes=defined_classes(load))
    with open(load.source, "rb") as binary:
        # Not guarded: a tool sees a read of memory that was never written, and an access past an allocation's end.
        return (PlanLauncher if load.contract == "plan" else HostLauncher)(load, lent, binary.fileno(), timed, guarded=False)


class _ProfiledClock:
    """Runs work untimed, and marks its start and end for a profiler while ``profiled``."""

    def __init__(self, *, profiled: bool) -> None:
        self.profiled = profiled

    def timed(self, work: Any, order: RunKernel, outputs: Addresses = no_outputs) -> ClaimedTimes:
        if self.profiled:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        work()
        torch.cuda.synchronize()
        if self.profiled:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        return ClaimedTimes(1.0, 1.0, 0.0)


def _tensors(row: Sequence[Slot], data: bytes, device: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    place = 0
    for slot in row:
        memory = _memory(slot.nbytes, device)
        if slot.role != Role.OUTPUT.value and slot.nbytes:
            memory.copy_(torch.frombuffer(bytearray(data[place : place + slot.nbytes]), dtype=torch.uint8))
            place += slot.nbytes
        found[slot.name] = memory.view(torch_dtype(slot)).view(slot.shape)
    return found


def _memory(size: int, device: str) -> torch.Tensor:
    """A separate allocation, aligned like lent memory; GPU allocations always are."""
    if device != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    whole = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -whole.data_ptr() % ALIGNMENT
    return whole[start : start + size]


if __name__ == "__main__":
    main()
