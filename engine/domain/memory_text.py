"""Memory plans in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain.memory_plan import MemoryPlan, TooLarge, WorkloadMemory

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(count: float) -> str:
    """``2.1 GB``."""
    scale, unit = next(((s, u) for s, u in _UNITS if count >= s), (1.0, "bytes"))
    return f"{count / scale:.3g} {unit}" if scale > 1 else f"{count:.0f} {unit}"


def plan_facts(plan: MemoryPlan) -> list[str]:
    """How the judge uses memory, one fact each."""
    facts = [f"{plan.slots} slot{'' if plan.slots == 1 else 's'} of operands"]
    facts.append("inputs kept until their check" if plan.keeps_inputs else "inputs drawn again from their seeds")
    facts.append(
        "outputs stay where they are until their check" if plan.copies_on_host else "outputs wait for their check on the device"
    )
    slices = f", in {plan.exact_slices} slices" if plan.exact_slices > 1 else ""
    facts.append("float64 on the " + ("host" if plan.exact_on_host else "device") + slices)
    at_a_time = "one process pair at a time" if plan.pairs_together == 1 else f"{plan.pairs_together} process pairs at a time"
    facts.append("processes kept for later pairs" if plan.keeps_processes else at_a_time)
    return facts


def plan_note(plan: MemoryPlan) -> str:
    """A line for the notes of a session; empty for a plan that saves nothing."""
    return f"memory: {'; '.join(plan_facts(plan))}; {size(plan.device_bytes)} planned" if plan.frugal else ""


def refusal(problem: str, workload: str, found: TooLarge, others: Sequence[WorkloadMemory]) -> str:
    """Why a workload is not judged: what is needed, what is free, and what would fit. ``others``: further workloads."""
    needed, free = size(found.needed), size(found.free)
    limit = ", the limit set by ESPALIER_MEMORY_GB" if found.room.limited and found.place == "device" else ""
    where = "memory" if found.room.shared else f"{found.place} memory"
    fitting = [one for one in others if one.fits]
    if fitting:
        remedy = ", ".join(f"{one.workload} fits ({size(one.plan.device_bytes)})" for one in fitting)
        remedy = f"choose another workload: {remedy}"
    else:
        share = f"a workload with 1/{found.divisor} of its operands would fit"
        remedy = share if found.divisor else "the processes of a trial alone need more: free memory"
    lack = f"it needs {needed} of {where}, and {free} are free{limit}"
    return f"{problem} with workload {workload} does not fit: {lack}; {remedy}"
