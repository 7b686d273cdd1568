"""One workload in the sustained regime: its process pairs, what they show, and what is doubtful about them. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.domain import stats
from engine.domain.model import Measurement, Signature
from engine.domain.regimes import Sustained
from engine.trial.judge.baselines import Baselines
from engine.trial.judge.interleaving import Contestants
from engine.trial.judge.judge_tools import JudgeTools
from engine.trial.judge.sustained import SustainedTrial
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing import plausibility, roofline, sustained_times
from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.judge.timing.sustained_times import PACES, SustainedPair, still_busy, unresolved


@dataclass(frozen=True, slots=True)
class SustainedWorkload:
    """The sustained regime on one workload."""

    signature: Signature
    tools: JudgeTools
    baselines: Baselines
    bed: Callable[[], TestBed]
    """The workload's test bed, calibrated at first use."""

    def run_pair(self, contest: Contestants) -> SustainedPair:
        """One process pair of calls back to back."""
        pace = PACES[self.tools.device.kind].shared(self.tools.workloads)
        least = roofline.floor(self.signature, self.tools.peaks())
        return SustainedTrial(self.bed(), contest, self.tools.setup, pace).run(least.bytes_us if self._stays_cached() else 0.0)

    def figures(self, pairs: Sequence[SustainedPair], against: str) -> Sustained:
        """What the kernel's bursts show, with its speedup over ``against``."""
        doubts = self.doubts(pairs)
        ratio = stats.ratio_interval(sustained_times.log_ratios(pairs, against, KERNEL), self.claimable(pairs))
        calls = sum(burst.calls for pair in pairs for turn in pair.turns[KERNEL] for burst in turn.counted)
        return Sustained(
            sustained_times.call_time(pairs, KERNEL), {against: ratio}, calls, len(pairs),
            sustained_times.clock_and_power(pairs, KERNEL), sustained_times.clock_and_power(pairs, against),
            not doubts, (self._rotation(), *sustained_times.describe(pairs)), doubts,
        )  # fmt: skip

    def claimable(self, pairs: Sequence[SustainedPair]) -> float:
        """The smallest effect on this workload that is ever claimed, in logarithms."""
        return max(self.baselines.claimable, sustained_times.cost_share(pairs))

    def measurement(self, pairs: Sequence[SustainedPair], against: str) -> Measurement:
        """``figures`` as a measurement, for a race."""
        found = self.figures(pairs, against)
        light = roofline.speed_of_light(roofline.floor(self.signature, self.tools.peaks()), found.time_us.value)
        return Measurement(
            "precise", found.time_us, found.calls, found.processes, found.speedup, light, found.corroborated,
            ("sustained", *found.conditions), doubts=found.doubts,
        )  # fmt: skip

    def doubts(self, pairs: Sequence[SustainedPair]) -> tuple[str, ...]:
        """Doubts about the kernel's bursts."""
        found = (sustained_times.skipped_work(pairs), still_busy(pairs), unresolved(pairs), self._faster_than_possible(pairs))
        return tuple(filter(None, found))

    def evidence(self, pairs: Sequence[SustainedPair]) -> tuple[str, ...]:
        """The doubts that noise cannot explain."""
        return tuple(filter(None, (sustained_times.skipped_work(pairs, sure=True), self._faster_than_possible(pairs))))

    def _faster_than_possible(self, pairs: Sequence[SustainedPair]) -> str:
        if self._stays_cached():
            return ""
        time = sustained_times.call_time(pairs, KERNEL)
        return plausibility.faster_than_possible(time, self.signature, self.tools.peaks(), self.tools.device)

    def _stays_cached(self) -> bool:
        """Whether the caches may hold a part of the operands from call to call."""
        return self.bed().operand_bytes < 2 * self.tools.device.cache_bytes

    def _rotation(self) -> str:
        sets = self.bed().slots
        words = f"back to back over {sets} set{'s' if sets > 1 else ''} of operands"
        if not PACES[self.tools.device.kind].repeats:
            words = f"{words}, drawn again for every burst"
        return f"{words}, which the caches hold in part" if self._stays_cached() else words
