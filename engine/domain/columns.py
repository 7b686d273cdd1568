"""The workloads of a suite session as columns: each kernel's speedup on each workload, and who is best on it. Pure.

The incumbent of the session is decided by the geometric mean in a race. The best of a column is the kernel with the highest
lower end of its interval there: where to look, not a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries, suite
from engine.domain.model import Contract, Interval, Measurement, Workload
from engine.domain.state import Kernel, SessionState, Stage


@dataclass(frozen=True, slots=True)
class Behind:
    """A workload on which a kernel is slower than the best one of its column, by both intervals."""

    workload: str
    own: Interval
    best: Kernel
    theirs: Interval


@dataclass(frozen=True, slots=True)
class Combination:
    """The kernels that a dispatch would run, each on its workloads, where together they promise enough."""

    base: Kernel
    """The best single kernel, which it is made from."""
    chosen: tuple[tuple[Workload, Kernel], ...]
    promise: float
    """The speedup over the incumbent, by the recorded speedups."""

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels, the oldest first."""
        return tuple(sorted({kernel.id for _, kernel in self.chosen}, key=lambda name: (len(name), name)))


LEAST_PROMISE = 1.02
"""About what a race over a suite can tell, for the price of one verdict."""


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


def gain(state: SessionState, measured: Measurement) -> float:
    """What a kernel with these times would add to a dispatch of the best kernels on each workload: a ratio of 1 or more.

    A workload counts where the kernel beats the best one by both intervals. 1 outside a suite.
    """
    named, best, base = workloads(state), leaders(state), queries.ranking_baseline(state)
    logs = []
    for one in measured.by_workload if len(named) > 1 else ():
        if one.workload in best and base in one.speedup:
            own, theirs = one.speedup[base], speedups(state, best[one.workload])[one.workload]
            logs.append(math.log(own.value / theirs.value) if own.low > theirs.high > 0 else 0.0)
    return math.exp(sum(logs) / len(named)) if logs else 1.0


def best_single(state: SessionState) -> Kernel | None:
    """The incumbent; where that is a dispatch of several kernels, the one that it was made from."""
    best = queries.incumbent(state)
    while best is not None and len(best.members) > 1:
        best = state.kernels.get(best.parent or "")
    return best


def dispatched(state: SessionState) -> tuple[tuple[Workload, Kernel], ...]:
    """Each workload of a suite with the kernel that a dispatch would run there; empty if one kernel is the best everywhere.

    It is the best single kernel, or one of the same dialect and contract that beats it there by both intervals.
    """
    base = best_single(state)
    if base is None or len(workloads(state)) < 2:
        return ()
    own = speedups(state, base)
    rivals = [
        kernel
        for kernel in state.kernels.values()
        if kernel.stage is Stage.MEASURED
        and len(kernel.members) < 2
        and (kernel.dialect, kernel.contract) == (base.dialect, base.contract)
        and queries.may_lead(state, kernel)
    ]
    chosen = tuple((one, _best_on(state, one.name, base, own, rivals)) for one in workloads(state))
    return chosen if any(kernel.id != base.id for _, kernel in chosen) else ()


def combination(state: SessionState) -> Combination | None:
    """What a dispatch would combine; ``None`` if it promises less than ``LEAST_PROMISE`` over the incumbent.

    Python modules are not combined.
    """
    base, chosen = best_single(state), dispatched(state)
    if base is None or base.contract is Contract.MODULE or not chosen:
        return None
    found = promise(state, chosen)
    return Combination(base, chosen, found) if found >= LEAST_PROMISE else None


def dispatch_title(names: Sequence[str]) -> str:
    """How a dispatch of these kernels is called: ``Dispatch of k1, k2 and k3``."""
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"Dispatch of {listed}"


def promise(state: SessionState, chosen: Sequence[tuple[Workload, Kernel]], over: Kernel | None = None) -> float:
    """What these kernels, each on its workload, promise together: their speedup over a kernel, by default the incumbent.

    The geometric mean of the ratios of the recorded speedups; 0 where one is missing.
    """
    lead = over or queries.incumbent(state)
    theirs = speedups(state, lead) if lead is not None else {}
    logs = []
    for workload, kernel in chosen:
        own, other = speedups(state, kernel).get(workload.name), theirs.get(workload.name)
        if own is None or other is None or not other.value > 0 or not 0 < own.value < math.inf:
            return 0.0
        logs.append(math.log(own.value / other.value))
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def _best_on(state: SessionState, workload: str, base: Kernel, own: Mapping[str, Interval], rivals: list[Kernel]) -> Kernel:
    theirs = {kernel.id: found for kernel in rivals if (found := speedups(state, kernel).get(workload)) is not None}
    if workload not in own or not theirs:
        return base
    best = max(theirs, key=lambda name: theirs[name].low)
    return state.kernels[best] if theirs[best].low > own[workload].high else base
