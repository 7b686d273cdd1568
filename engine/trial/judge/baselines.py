"""The baselines of one judge: their measurements, and the speedups over all of them. Imports torch.

The ranking baseline and every baseline that is cheap to prepare are called in every sample of every kernel. One that is
expensive to prepare is measured once, interleaved with the ranking one, or taken from the cache; the speedup over it is chained
via the ranking one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.domain import stats
from engine.domain.errors import ProblemError
from engine.domain.memory_plan import SAME_PAIRS
from engine.domain.model import Device, Interval, Measurement
from engine.trial.judge.caches import baseline_cache
from engine.trial.judge.failures import TrustedProcessLost
from engine.trial.judge.interleaving import Contestants, PairSetup, run_pair
from engine.trial.judge.judged_calls import CheckTally
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing import conditions
from engine.trial.judge.timing.measurement import MeasurementReport
from engine.trial.judge.timing.pair_times import PairTimes, log_ratios, samples_for, shared_samples
from engine.trial.judge.timing.stopping import LEAST_SAME_PAIRS, is_same
from engine.trial.protocol import OpenRequest

_ITSELF = "itself"
_COMPILED = "compile"
"""Prefix of the baselines that are measured once: each of their processes recompiles the reference."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BaselineResults:
    """Measurements by name, and notes for the session."""

    measured: dict[str, Measurement]
    notes: tuple[str, ...]
    to_cache: bytes
    """The baselines to cache, encoded; empty if there are none and never were."""


def claimable(same: Interval | None) -> float:
    """The largest effect, in logarithms, of a baseline against itself: nothing smaller is ever claimed."""
    return max(abs(math.log(same.low)), abs(math.log(same.high))) if same is not None else 0.0


class Baselines:
    """The baselines of one judge."""

    def __init__(self, opened: OpenRequest, device: Device, pool: ProcessPool, setup: PairSetup, workloads: int = 1) -> None:
        """``workloads``: those of the suite, which share the processes."""
        self._workloads = workloads
        self._opened = opened
        self._device = device
        self._pool = pool
        self._setup = setup
        self.same = Interval(*opened.same) if opened.same is not None and min(opened.same) > 0 else None
        """The ranking baseline against itself; a damaged journal may say 0."""
        self._kept: dict[str, baseline_cache.Kept] = {}
        self._missing: dict[str, str] = {}
        self._measured_once: dict[str, Measurement] = {}
        self._disturbed = False
        """Whether no pair of the ranking one against itself was calm."""
        self.started = False
        """Whether it is known which of them run here."""

    @property
    def claimable(self) -> float:
        """The smallest effect that is claimed, in logarithms, from what the ranking baseline shows against itself."""
        return claimable(self.same)

    @property
    def interleaved(self) -> tuple[str, ...]:
        """The baselines that are called in every sample, the ranking one first."""
        return tuple(name for name in self._unkept() if name not in self._measured_once)

    def runners(self, bed: TestBed, pair: int) -> dict[str, RunnerClient]:
        """The runners of the interleaved baselines for one process pair.

        A resumed session has measured them before: cached ones are used, and those that fail to run are skipped again.
        """
        if not self.started:
            self._kept = self._valid(baseline_cache.decode(self._opened.cached, self._opened.further_baselines))
            self._find_missing(bed)
            self.started = True
        found = self._pool.baselines(bed, self.interleaved, pair)
        if pair == 0 and self._workloads == 1:
            self._pool.start_next_baselines(self._opened.baseline)
        return found

    def over_all(self, ratios: Mapping[str, Interval]) -> dict[str, Interval]:
        """These speedups over the interleaved baselines and, via the ranking one, those over the others."""
        ranking = self._opened.baseline
        others = {**{name: kept.measurement for name, kept in self._kept.items()}, **self._measured_once}
        return {**ratios, **{n: baseline_cache.chained_speedup(ratios[ranking], m.speedup[ranking]) for n, m in others.items()}}

    def dated(self, names: Iterable[str]) -> list[str]:
        """The dates of the cached ones among ``names``."""
        return [f"{name} {kept.condition}" for name, kept in self._kept.items() if name in names]

    def measure(self, bed: TestBed, report: MeasurementReport, cached: bytes, say: Say) -> BaselineResults:
        """Measure the ranking baseline and those that are not ``cached``; all of them where the ranking one has drifted.

        Baselines that fail to run are skipped; a note says why.
        """
        opened = self._opened
        kept = baseline_cache.decode(cached, opened.further_baselines)
        had = bool(kept)
        notes: list[str] = []
        self._measured_once = {}
        self._kept = self._valid(kept)
        known = f" ({', '.join(self._kept)} cached)" if self._kept else ""
        also = f"; also {', '.join(opened.further_baselines)}" if opened.further_baselines else ""
        say(f"measuring {opened.baseline} against itself{also}{known}")
        found = self._measure_now(bed, report)
        gone = [
            name
            for name, one in kept.items()
            if baseline_cache.has_drifted(one, found[opened.baseline].time_us, self.claimable)
        ]
        kept = {name: one for name, one in kept.items() if name not in gone}
        if any(name in self._kept for name in gone):
            notes.append(self._drift_note(gone, found[opened.baseline]))
            say(notes[-1])
            self._kept = {name: one for name, one in self._kept.items() if name not in gone}
            found = self._measure_now(bed, report)
        self._add_found(kept, found)
        self.started = True
        if self._disturbed:
            notes.append(
                f"every process pair of {opened.baseline} against itself was disturbed by CPU contention: no kernel can be "
                "corroborated while other programs use the cores"
            )
            say(notes[-1])
        self._measured_once = {
            name: one for name, one in found.items() if name.startswith(_COMPILED) and name != opened.baseline
        }
        measured = {**found, **{name: one.as_measurement() for name, one in self._kept.items()}}
        to_cache = baseline_cache.encode(kept) if kept or had else b""
        return BaselineResults(measured, (*notes, *self._missing.values()), to_cache)

    def _valid(self, kept: Mapping[str, baseline_cache.Kept]) -> dict[str, baseline_cache.Kept]:
        return {name: kept[name] for name in self._opened.further_baselines if name in kept and not self._opened.fresh}

    def _unkept(self) -> tuple[str, ...]:
        names = dict.fromkeys((self._opened.baseline, *self._opened.further_baselines))
        return tuple(name for name in names if name not in self._kept and name not in self._missing)

    def _add_found(self, kept: dict[str, baseline_cache.Kept], found: Mapping[str, Measurement]) -> None:
        """Add what was measured to the baselines to cache."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        ranking = self._opened.baseline
        for name, one in found.items():
            if name != ranking and self.claimable <= baseline_cache.QUIET:
                kept[name] = baseline_cache.Kept(one, found[ranking].time_us, self.claimable, date)

    def _drift_note(self, gone: Sequence[str], now: Measurement) -> str:
        one = next(self._kept[name] for name in gone if name in self._kept)
        drift = f"{self._opened.baseline} takes {now.time_us.value:.4g} µs now, and took {one.ranking_us.value:.4g} µs then"
        names = ", ".join(name for name in gone if name in self._kept)
        return f"cached baselines measured again ({names}): {drift} ({one.condition})"

    def _measure_now(self, bed: TestBed, report: MeasurementReport) -> dict[str, Measurement]:
        ranking = self._opened.baseline
        self._find_missing(bed)
        pairs = self._pairs(bed)
        self._disturbed = not any(pair.calm for pair in pairs)
        self.same = stats.ratio_interval(log_ratios(pairs, ranking, _ITSELF))
        condition_lines = conditions.describe([p.conditions for p in pairs])
        found: dict[str, Measurement] = {}
        for name in self._unkept():
            ratio = Interval(1.0, 1.0, 1.0)
            if name != ranking:
                ratio = stats.ratio_interval(log_ratios(pairs, ranking, name), self.claimable)
            times = [t for p in pairs for t in p.times[name]]
            found[name] = report.of_times(times, "precise", len(pairs), {ranking: ratio}, lines=condition_lines)
        return found

    def _find_missing(self, bed: TestBed) -> None:
        """Start the baselines after the ranking one, and keep the reason for each that fails to run."""
        self._missing = {}
        missing: dict[str, str] = {}
        for name in self._unkept()[1:]:
            runner = self._pool.baselines(bed, (name,), 0)[name]
            try:
                runner.stand_by()
            except (ProblemError, TrustedProcessLost) as error:
                reason = str(error).removeprefix("the baseline cannot be measured: ")
                missing[name] = f"baseline {name} skipped: {reason}"
        self._missing = missing

    def start_ahead(self, contracts: Mapping[str, str]) -> None:
        """Start what ``measure`` and then a kernel of this contract need, with nothing loaded, and do not wait.

        These are processes of the ranking baseline, and null runners.
        """
        if self._device.kind == "cuda" and self._workloads == 1 and not self.started:
            self._pool.start_baselines(self._opened.baseline, LEAST_SAME_PAIRS + 1, checking=True)
            self._pool.start_null_runners(contracts)

    def _pairs(self, bed: TestBed) -> list[PairTimes]:
        """Each baseline interleaved with the ranking one, and each process of the ranking one with the next one.

        There are ``SAME_PAIRS`` of them, or fewer if those show no difference (``stopping.is_same``).

        Its processes are a chain: n pairs take n + 1 of them. One that is slow counts once on either side, so the mean of the
        pairs differs less from 1 than that of pairs without a process in common, and their spread is larger. The effect that
        is claimable from them comes out the same (``benchmarks/interval_coverage.py``). Nothing is claimed of a baseline, so
        there are no null kernel and no audits.
        """
        ranking = self._opened.baseline
        pairs: list[PairTimes] = []
        together = 0
        if self._device.kind == "cuda":  # contexts are created, and modules loaded, in parallel
            self._pool.start_baselines(ranking, LEAST_SAME_PAIRS + 1)
            together = LEAST_SAME_PAIRS if self._pool.loads_baselines_together else 0
            for index in range(together):
                self._runners_of(bed, index)
        for index in range(SAME_PAIRS):
            others, itself = self._runners_of(bed, index)
            self._pool.stand_by()
            samples = shared_samples(samples_for(pairs, ranking), self._workloads)
            contest = Contestants({}, {**others, _ITSELF: itself}, {})
            pairs.append(run_pair(bed, contest, samples, self._setup, CheckTally()))
            if index + 1 >= together:
                self._pool.end_pair((ranking, index + 1))
            if self._is_same(pairs):
                break
        self._pool.keep_for_screen(ranking, len(pairs))
        return pairs

    def _is_same(self, pairs: Sequence[PairTimes]) -> bool:
        ranking = self._opened.baseline
        others = [log_ratios(pairs, ranking, name) for name in self._unkept() if name != ranking]
        return is_same(log_ratios(pairs, ranking, _ITSELF), others, self._device.kind)

    def _runners_of(self, bed: TestBed, pair: int) -> tuple[dict[str, RunnerClient], RunnerClient]:
        """The runners of all baselines in one pair, and the ranking one's in the next. Started at first use."""
        ranking = self._opened.baseline
        itself = self._pool.baselines(bed, (ranking,), pair + 1)[ranking]
        return self._pool.baselines(bed, self._unkept(), pair), itself
