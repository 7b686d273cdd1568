"""Builds measurements from the times of process pairs, with their conditions and the doubts about them. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.domain import stats
from engine.domain.model import Device, Interval, Measurement, Signature
from engine.domain.preparation import Peaks
from engine.trial.judge.timing import conditions, plausibility, roofline
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.pair_times import PairTimes, explained

NO_CALM_PAIR = "not corroborated: every process pair was disturbed by CPU contention"
UNLIKE_PAIRS = "not corroborated: the process pairs differ too much to tell a speedup"


def doubted_if_unlike(measured: Measurement, log_ratios: Sequence[float]) -> Measurement:
    """``measured``, doubted if its speedup is not measurable because the process pairs (``log_ratios``) differ.

    One pair of a busy machine can be off by a factor of thousands. The interval is then so wide that no later kernel would be
    seen to be faster.
    """
    if len(log_ratios) < 2 or stats.is_measurable(stats.ratio_interval(log_ratios)):
        return measured
    return replace(measured, corroborated=False, doubts=(*measured.doubts, UNLIKE_PAIRS))


@dataclass(frozen=True, slots=True)
class MeasurementReport:
    """Builds the measurements of one judge."""

    signature: Signature
    device: Device
    peaks: Callable[[], Peaks]
    measure_peaks_again: Callable[[], None]
    cold: bool
    confined: bool

    def doubts(self, pairs: Sequence[PairTimes], *, sure: bool = False) -> tuple[str, ...]:
        """Doubts about the kernel's times; ``sure``: only those that noise cannot explain.

        Without a calm pair nothing can be told from noise: the times are then not corroborated, whatever the clocks say.
        """
        if self.device.kind == "cpu" and self._is_impossible(pairs):
            self.measure_peaks_again()
        found = plausibility.timing_doubts(pairs, self.signature, self.peaks(), self.device, cold=self.cold, sure=sure)
        return found if sure or any(pair.calm for pair in pairs) else (*found, NO_CALM_PAIR)

    def _is_impossible(self, pairs: Sequence[PairTimes]) -> bool:
        counted = stats.median_interval([t.counted_us for p in pairs for t in p.kernel])
        return bool(plausibility.faster_than_possible(counted, self.signature, self.peaks(), self.device))

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
        disturbed, taken = sum(p.disturbed for p in pairs), sum(p.taken for p in pairs)
        lines = [f"{disturbed} of {taken} samples disturbed by CPU contention"] if disturbed else []
        if fewer := plausibility.fewer_operations(
            stats.median_interval([t.counted_us for t in times]), self.signature, self.peaks()
        ):
            lines.append(fewer)
        lines += [*notes, *explained(pairs), *conditions.describe([p.conditions for p in pairs])]
        found = self.of_times(times, depth, len(pairs), ratios, doubts=doubts, lines=lines)
        return replace(found, clock=conditions.clock_and_power([p.conditions for p in pairs]))

    def of_times(
        self, times: Sequence[Timing], depth: str, processes: int, ratios: Mapping[str, Interval], *, lines: Sequence[str],
        doubts: Sequence[str] = (),
    ) -> Measurement:  # fmt: skip
        """Times as a measurement; ``lines`` are its conditions. It is corroborated if there is no doubt."""
        median = stats.median_interval([t.counted_us for t in times])
        lines = ("cold caches" if self.cold else "hot caches", *lines, *(() if self.confined else ("no sandbox",)))
        speed_of_light = roofline.speed_of_light(roofline.floor(self.signature, self.peaks()), median.value)
        return Measurement(
            depth, median, len(times), processes, dict(ratios), speed_of_light, not doubts, lines, doubts=tuple(doubts)
        )


def by_workload(names: Sequence[str], found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Lines on each workload; in a suite each names its workload."""
    if len(names) == 1:
        return found[0]
    return tuple(f"{name}: {line}" for name, lines in zip(names, found, strict=True) for line in lines)
