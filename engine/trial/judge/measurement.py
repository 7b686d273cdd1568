"""Builds measurements from the times of process pairs, with their conditions and the doubts about them. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain import stats
from engine.domain.model import Device, Interval, Measurement, Signature
from engine.domain.preparation import Peaks
from engine.trial.judge import conditions, plausibility, roofline
from engine.trial.judge.runner_client import Timing
from engine.trial.judge.timing import PairTimes, host_share


@dataclass(frozen=True, slots=True)
class MeasurementReport:
    """Builds the measurements of one judge."""

    signature: Signature
    device: Device
    peaks: Callable[[], Peaks]
    cold: bool
    confined: bool

    def doubts(self, pairs: Sequence[PairTimes], *, sure: bool = False) -> tuple[str, ...]:
        """Doubts about the kernel's times; ``sure``: only those that noise cannot explain."""
        return plausibility.timing_doubts(pairs, self.signature, self.peaks(), self.device, cold=self.cold, sure=sure)

    def evidence(self, pairs: Sequence[PairTimes]) -> tuple[str, ...]:
        """Sure doubts from undisturbed pairs; they quarantine. Other doubts only leave a measurement not corroborated."""
        calm = [pair for pair in pairs if pair.calm]
        return self.doubts(calm, sure=True) if calm else ()

    def of_kernel(
        self, depth: str, pairs: Sequence[PairTimes], ratios: Mapping[str, Interval], notes: Sequence[str]
    ) -> Measurement:
        """The kernel's measurement; ``notes`` are further conditions."""
        times = [t for p in pairs for t in p.kernel]
        doubts = self.doubts(pairs)
        disturbed = sum(p.disturbed for p in pairs)
        lines = [f"{disturbed} of {disturbed + len(times)} samples disturbed by CPU contention"] if disturbed else []
        lines += [*notes, *host_share(times), *conditions.describe([p.conditions for p in pairs])]
        return self.of_times(times, depth, len(pairs), ratios, sound=not doubts, lines=(*doubts, *lines))

    def of_times(
        self, times: Sequence[Timing], depth: str, processes: int, ratios: Mapping[str, Interval], *, sound: bool,
        lines: Sequence[str],
    ) -> Measurement:  # fmt: skip
        """Times as a measurement; ``lines`` are its conditions."""
        median = stats.median_interval([t.claimed_us for t in times])
        lines = ("cold caches" if self.cold else "hot caches", *lines, *(() if self.confined else ("no sandbox",)))
        speed_of_light = roofline.speed_of_light(roofline.floor(self.signature, self.peaks()), median.value)
        return Measurement(depth, median, len(times), processes, dict(ratios), speed_of_light, sound, lines)
