"""The workloads of a suite session as columns: each kernel's speedup on each workload, and who is best on it. Pure.

The incumbent of the session is decided by the geometric mean in a race. The best of a column is the kernel with the highest
lower end of its interval there: where to look, not a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain import queries, suite
from engine.domain.model import Interval, Workload
from engine.domain.state import Kernel, SessionState, Stage


@dataclass(frozen=True, slots=True)
class Behind:
    """A workload on which a kernel is slower than the best one of its column, by both intervals."""

    workload: str
    own: Interval
    best: Kernel
    theirs: Interval


def workloads(state: SessionState) -> tuple[Workload, ...]:
    """The workloads of the session: one, unless it is on a suite."""
    if state.opened is None:
        return ()
    settings = state.opened.settings
    return suite.workloads_of(state.opened.problem, settings.suite, settings.workload)


def speedups(state: SessionState, kernel: Kernel) -> Mapping[str, Interval]:
    """Workload → the kernel's speedup over the ranking baseline on the present device; empty without a measurement."""
    overall = queries.speedup(state, kernel)
    if overall is None or kernel.measurement is None:
        return {}
    base = queries.ranking_baseline(state)
    each = {one.workload: one.speedup[base] for one in kernel.measurement.by_workload if base in one.speedup}
    return each or {one.name: overall for one in workloads(state)[:1]}


def leaders(state: SessionState) -> Mapping[str, Kernel]:
    """Workload → the best kernel on it, among those that may lead the session."""
    found: dict[str, tuple[float, Kernel]] = {}
    for kernel in state.kernels.values():
        if kernel.stage is not Stage.MEASURED or not queries.may_lead(state, kernel):
            continue
        for workload, ratio in speedups(state, kernel).items():
            if workload not in found or ratio.low > found[workload][0]:
                found[workload] = (ratio.low, kernel)
    return {workload: kernel for workload, (_, kernel) in found.items()}


def behind(state: SessionState, kernel: Kernel) -> tuple[Behind, ...]:
    """Where a kernel of a suite session loses to the best one of a column, the greatest loss first."""
    if len(workloads(state)) == 1:
        return ()
    own, best = speedups(state, kernel), leaders(state)
    found = [
        Behind(workload, ratio, best[workload], speedups(state, best[workload])[workload])
        for workload, ratio in own.items()
        if workload in best and best[workload].id != kernel.id
    ]
    losing = [one for one in found if one.own.high < one.theirs.low]
    return tuple(sorted(losing, key=lambda one: one.own.value / one.theirs.value))
