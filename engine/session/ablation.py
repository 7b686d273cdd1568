"""A lineage taken apart: each kernel verified again and raced against its parent, on one bench in one run.

Knows the order of the steps and what a gain is measured against where a kernel is no longer right; nothing of tables and words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Interval
from engine.report.ablation import Step
from engine.session.ports import Say
from engine.trial.bench import Source


class Duels(Protocol):
    """The part of a ``TrialBench`` that an ablation needs."""

    async def try_verify(self, source: Source, say: Say) -> w.Verified | w.Suspected | w.Failed | w.Impossible: ...

    async def try_measure(self, source: Source, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible: ...

    async def versus(self, source: Source, other: Source, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible: ...


@dataclass(frozen=True, slots=True)
class Rung:
    """One kernel of the lineage."""

    kernel: str
    source: Source


@dataclass(frozen=True, slots=True)
class Ablation:
    """A whole lineage, root first."""

    steps: tuple[Step, ...]
    first: Interval | None
    """The first right kernel over the ranking baseline."""
    total: Interval | None
    """The last right kernel over the first, raced directly; ``None`` where that is a step already."""


async def ablate(bench: Duels, lineage: Sequence[Rung], baseline: str, say: Say) -> Ablation:
    """Take a lineage apart, root first. Raises EspalierError when the bench cannot do it."""
    steps: list[Step] = []
    right: list[Rung] = []
    first: Interval | None = None
    for rung in lineage:
        say(f"{rung.kernel} again")
        trouble = _trouble(await bench.try_verify(rung.source, say))
        gain: Interval | None = None
        against = right[-1].kernel if right else ""
        if not trouble and right:
            say(f"{rung.kernel} against {against}")
            gain, trouble = _ratio(await bench.versus(rung.source, right[-1].source, say), "other")
        elif not trouble:
            first, trouble = _ratio(await bench.try_measure(rung.source, say), baseline)
        if not trouble:
            right.append(rung)
        steps.append(Step(rung.kernel, trouble, against, gain))
    total: Interval | None = None
    if len(right) > 2:
        say(f"{right[-1].kernel} against {right[0].kernel}")
        total, _ = _ratio(await bench.versus(right[-1].source, right[0].source, say), "other")
    return Ablation(tuple(steps), first, total)


def _ratio(result: w.Result, name: str) -> tuple[Interval | None, str]:
    """The speedup over ``name``, or why there is none."""
    trouble = _trouble(result)
    if trouble or not isinstance(result, w.Measured):
        return None, trouble
    return result.measurement.speedup.get(name), ""


def _trouble(result: w.Result) -> str:
    """How a kernel failed, in words; empty where it did not."""
    match result:
        case w.Failed(failure):
            return f"{failure.kind.value.replace('_', ' ')}: {failure.reason}"
        case w.Suspected(evidence):
            return f"not believed: {'; '.join(evidence)}"
        case w.Impossible(reason):
            raise EspalierError(reason)
    return ""
