"""Tunes a kernel on each workload of a suite: trials of a bench, by successive halving (``domain.strategy.halving``).

Each trial is an ordinary one over the whole suite, of a dispatch with one member, the kernel, and values for each workload.
Nothing is decided here about the kernel that comes of it: it is verified, measured and raced like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.domain import columns, queries
from engine.domain import work as w
from engine.domain.errors import KernelCodeError
from engine.domain.model import Interval, Measurement, Workload, WorkloadTuning
from engine.domain.state import Kernel, SessionState
from engine.domain.strategy.halving import CANDIDATES, Values, WorkloadHalving, is_over, trials
from engine.problem.header import plan_names
from engine.session.dispatch import deciding
from engine.session.ports import Bench, Say, StoreBlob
from engine.toolchain import tunables
from engine.toolchain.dispatch import Dispatch, DispatchMember, DispatchShape, dispatch_text
from engine.toolchain.kernel_build import choices
from engine.toolchain.kernel_file import KernelCode

_FROM_TREE = 3
"""Candidates of a workload that are variants of the tree, the fastest there."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """The kernel that is tuned, with its code and values, and the workloads."""

    kernel: Kernel
    code: str
    own: Values
    workloads: tuple[Workload, ...]

    def text(self, values: Mapping[str, Values]) -> str:
        """The kernel's code with these values on each workload, as a dispatch of one member."""
        settings = deciding(self.workloads)
        shapes = tuple(
            DispatchShape({name: one.settings[name] for name in settings}, _differing(values[one.name], self.own))
            for one in self.workloads
        )
        member = DispatchMember(self.kernel.id, self.own, shapes, self.code)
        title = f"{self.kernel.id} with its tunables chosen for each workload: the nearest measured shape decides."
        return dispatch_text(Dispatch(settings, (member,)), self.kernel.dialect, title)

    def trial(self, text: str) -> Kernel:
        """The kernel as a bench takes it for one trial."""
        name = f"{self.kernel.id}-tuned{self.kernel.dialect.suffix}"
        return replace(self.kernel, name=name, source=hashlib.sha256(text.encode()).hexdigest(), tunables={})


def _differing(values: Values, own: Values) -> Values:
    return {name: value for name, value in values.items() if own.get(name) != value}


async def tune(
    kernel: Kernel, code: str, state: SessionState, bench: Bench, store: StoreBlob, say: Say
) -> w.Tuned | w.NoVerdict:
    """The fastest values on each workload, and the code with them. Raises EspalierError if the kernel cannot be tuned."""
    began = asyncio.get_running_loop().time()
    subject, halvings = _started(kernel, code, state)
    count = 0
    while (lap := trials(halvings)) and not is_over(halvings):
        for trial in range(lap):
            say(f"tuning {kernel.id} on {len(halvings)} workloads: trial {trial + 1} of {lap}")
            text = subject.text({one.workload: one.candidates[one.place(trial)] for one in halvings})
            outcome = await bench.verify(subject.trial(text), text, say)
            if isinstance(outcome, w.Abandoned | w.Impossible):
                return outcome
            count += 1
            found = _speedups(outcome.screen, queries.ranking_baseline(state)) if isinstance(outcome, w.Verified) else {}
            halvings = [one.with_result(trial, found.get(one.workload)) for one in halvings]
        halvings = [one.halved() for one in halvings]
    best = {one.workload: one.fastest() for one in halvings}
    tuned = tuple(WorkloadTuning(name, values, ratio) for name, (values, ratio) in best.items())
    seconds = asyncio.get_running_loop().time() - began
    if all(dict(values) == dict(subject.own) for values, _ in best.values()):
        return w.Tuned(tuned, trials=count, note="no other values are faster by the whole interval", seconds=seconds)
    text = subject.text({name: values for name, (values, _) in best.items()})
    made = choices(KernelCode(text, kernel.dialect, kernel.contract, kernel.name), subject.workloads)
    return w.Tuned(tuned, store(text.encode("utf-8", "replace")), made, count, seconds=seconds)


def _started(kernel: Kernel, code: str, state: SessionState) -> tuple[_Subject, list[WorkloadHalving]]:
    declared = tunables.parse_tunables(code, kernel.dialect)
    requires = tunables.parse_requires(code, kernel.dialect)
    if all(len(one.values) == 1 for one in declared):
        raise KernelCodeError(f"{kernel.id} has one value of each tunable: there is nothing to tune")
    own = {**tunables.default_values(declared), **kernel.tunables}
    subject = _Subject(kernel, code, own, columns.workloads(state))
    assert state.preparation is not None, "kernels are measured after the preparation"
    assert state.device is not None
    known = {one.workload: one.signature for one in state.preparation.by_workload}
    halvings = []
    for one in subject.workloads:
        names = plan_names(known.get(one.name) or state.preparation.signature, state.device.units)
        spread = tunables.variants(declared, requires, names, CANDIDATES, 0)
        tried = [v for v in _of_tree(state, kernel, one.name) if tunables.first_unmet(requires, names, v) is None]
        halvings.append(WorkloadHalving.start(one.name, own, _distinct([*tried[:_FROM_TREE], *spread])))
    return subject, halvings


def _of_tree(state: SessionState, kernel: Kernel, workload: str) -> list[Values]:
    """The values of the tree's other kernels with the same code, the fastest on the workload first."""
    same = (one for one in state.kernels.values() if one.source == kernel.source and one.id != kernel.id)
    rated = [(found.low, one.tunables) for one in same if (found := columns.speedups(state, one).get(workload)) is not None]
    return [values for _, values in sorted(rated, key=lambda pair: -pair[0])]


def _distinct(values: Sequence[Values]) -> list[Values]:
    return list({tuple(sorted(one.items())): one for one in values}.values())


def _speedups(screen: Measurement, baseline: str) -> Mapping[str, Interval]:
    return {one.workload: one.speedup[baseline] for one in screen.by_workload if baseline in one.speedup}
