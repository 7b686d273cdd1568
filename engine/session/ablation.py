"""Ablates a lineage: verifies each kernel again and races it against its parent, on one bench in one run.

A kernel that fails is skipped; the next one is raced against the last verified kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.domain import corroboration
from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Interval
from engine.report.text.ablation import AblationStep
from engine.session.ports import Say
from engine.trial.bench import KernelSpec


class PairBench(Protocol):
    """The part of a ``TrialBench`` that an ablation uses."""

    async def try_verify(self, source: KernelSpec, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible: ...

    async def try_measure(self, source: KernelSpec, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible: ...

    async def versus(
        self, source: KernelSpec, other: KernelSpec, say: Say
    ) -> w.Measured | w.Suspected | w.Failed | w.Impossible: ...


@dataclass(frozen=True, slots=True)
class LineageKernel:
    """One kernel of the lineage."""

    id: str
    source: KernelSpec


@dataclass(frozen=True, slots=True)
class Ablation:
    """The result for a lineage, root first."""

    steps: tuple[AblationStep, ...]
    first: Interval | None
    """The first verified kernel over the ranking baseline."""
    total: Interval | None
    """The last verified kernel over the first, raced directly; ``None`` if one of the steps is that race."""
    doubts: tuple[str, ...] = ()
    """Why ``first`` or ``total`` is not corroborated."""


async def ablate(bench: PairBench, lineage: Sequence[LineageKernel], baseline: str, say: Say) -> Ablation:
    """Ablate a lineage, root first. Raises EspalierError if the bench fails."""
    steps: list[AblationStep] = []
    verified: list[LineageKernel] = []
    first, total = _Gain(), _Gain()
    for kernel in lineage:
        say(f"verifying {kernel.id}")
        step = _Gain(reason=_failure_reason(await bench.try_verify(kernel.source, say)))
        against = verified[-1].id if verified else ""
        if not step.reason and verified:
            say(f"racing {kernel.id} against {against}")
            step = _gain_over(await bench.versus(kernel.source, verified[-1].source, say), "other")
        elif not step.reason:
            first = _gain_over(await bench.try_measure(kernel.source, say), baseline)
            step = _Gain(reason=first.reason)
        if not step.reason:
            verified.append(kernel)
        steps.append(AblationStep(kernel.id, step.reason, against, step.ratio, step.doubts))
    if len(verified) > 2:
        say(f"racing {verified[-1].id} against {verified[0].id}")
        total = _gain_over(await bench.versus(verified[-1].source, verified[0].source, say), "other")
    return Ablation(tuple(steps), first.ratio, total.ratio, tuple(dict.fromkeys((*first.doubts, *total.doubts))))


@dataclass(frozen=True, slots=True)
class _Gain:
    """What a measurement or a race says about one step."""

    ratio: Interval | None = None
    reason: str = ""
    """Why there is no ratio; empty if there is one."""
    doubts: tuple[str, ...] = ()


def _gain_over(result: w.Result, name: str) -> _Gain:
    """The speedup over the baseline or the contestant ``name``."""
    reason = _failure_reason(result)
    if reason or not isinstance(result, w.Measured):
        return _Gain(reason=reason)
    return _Gain(result.measurement.speedup.get(name), doubts=corroboration.of_measurement(result.measurement))


def _failure_reason(result: w.Result) -> str:
    """Why a kernel failed; empty if it did not."""
    match result:
        case w.Failed(failure):
            return f"{failure.kind.value.replace('_', ' ')}: {failure.reason}"
        case w.Suspected(evidence):
            return f"quarantined: {'; '.join(evidence)}"
        case w.Impossible(reason):
            raise EspalierError(reason)
    return ""
