"""A CUDA kernel called a few times with nobody to judge it: what compute-sanitizer and Nsight Compute are run on.

``python -m engine.trial.once SPEC INPUTS…``: ``SPEC`` is a ``Load`` message with one row of slots and the binary's path for its
source, each of ``INPUTS`` holds what one call reads. Every operand has an allocation of its own, made anew for each call, so
that an access past an end is one. Imports torch.
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
from engine.trial.launchers import HostLauncher, Loan, PlanLauncher
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
    """One call on the inputs of ``file``; its fault, if there is one. A profiler that waits to be told sees the call alone."""
    operands = Apart(_tensors(load.slots[0], file.read_bytes(), load.device))
    launcher_of = PlanLauncher if load.contract == "plan" else HostLauncher
    with open(load.source, "rb") as binary:
        launcher = launcher_of(load, Loan(load.slots, operands, operands), binary.fileno(), _untimed)
        result = launcher.call(0, 0.0)
    torch.cuda.synchronize()
    return result if isinstance(result, Fault) else None


def _untimed(work: Any, _: float) -> Called:
    profiled = bool(os.environ.get(PROFILED))
    if profiled:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    work()
    torch.cuda.synchronize()
    if profiled:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    return Called(1.0, 1.0, 0.0)


def _tensors(row: Sequence[Slot], data: bytes, device: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    place = 0
    for slot in row:
        if slot.role == Role.OUTPUT.value:
            found[slot.name] = torch.empty(slot.shape, dtype=dtype_of(slot), device=device)
            continue
        piece = torch.frombuffer(bytearray(data[place : place + slot.nbytes]), dtype=torch.uint8)
        place += slot.nbytes
        found[slot.name] = piece.to(device).view(dtype_of(slot)).view(slot.shape)
    return found


if __name__ == "__main__":
    main()
