"""What a memory plan takes on a device in each phase of a trial. Pure arithmetic."""

from __future__ import annotations

from dataclasses import replace

from engine.domain.memory_plan import BLOCKS, GIB, KEPT_WIDE, SAME_PAIRS, MemoryNeeds, MemoryPlan, MemoryRoom, TrialProcesses

SLACK = 1.1
"""Rounding, fragmentation, and the workspace of operators."""
_BLOCKWISE = 6
"""What a comparison of small outputs takes, as a multiple of what the reference allocates in float64."""
_LOCKED = 2
"""Page-locked memory of the host is allocated in powers of two, and so takes up to twice what is asked for."""
_WARM, _WARM_OWN, _MOST_WARM = 4, 2, GIB
"""Heap of a module's process on a CPU: so many times the operands, or, where processes end with their pair, so many times what
eager PyTorch allocates; and at most so many bytes."""


def warm_bytes(operands: int) -> int:
    """Heap that a module's process on a CPU faults in, where memory is not scarce."""
    return min(_WARM * operands, _MOST_WARM)


def sized(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> MemoryPlan:
    """The plan, completed by the memory that it takes: on the device, on the host, and in which phase most."""
    if room.shared:
        warm = warm_bytes(needs.operands) if plan.keeps_processes else min(_WARM_OWN * needs.own, _MOST_WARM)
        plan = replace(plan, warm_bytes=warm)
    phases = phases_of(plan, needs, room, processes)
    phase = max(phases, key=lambda name: phases[name])
    host = 0
    if not room.shared:
        copies = _LOCKED * needs.outputs * plan.slots if plan.copies_on_host else 0
        exact = needs.exact_peak if plan.exact_on_host else 0
        host = int(SLACK * (copies + exact))
    return replace(plan, device_bytes=with_slack(phases[phase], needs), host_bytes=host, phase=phase)


def with_slack(phase: int, needs: MemoryNeeds) -> int:
    """Bytes to plan for a phase that needs ``phase`` bytes."""
    return int(SLACK * phase) + _for_blocks(needs)


def without_slack(planned: int, needs: MemoryNeeds) -> int:
    """The inverse of ``with_slack``: what a phase may need if ``planned`` bytes are planned for it."""
    return int((planned - _for_blocks(needs)) / SLACK)


def _for_blocks(needs: MemoryNeeds) -> int:
    return min(BLOCKS, _BLOCKWISE * needs.exact)


def judges_tensors(plan: MemoryPlan, needs: MemoryNeeds) -> int:
    """What the judge's own tensors may take while a kernel is checked, beside lent memory."""
    kept = needs.inputs * (plan.slots if plan.keeps_inputs else 0)
    copies = 0 if plan.copies_on_host else plan.slots * needs.outputs
    return int(SLACK * (needs.weights + kept + _exact(plan, needs) + copies))


def _exact(plan: MemoryPlan, needs: MemoryNeeds) -> int:
    """What float64 takes on the device."""
    return needs.outputs if plan.exact_on_host else needs.exact_in(plan.exact_slices)


def phases_of(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> dict[str, int]:
    """What each phase of a trial needs on the device."""
    exact = _exact(plan, needs)
    kept = needs.inputs * (plan.slots if plan.keeps_inputs else 0)
    judge = room.process + plan.slots * needs.operands + needs.weights + max(kept, needs.inputs)
    checked = judge - (0 if plan.keeps_inputs else needs.inputs) + exact
    wide = needs.exact_weights if needs.exact_weights <= KEPT_WIDE else 0
    copies = 0 if plan.copies_on_host else plan.slots * needs.outputs
    rivals = plan.slots * needs.outputs if room.shared else 0
    runner = room.process + max(needs.own, plan.warm_bytes)
    null = room.process + (needs.outputs if room.shared else 0)
    alive = processes.pairs if plan.keeps_processes else 1
    itself = max(0, SAME_PAIRS + 1 - alive) if plan.keeps_processes else 1
    baselines = alive * processes.baselines * runner if plan.keeps_processes else 0
    beside = max(baselines, alive * processes.interleaved * runner) + null
    held = sum(processes.holdouts) if plan.keeps_processes else max(processes.holdouts, default=0)
    holdouts = plan.holdout_slots * held
    calibration = room.process + 2 * needs.inputs + needs.weights + max(exact, needs.inputs + needs.weights + needs.own)
    return {
        "calibration": calibration + (0 if plan.keeps_inputs else -needs.inputs),
        "baselines": judge + wide + (alive * processes.baselines + itself) * runner + null,
        "verification": checked + copies + runner + beside + holdouts,
        "measurement": checked + copies + alive * runner + beside + (holdouts if plan.keeps_processes else 0),
        "race": checked + 2 * copies + rivals + 2 * alive * runner + baselines + null,
    }
