"""The memory plan that a trial uses on a device. Pure arithmetic.

Settings are tried from the most comfortable to the most frugal one. The first that stays within a comfortable share is used;
where none does, the first that fits at all. What does not fit is refused before memory is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from engine.domain.memory_phases import SLACK, sized, without_slack
from engine.domain.memory_plan import (
    GIB,
    MOST_SLICES,
    MOST_SLOTS,
    ROOMY,
    MemoryNeeds,
    MemoryPlan,
    MemoryRoom,
    TooLarge,
    TrialProcesses,
)
from engine.domain.processes_ahead import with_processes_ahead

_COMFORTABLE_OPERANDS = 6
"""A plan is comfortable if it needs at most so many times the operands,"""
_COMFORTABLE_EAGER = 2
"""or so many times what eager PyTorch needs,"""
_LITTLE, _LITTLE_SHARED = 32, 8
"""or, without what processes take by themselves, one part in so many of a GPU's room (of a machine's memory)."""
_FOR_PROCESSES = 2
"""In the last case processes by themselves may take one part in so many of the room."""
_SMALL = GIB
"""Operands up to this many bytes are comfortable on a GPU while everything takes at most half of the room: a process takes half
a GiB by itself, so no setting keeps such a problem within six times its operands, and frugal ones start processes for each
pair."""
_MOST_DIVISOR = 1 << 20
_RIVALS = 2
"""Kernels of a race."""


def plans(needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> tuple[MemoryPlan, ...] | TooLarge:
    """The plan to use, then those to fall back on if memory runs out anyway, each with less than the one before."""
    every = [sized(one, needs, room, processes) for one in _settings(shared=room.shared, rows=needs.rows)]
    fitting = [one for one in every if one.device_bytes <= room.device and one.host_bytes <= room.host]
    if not fitting:
        return TooLarge(min(every, key=lambda one: _lack(one, room)), room, _fitting_divisor(needs, room, processes))
    first = next((one for one in fitting if _is_comfortable(one, needs, room, processes)), None)
    copies_for_comfort = first is not None and first.copies_on_host and needs.rows == 1
    if first is None or copies_for_comfort or (first.exact_on_host and not fitting[0].exact_on_host):
        # On the host float64 takes seconds a call, and copying takes a second for 2 GB. If the device has the memory, use that.
        on_device = [one for one in fitting if not (one.exact_on_host or one.copies_on_host)]
        first = _most_frugal(on_device) if on_device else first or _most_frugal(fitting)
    chosen = [first]
    for one in fitting[fitting.index(first) + 1 :]:
        if one.device_bytes < chosen[-1].device_bytes:
            chosen.append(one)
    held = [replace(one, holds_outputs=_has_room_to_hold(one, needs, room, processes)) for one in chosen]
    limits = [_most_for_processes(first, needs, room), *[0 for _ in chosen[1:]]]  # a fallback needs less than the one before
    return tuple(with_processes_ahead(one, needs, room, processes, most) for one, most in zip(held, limits, strict=True))


def _has_room_to_hold(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> bool:
    """Whether the outputs of one more call fit, in the processes of both kernels of a race."""
    held = _RIVALS * (processes.pairs if plan.keeps_processes else 1) * needs.outputs
    return room.shared or plan.device_bytes + int(SLACK * held) <= room.device


def _most_frugal(found: Sequence[MemoryPlan]) -> MemoryPlan:
    return min(found, key=lambda one: one.device_bytes)


def is_short_of_memory(found: tuple[MemoryPlan, ...] | TooLarge) -> bool:
    """Whether float64 in slices would help: no plan fits, or the one in use has float64 or copies of outputs on the host."""
    return isinstance(found, TooLarge) or found[0].exact_on_host or found[0].copies_on_host


def _fitting_divisor(needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> int:
    """The least power of two by which the needs must be divided to fit; 0 if processes alone take too much."""
    frugal = list(_settings(shared=room.shared, rows=needs.rows))
    divisor = 2
    while divisor <= _MOST_DIVISOR:
        less = MemoryNeeds(**{**{name: count // divisor for name, count in asdict(needs).items()}, "rows": needs.rows})
        few = replace(processes, holdouts=tuple(count // divisor for count in processes.holdouts))
        if any(not _lack(sized(one, less, room, few), room) for one in frugal):
            return divisor
        divisor *= 2
    return 0


def _lack(plan: MemoryPlan, room: MemoryRoom) -> int:
    """Bytes that the plan takes beyond the room, on the device and on the host; 0: it fits."""
    return max(0, plan.device_bytes - room.device) + max(0, plan.host_bytes - room.host)


def _is_comfortable(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> bool:
    """Within the bounds, or little beside what every process takes by itself."""
    if not room.shared and needs.operands <= _SMALL and plan.device_bytes <= room.device // _FOR_PROCESSES:
        return True
    alone = sized(plan, needs, replace(room, process=0), processes).device_bytes
    share = room.device // (_LITTLE_SHARED if room.shared else _LITTLE)
    little = alone <= share and plan.device_bytes - alone <= room.device // _FOR_PROCESSES
    return little or plan.device_bytes <= _bound(needs)


def _settings(*, shared: bool, rows: int = 0) -> Iterator[MemoryPlan]:
    """From the most comfortable to the most frugal."""
    for slots in range(MOST_SLOTS, 0, -1):
        yield replace(ROOMY, slots=slots)
    yield replace(ROOMY, slots=2, keeps_processes=False)
    frugal = replace(ROOMY, slots=1, keeps_processes=False)
    yield frugal
    yield replace(frugal, keeps_inputs=False)
    if rows > 1:
        sliced = replace(frugal, exact_slices=min(MOST_SLICES, rows))
        yield sliced
        yield replace(sliced, keeps_inputs=False)
        if not shared:
            yield replace(sliced, keeps_inputs=False, copies_on_host=True)
    if not shared:
        yield replace(frugal, keeps_inputs=False, copies_on_host=True)
        yield replace(frugal, exact_on_host=True)
        yield replace(frugal, keeps_inputs=False, exact_on_host=True, copies_on_host=True)


def _bound(needs: MemoryNeeds) -> int:
    """Bytes of the device up to which a plan is comfortable."""
    return max(_COMFORTABLE_OPERANDS * needs.operands, _COMFORTABLE_EAGER * (needs.operands + needs.own))


def _most_for_processes(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom) -> int:
    """What a phase may take with further processes: what the bound leaves, or half of the room where the plan exceeds it."""
    if room.shared:
        return 0
    bound = _bound(needs) if plan.device_bytes <= _bound(needs) else room.device // _FOR_PROCESSES
    return without_slack(min(bound, room.device), needs)
