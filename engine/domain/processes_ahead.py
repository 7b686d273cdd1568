"""Processes of a trial that live longer, or start earlier, than they must, where memory allows. Pure arithmetic."""

from __future__ import annotations

from dataclasses import replace

from engine.domain.memory_phases import phases_of, with_slack
from engine.domain.memory_plan import SAME_PAIRS, MemoryNeeds, MemoryPlan, MemoryRoom, TrialProcesses

_AHEAD_OF_A_PAIR = 3
"""Processes that are created ahead for each pair: the kernel's, the baseline's, and one of the baseline's check before it;"""
_AHEAD_OF_ALL = 1
"""and so many more, while a kernel is checked."""
_MOST_PAIRS_AHEAD = 2
"""A measurement has three pairs at least, and the kernel's screen is the first."""
_SAME_TOGETHER = 3
"""Fewest pairs of the ranking baseline against itself."""


def with_processes_ahead(
    plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses, most: int
) -> MemoryPlan:
    """The plan with processes that live longer, or start earlier, than they must: that saves seconds of each verdict.

    With them a phase takes at most ``most`` bytes, or what the largest phase takes without them.
    """
    phases = phases_of(plan, needs, room, processes)
    most = max(*phases.values(), most)
    runner = room.process + max(needs.own, plan.warm_bytes)
    if phases["baselines"] + runner <= most:
        plan, phases["baselines"] = replace(plan, keeps_checked=True), phases["baselines"] + runner
    if not (room.shared or plan.keeps_processes) and room.process:
        baselines = phases["baselines"] + (_SAME_TOGETHER - 1) * processes.baselines * runner
        if baselines <= most:
            plan, phases["baselines"] = replace(plan, baselines_together=True), baselines
        spare = {name: (most - needed) // room.process for name, needed in phases.items()}
        checking, measuring = spare["verification"] - _AHEAD_OF_ALL, spare["measurement"]
        ahead = max(0, min(_MOST_PAIRS_AHEAD, min(checking, measuring) // _AHEAD_OF_A_PAIR, spare["baselines"]))
        plan = replace(plan, baselines_ahead=min(SAME_PAIRS - 1, spare["baselines"]), pairs_ahead=ahead)
        together = phases["measurement"] + (_MOST_PAIRS_AHEAD - 1) * (1 + processes.interleaved) * runner
        phases["baselines"] += ahead * room.process
        phases["verification"] += (ahead * _AHEAD_OF_A_PAIR + (_AHEAD_OF_ALL if ahead else 0)) * room.process
        phases["measurement"] += ahead * _AHEAD_OF_A_PAIR * room.process
        if together <= most:
            plan = replace(plan, pairs_together=_MOST_PAIRS_AHEAD)
            phases["measurement"] = max(together, phases["measurement"])
    phase = max(phases, key=lambda name: phases[name])
    return replace(plan, device_bytes=with_slack(phases[phase], needs), phase=phase)
