"""A kernel in the sustained regime over a suite, against the ranking baseline or another kernel. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from engine.domain import stats, suite
from engine.domain.model import Interval
from engine.domain.regimes import Regime
from engine.trial.judge.interleaving import Contestants
from engine.trial.judge.module_weights import ModuleWeights
from engine.trial.judge.timing import stopping, sustained_times
from engine.trial.judge.timing.measurement import by_workload
from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.judge.timing.sustained_times import SustainedPair
from engine.trial.judge.workload_trial import Say, TakePair, WorkloadTrial
from engine.trial.protocol import OTHER, Candidate, MeasureReply, SustainReply

_Bounds = tuple[int, int] | None


class TakePairs(Protocol):
    """Adds process pairs, by workload, until none is owed."""

    def __call__(
        self, judged: Mapping[str, Candidate], say: Say, pairs: list[list[SustainedPair]], take: TakePair[SustainedPair],
        owed: Callable[[], frozenset[int]], bounds: _Bounds,
    ) -> None: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class SustainedSuite:
    """The workloads of one judge. One workload is a suite of one."""

    trials: Sequence[WorkloadTrial]
    baseline: str
    """The ranking one."""
    take_pairs: TakePairs
    weights: ModuleWeights

    def measure(self, candidate: Candidate, say: Say) -> SustainReply:
        """The speedup over the ranking baseline, until its interval is narrow enough. Raises TrialFailed."""
        pairs = self._pairs({KERNEL: candidate}, say, self.baseline, None)
        each = list(zip(self.trials, pairs, strict=True))
        parts = {trial.name: self.weights.marked(trial.sustained.figures(own, self.baseline), candidate) for trial, own in each}
        whole = suite.sustained(parts, {self.baseline: self._ratio(pairs, self.baseline)})
        evidence = by_workload([trial.name for trial in self.trials], [trial.sustained.evidence(own) for trial, own in each])
        return SustainReply(whole, self._raw(pairs), evidence)

    def versus(self, candidate: Candidate, other: Candidate, say: Say, bounds: _Bounds) -> MeasureReply:
        """The speedup of ``candidate`` over ``other``; ``bounds``: those of a race for the lead. Raises TrialFailed."""
        pairs = self._pairs({KERNEL: candidate, OTHER: other}, say, OTHER, bounds)
        parts = {
            trial.name: self.weights.marked(trial.sustained.measurement(own, OTHER), candidate, other)
            for trial, own in zip(self.trials, pairs, strict=True)
        }
        whole = suite.measurement(parts, {OTHER: self._ratio(pairs, OTHER)})
        return MeasureReply(whole, self._raw(pairs), regime=Regime.SUSTAINED)

    def _pairs(self, judged: Mapping[str, Candidate], say: Say, against: str, bounds: _Bounds) -> list[list[SustainedPair]]:
        pairs: list[list[SustainedPair]] = [[] for _ in self.trials]
        kind, began = self.trials[0].device_kind, time.monotonic()

        def owed() -> frozenset[int]:
            logs = self._logs(pairs, against)
            if bounds is None and stopping.is_enough_sustained(logs, kind, time.monotonic() - began):
                return frozenset()
            each = enumerate(zip(self.trials, pairs, strict=True))
            doubted = [place for place, (trial, own) in each if trial.sustained.doubts(own)]
            return stopping.owed(logs, doubted, kind, self._claimable(pairs), raced=bounds is not None)

        def take(trial: WorkloadTrial, contest: Contestants, _: list[SustainedPair]) -> SustainedPair:
            ranking = {name: one for name, one in contest.baselines.items() if name == self.baseline}
            return trial.sustained.run_pair(replace(contest, baselines=ranking))

        self.take_pairs(judged, say, pairs, take, owed, bounds)
        return pairs

    def _logs(self, pairs: Sequence[Sequence[SustainedPair]], against: str) -> list[list[float]]:
        """log(``against`` ÷ kernel) of each process pair, by workload."""
        return [sustained_times.log_ratios(own, against, KERNEL) for own in pairs]

    def _ratio(self, pairs: Sequence[Sequence[SustainedPair]], against: str) -> Interval:
        return stats.ratio_interval(stopping.mean_logs(self._logs(pairs, against)), self._claimable(pairs))

    def _claimable(self, pairs: Sequence[Sequence[SustainedPair]]) -> float:
        return fmean(trial.sustained.claimable(own) for trial, own in zip(self.trials, pairs, strict=True))

    def _raw(self, pairs: Sequence[Sequence[SustainedPair]]) -> bytes:
        return sustained_times.raw({trial.name: own for trial, own in zip(self.trials, pairs, strict=True)})
