"""A kernel called a few times on a GPU with nobody to judge it: what compute-sanitizer and Nsight Compute are run on.

``python -m engine.trial.once SPEC INPUTS…``: ``SPEC`` is a ``Load`` message with one row of slots and the binary's path for its
source (a module's is its text), each of ``INPUTS`` holds what one call reads. Every operand has an allocation of its own, made
anew for each call, so that an access past an end is one. Imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.build.counters import PROFILED
from engine.domain.model import Role
from engine.trial.launchers import HostLauncher, Launcher, Loan, PlanLauncher, Timed
from engine.trial.layout import ALIGNMENT
from engine.trial.lending import dtype_of
from engine.trial.wire import Called, Fault, Load, Slot


class Apart:
    """Operands as tensors of their own, by name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def tensor(self, slot: Slot) -> torch.Tensor:
        return self._tensors[slot.name]

    def pointer(self, slot: Slot) -> int:
        return self._tensors[slot.name].data_ptr()


def main() -> None:
    """Call the kernel once on each file of inputs. Ends with status 1 and one line where it cannot be called."""
    spec, *files = sys.argv[1:]
    load = msgspec.msgpack.decode(Path(spec).read_bytes(), type=Load)
    for file in files:
        fault = called(load, Path(file))
        if fault is not None:
            sys.exit(fault.text)


def called(load: Load, file: Path) -> Fault | None:
    """One call on the inputs of ``file``; its fault, if there is one. A profiler that waits to be told sees the call alone.

    A module is called before that, because it may compile and tune itself in its first call.
    """
    seen = _Seen(profiled=bool(os.environ.get(PROFILED)) and load.contract != "module")
    launcher = launcher_of(load, file, seen.timed)
    result = launcher.call(0, 0.0)
    if load.contract == "module" and os.environ.get(PROFILED) and not isinstance(result, Fault):
        seen.profiled = True
        result = launcher.call(0, 0.0)
    torch.cuda.synchronize()
    return result if isinstance(result, Fault) else None


def loaded(spec: Path, file: Path, timed: Timed) -> tuple[Load, Launcher]:
    """What ``spec`` describes, ready to be called on the inputs of ``file``."""
    load = msgspec.msgpack.decode(spec.read_bytes(), type=Load)
    return load, launcher_of(load, file, timed)


def launcher_of(load: Load, file: Path, timed: Timed) -> Launcher:
    """A kernel of any contract on operands of its own."""
    operands = Apart(_tensors(load.slots[0], file.read_bytes(), load.device))
    loan = Loan(load.slots, operands, operands)
    if load.contract == "module":
        from engine.trial.modules import ModuleLauncher, load_module

        return ModuleLauncher(load, loan, load_module(load, loan), timed)
    with open(load.source, "rb") as binary:
        return (PlanLauncher if load.contract == "plan" else HostLauncher)(load, loan, binary.fileno(), timed)


class _Seen:
    """Runs work untimed, and tells a profiler where it begins and ends while ``profiled``."""

    def __init__(self, *, profiled: bool) -> None:
        self.profiled = profiled

    def timed(self, work: Any, _: float) -> Called:
        if self.profiled:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        work()
        torch.cuda.synchronize()
        if self.profiled:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        return Called(1.0, 1.0, 0.0)


def _tensors(row: Sequence[Slot], data: bytes, device: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    place = 0
    for slot in row:
        memory = _memory(slot.nbytes, device)
        if slot.role != Role.OUTPUT.value and slot.nbytes:
            memory.copy_(torch.frombuffer(bytearray(data[place : place + slot.nbytes]), dtype=torch.uint8))
            place += slot.nbytes
        found[slot.name] = memory.view(dtype_of(slot)).view(slot.shape)
    return found


def _memory(size: int, device: str) -> torch.Tensor:
    """Bytes of their own, aligned as lent ones are: a GPU's allocations are so anyway."""
    if device != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    whole = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -whole.data_ptr() % ALIGNMENT
    return whole[start : start + size]


if __name__ == "__main__":
    main()
