"""What memory the judge may plan with, and what a workload needs: the inputs of the memory plan. Imports torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from engine.domain.errors import ProblemError
from engine.domain.memory_plan import (
    MOST_SLICES,
    MemoryNeeds,
    MemoryRoom,
    TooLarge,
    TrialProcesses,
    WorkloadMemory,
)
from engine.domain.memory_planning import is_short_of_memory, plans
from engine.domain.model import Device, Operand, Role
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import fresh_seed
from engine.trial.shared.layout import ALIGNMENT, GUARD, nbytes

_CONTEXT = 600 << 20
"""Device memory of a process with a CUDA context and torch's libraries."""
_PROCESS = 96 << 20
"""Memory of a forked runner on a CPU that it does not share."""
_GPU_SHARE, _HOST_SHARE = 0.95, 0.8
"""Shares of the free memory of a GPU, and of the host, that may be planned with."""
_CGROUP = Path("/sys/fs/cgroup")


def needs_of(reference: Reference) -> MemoryNeeds:
    """The needs of a reference's workload, from its trace."""
    operands, forward = reference.signature().operands, reference.memory()
    inputs = [o for o in operands if o.role is Role.INPUT]
    weights = [o for o in operands if o.role in (Role.PARAMETER, Role.BUFFER)]
    outputs = [o for o in operands if o.role is Role.OUTPUT]
    try:
        lent = _lent(inputs), _lent(weights), _lent(outputs)
    except ProblemError as error:  # a type that kernels cannot be given
        raise ProblemError(f"{reference.problem.name}: {error}") from None
    exact = _in_float64(inputs), _in_float64(weights), _in_float64(outputs)
    return MemoryNeeds(*lent, forward.own, forward.exact, *exact)


def _lent(operands: Iterable[Operand]) -> int:
    return sum(nbytes(o) + 2 * GUARD + ALIGNMENT for o in operands)


def _in_float64(operands: Iterable[Operand]) -> int:
    return sum(math.prod(o.shape) * 8 if _dtype(o).is_floating_point else nbytes(o) for o in operands)


def _dtype(operand: Operand) -> torch.dtype:
    found = getattr(torch, operand.dtype)
    assert isinstance(found, torch.dtype)
    return found


def room_on(device: Device, limit: int) -> MemoryRoom:
    """What is free now; at most ``limit`` bytes of the device's memory, if it is not 0."""
    host = int(_HOST_SHARE * _free_on_host())
    if device.kind == "cpu":
        return MemoryRoom(min(host, limit or host), host, _PROCESS, shared=True, limited=bool(limit))
    free, _ = torch.cuda.mem_get_info(device.index)
    free = int(_GPU_SHARE * free)
    return MemoryRoom(min(free, limit or free), host, _CONTEXT, limited=bool(limit))


def _free_on_host() -> int:
    """Bytes that processes can still take, also by the control group's limit."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")] or free
    except OSError:
        pass
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        free += [int(most) - int(used)] if most.isdigit() else []
    except (OSError, ValueError):
        pass
    return max(0, min(free))


def plans_for(
    reference: Reference, device: Device, limit: int, processes: TrialProcesses, *, runs: bool = False
) -> WorkloadMemory:
    """The needs of a reference's workload, and the plans that fit now.

    Where memory is short and the reference ``runs``, it is called to see whether float64 can be computed in slices of its rows.
    It is not called where no plan would fit with slices either, because the call itself could use up the machine's memory.
    """
    needs, room = needs_of(reference), room_on(device, limit)
    found = plans(needs, room, processes)
    at_best = plans(replace(needs, rows=MOST_SLICES), room, processes)
    if runs and is_short_of_memory(found) and not isinstance(at_best, TooLarge):
        found = plans(replace(needs, rows=independent_rows(reference)), room, processes)
    return WorkloadMemory(reference.workload.name, needs, room, found)


def independent_rows(reference: Reference) -> int:
    """Rows of its arguments that the reference treats independently, so that float64 can run in slices; 1: none. Runs it."""
    try:
        rows = reference.independent_rows(MOST_SLICES)
    except ProblemError:  # memory runs out at its first call, too
        return 1
    return rows.count if rows is not None else 1


def rehearse_float64(reference: Reference) -> None:
    """Run the reference once in float64, so that torch keeps the memory that this takes. Raises ProblemError."""
    reference.exact_of(reference.judged_model(fresh_seed(), sample=True), lambda: reference.inputs(fresh_seed()))


def rehearse_calibration(reference: Reference) -> None:
    """The same for what exists beside it while trivial models are tried: a case's inputs, and the outputs for other inputs."""
    elsewhere = reference.call(reference.judged_model(fresh_seed(), sample=True), reference.inputs(fresh_seed()))
    inputs = reference.inputs(fresh_seed())
    rehearse_float64(reference)
    del elsewhere, inputs


def release_unused(device: Device) -> None:
    """Give back what torch keeps for later tensors on a GPU: lent memory and the processes of a trial cannot use it."""
    if device.kind == "cuda":
        torch.cuda.empty_cache()
