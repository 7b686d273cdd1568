"""One kernel on one workload: the input of every sanitizer and profiler. No torch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.domain.memory_phases import warm_bytes
from engine.domain.model import Contract, Device, Signature, Workload
from engine.sandbox.confinement import Confinement
from engine.toolchain.build import Artefact, BuildRequest
from engine.trial.messages import ArenaHandle, LoadKernel
from engine.trial.shared.layout import nbytes, plan_layout

DumpInputs = Callable[[Workload, Path, int], Awaitable[list[Path]]]
"""Writes fresh inputs of a workload to a folder, one file per call: the operands that are read, concatenated."""
Store = Callable[[bytes], str]
_NOT_LENT = ArenaHandle("none", 0, False)


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A workload, a kernel's signature there, and how it is built."""

    workload: Workload
    signature: Signature
    request: BuildRequest

    @property
    def size(self) -> int:
        """Bytes of all operands."""
        return sum(nbytes(o) for o in self.signature.operands)


def sandboxed(confinement: Confinement) -> bool:
    """Whether the confinement is bubblewrap."""
    return confinement.name == "bubblewrap"


def write_spec(
    case: KernelCase, plan: bytes, device: Device, built: Artefact, folder: Path, scalars: Sequence[Any] = ()
) -> Path:
    """Write the ``SPEC`` file of ``engine.trial.runner.profile_target``; ``scalars`` are a module's arguments."""
    layout = plan_layout(case.signature.operands, 1)
    request = case.request
    module = request.contract is Contract.MODULE
    load = LoadKernel(
        contract=request.contract.value, device=device.label, slots=layout.slots, inputs=_NOT_LENT, outputs=_NOT_LENT,
        threads=device.units, scalars=tuple(scalars), source=request.code if module else str(built.binary),
        filename=request.name, tunables=dict(request.tunables), plan=plan,
        warm_bytes=warm_bytes(sum(map(nbytes, case.signature.operands))),
    )  # fmt: skip
    path = folder / "spec"
    path.write_bytes(msgspec.msgpack.encode(load))
    return path
