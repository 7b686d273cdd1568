"""The judge: owns seeds, inputs, expected outputs and the verdict for one problem, suite and device. Imports torch.

It never runs a candidate's code. Kernels run in runners forked from a sandboxed host. Baselines run in runners of another host:
no candidate can reach an expected value. One workload is a suite of one. A process pair serves all workloads of the suite, one
after the other: their geometric mean is that of each pair, and its interval that over pairs.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

import torch

from engine.domain import stats, suite
from engine.domain.errors import SandboxError
from engine.domain.memory_plan import MOST_SLOTS, WorkloadMemory
from engine.domain.model import Interval, Measurement, Workload
from engine.domain.preparation import Peaks
from engine.domain.regimes import Regime
from engine.problem.reference import Reference
from engine.trial.judge import devices
from engine.trial.judge.caches import peaks_cache
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.loaded_ahead import load_perturbations
from engine.trial.judge.interleaving import HOT, CacheFlush, Contestants, PairSetup, Probe
from engine.trial.judge.judge_tools import JudgeTools
from engine.trial.judge.memory_room import needs_of
from engine.trial.judge.module_weights import ModuleWeights
from engine.trial.judge.process_pairs import ProcessPairs
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.retrying import retried
from engine.trial.judge.runners.host_client import Host
from engine.trial.judge.sustained_suite import SustainedSuite
from engine.trial.judge.timing import conditions, roofline, stopping
from engine.trial.judge.timing.contention import ContentionMonitor, OtherWork
from engine.trial.judge.timing.measurement import by_workload, doubted_if_unlike
from engine.trial.judge.timing.pair_times import KERNEL, PairTimes, raw
from engine.trial.judge.workload_trial import WorkloadTrial
from engine.trial.protocol import (
    OTHER,
    Candidate,
    CheckReply,
    MeasureReply,
    OpenRequest,
    PreparedWorkload,
    PrepareReply,
    PrepareRequest,
    SustainReply,
    VerifyReply,
    WorkloadSignatures,
)

Say = Callable[[str], None]
Reply = TypeVar("Reply")

_ROOM_SHARE = 4
"""The operands of a suite's workloads are kept together while they take less than this part of the device's memory."""


class Judge:
    """One problem on trial. Created for an ``OpenRequest``. Raises ProblemError or DeviceError."""

    def __init__(
        self, opened: OpenRequest, supervisor: socket.socket | None = None, say: Say = lambda _: None,
        hosts: Sequence[Host] = (),
    ) -> None:  # fmt: skip
        """``supervisor`` starts the hosts if this process runs in the trial's sandbox; ``hosts`` were started before."""
        self._opened = opened
        self.device = devices.describe(opened.device)
        self._weights = ModuleWeights()
        self._pool = ProcessPool(
            opened.problem, self.device, cold=opened.cold, confined=opened.confined, supervisor=supervisor, hosts=hosts,
            keeps_weights=self._weights.are_own,
        )  # fmt: skip
        each = opened.each()
        if opened.prepares:
            self._pool.launch()  # the hosts import torch while the problem is loaded
            load_perturbations(self.device)
        if opened.device == "cpu":
            torch.set_num_threads(self.device.units)
        self._bounds = stopping.PAIRS[self.device.kind]
        self._peaks = opened.peaks
        self._measured_peaks_again = False
        self._screened: tuple[Candidate, list[PairTimes]] | None = None
        self._checks_next = False
        """Whether a kernel is checked before the baselines are measured: in one process."""
        setup = PairSetup(
            CacheFlush(opened.device if opened.cold else HOT, self.device.cache_bytes),
            ContentionMonitor(opened.device),
            OtherWork(opened.device, alone=supervisor is not None),
            random.SystemRandom(),
            Probe(opened.device),
            holds=self.device.kind == "cuda",
            monitor=conditions.monitor_for(self.device, devices.bus_id, sees_others=supervisor is None),
        )
        tools = JudgeTools(
            self.device, self._pool, setup, self._weights, self.peaks, self._measure_peaks_again, len(each), self._bounds[1]
        )
        try:
            self._trials: list[WorkloadTrial] = []
            for place, one in enumerate(each):
                say(suite.step(place, one.workload.name, len(each)) + "reading the problem")
                self._trials.append(WorkloadTrial(one, tools, say))
            self._keeps_beds = self._all_fit()
            self._pool.keeps_loads = len(each) > 1 and self._keeps_beds
        except BaseException:
            self._pool.close()
            raise
        self._process_pairs = ProcessPairs(self._trials, self._pool, self._weights, self._bounds, self._turn)
        self._sustained = SustainedSuite(self._trials, opened.baseline, self._process_pairs.take, self._weights)

    @property
    def reference(self) -> Reference:
        """The reference on the first workload."""
        return self._trials[0].reference

    @property
    def references(self) -> tuple[Reference, ...]:
        """The reference on each workload."""
        return tuple(trial.reference for trial in self._trials)

    @property
    def signatures(self) -> tuple[WorkloadSignatures, ...]:
        """What a kernel is called with on each workload."""
        return tuple(WorkloadSignatures(t.signature, tuple(r.signature() for r in t.holdouts)) for t in self._trials)

    def close(self) -> None:
        """End every process of the trial."""
        self._pool.close()

    def retry(self, act: Callable[[], Reply], *, trying: bool = False) -> Reply:
        """``act``, repeated where a lost process or a lack of memory ended it (``retried``)."""
        return retried(act, self._pool, self, self.device, trying=trying)

    def tighten(self, *, fully: bool) -> bool:
        """Go over to a more frugal memory plan on every workload that has one; false if none has."""
        tighter = [trial.beds.tighten(fully=fully) for trial in self._trials]
        return any(tighter)

    def restore(self) -> None:
        """Go back to the memory plans before the last ``tighten``."""
        for trial in self._trials:
            trial.beds.restore()

    # preparation

    def prepare(self, request: PrepareRequest, say: Say) -> PrepareReply:
        """Calibrate the correctness check, test it with the trivial models, measure baselines that are not cached."""
        self._peaks, self._checks_next = request.peaks, not request.measure
        self._pool.launch()
        found: dict[str, PreparedWorkload] = {}
        for place, trial in enumerate(self._trials):
            if trial.name in request.known:
                continue
            with self._turn(trial):
                tell = self._telling(place, say)
                trial.calibrate(tell, self._start_early if self._checks_next else None)
                self._pool.await_hosts()
                cached = request.cached.get(trial.name, b"")
                found[trial.name] = trial.prepare(request.peaks, cached, tell, measure=request.measure)
        return PrepareReply(found)

    def _start_early(self) -> None:
        """Start processes of the kernel that is checked next; if its contract is known, those of its measurement as well."""
        known = self._opened.contract
        self._pool.start_early(known, self._further_pairs if known is not None else 0)

    @property
    def _further_pairs(self) -> int:
        """Pairs of a measurement after the screen, at least, whose processes start ahead: on a GPU, for their contexts."""
        return self._bounds[0] - 1 if self.device.kind == "cuda" else 0

    def _telling(self, place: int, say: Say) -> Say:
        """``say`` for the workload at this place of the suite."""
        step = suite.step(place, self._trials[place].name, len(self._trials))
        return lambda words: say(step + words)

    @contextmanager
    def _turn(self, trial: WorkloadTrial, *, first: bool = False) -> Iterator[None]:
        """Work on one workload: failures name it in a suite, and its memory is let go where all do not fit together.

        ``first``: the kernel has not been tried on the workloads after it.
        """
        try:
            yield
        except TrialFailed as failed:
            if len(self._trials) > 1:
                names = [one.name for one in self._trials]
                reason = f"on workload {trial.name}: {failed.failure.reason}"
                failed.failure = replace(
                    failed.failure, reason=reason, failed_on=suite.failed_workload(names, trial.name, first=first)
                )
            raise
        if not self._keeps_beds:
            trial.beds.drop()

    def _all_fit(self) -> bool:
        """Whether the operands of all workloads are kept at a time."""
        needed = sum(needs_of(trial.reference).operands * MOST_SLOTS for trial in self._trials) if len(self._trials) > 1 else 0
        return needed * _ROOM_SHARE < self.device.memory_bytes

    def memory_plans(self) -> tuple[WorkloadMemory, ...]:
        """The memory plans of all workloads, the opened one's first."""
        return (self._trials[0].beds.memory, *self._trials[0].beds.other_workloads())

    def reference_for(self, workload: Workload) -> Reference:
        """The reference on one of the workloads or of their hold-out shapes."""
        every = (r for trial in self._trials for r in (trial.reference, *trial.holdouts))
        return next((r for r in every if r.workload == workload), self.reference)

    def _measure_peaks_again(self) -> None:
        """Once, before a time is called impossible: ceilings measured beside other work are too low."""
        if not self._measured_peaks_again:
            self._measured_peaks_again = True
            self._peaks = peaks_cache.better(self.peaks(), roofline.measure_peaks(self.device))

    def peaks(self) -> Peaks:
        """The device's ceilings."""
        if self._peaks is None:
            self._peaks = roofline.measure_peaks(self.device)
        return self._peaks

    # verdicts

    def verify(self, candidate: Candidate, say: Say) -> VerifyReply:
        """Check fresh inputs of every distribution, determinism and hold-out shapes, and take a quick interleaved screen.

        One process makes all these calls; they are the same message. Raises TrialFailed.
        """
        self._checks_next = False
        self._trials[0].bed()
        checked = self._pool.checked(candidate)
        if checked is None:
            self._pool.discard_prestarted()  # else they were started for this kernel
        found = {}
        with checked or self._pool.kernel(candidate.contract) as runner:
            for place, (trial, built) in enumerate(zip(self._trials, candidate.each(), strict=True)):
                with self._turn(trial, first=True):
                    tell = self._telling(place, say)
                    if len(self._trials) > 1:
                        tell(f"checking {candidate.name}")
                    found[trial.name] = trial.verify(runner, built, tell, self._bounds[0] - 1)
        self._screened = (candidate, [one.pair for one in found.values()])
        return VerifyReply(
            suite.verification({name: one.verification for name, one in found.items()}),
            suite.measurement({name: one.screen for name, one in found.items()}),
            self._raw([[one.pair] for one in found.values()]),
            self._evidence([one.evidence for one in found.values()]),
        )

    def check(self, candidate: Candidate, say: Say) -> CheckReply:
        """The correctness checks of ``verify``, which need neither baselines nor ceilings. Raises TrialFailed.

        The kernel's process is kept for ``verify``, where there is memory for it and it has no hold-out shape loaded.
        """
        self._checks_next = False
        self._pool.launch()
        self._trials[0].bed()
        self._pool.discard_prestarted()
        with ExitStack() as stack:
            runner = stack.enter_context(self._pool.kernel(candidate.contract))
            for trial, built in zip(self._trials, candidate.each(), strict=True):
                with self._turn(trial, first=True):
                    trial.check(runner, built, say, self._further_pairs)
            if len(self._trials) == 1 and runner.loaded_for is self._trials[0].bed():
                stack.pop_all()
                self._pool.keep_checked(candidate, runner)
        return CheckReply()

    def measure(self, candidate: Candidate, say: Say) -> MeasureReply:
        """Process pairs until the interval is narrow enough; the kernel's screen is the first pair.

        Raises TrialFailed if a timed call is wrong.
        """
        pairs, notes = self._pairs(candidate, say)
        parts: dict[str, Measurement] = {}
        for trial, own in zip(self._trials, pairs, strict=True):
            interleaved = {name: trial.ratio(own, name) for name in trial.baselines.interleaved}
            found = trial.measurement("precise", own, trial.baselines.over_all(interleaved), notes)
            parts[trial.name] = self._weights.marked(found, candidate)
        common = [n for n in self._trials[0].baselines.interleaved if all(n in t.baselines.interleaved for t in self._trials)]
        whole = suite.measurement(parts, {name: self._mean_ratio(pairs, name) for name in common})
        whole = doubted_if_unlike(whole, stopping.mean_logs(self._logs(pairs, self._opened.baseline)))
        evidence = self._evidence([t.report.evidence(own) for t, own in zip(self._trials, pairs, strict=True)])
        return MeasureReply(whole, self._raw(pairs), evidence)

    def sustain(self, candidate: Candidate, say: Say) -> SustainReply:
        """Process pairs in the sustained regime. Raises TrialFailed."""
        if reason := self._cannot_repeat():
            return SustainReply(None, note=reason)
        return self._sustained.measure(candidate, say)

    def versus(
        self, candidate: Candidate, other: Candidate, say: Say, effort: int | None = None, regime: Regime = Regime.SINGLE
    ) -> MeasureReply:
        """The speedup of ``candidate`` over ``other``, both checked, in fresh process pairs.

        Both get the same inputs, in A-B-B-A order: call by call (``interleaving.CallOrder``), or turn by turn in the sustained
        regime. Earlier measurements are not used. With ``effort`` it is a race for the lead: few pairs, twice as many per step,
        until the result is clear.
        """
        bounds = stopping.race_bounds(effort)
        if regime is Regime.SUSTAINED and not self._cannot_repeat():
            return self._sustained.versus(candidate, other, say, bounds)
        pairs, notes = self._pairs(candidate, say, other, bounds)
        parts = {
            trial.name: self._weights.marked(
                trial.measurement("precise", own, {OTHER: trial.ratio(own, OTHER)}, notes), candidate, other
            )
            for trial, own in zip(self._trials, pairs, strict=True)
        }
        return MeasureReply(suite.measurement(parts, {OTHER: self._mean_ratio(pairs, OTHER)}), self._raw(pairs))

    def _cannot_repeat(self) -> str:
        """Why calls cannot follow each other on the same operands; empty if they can."""
        if self.reference.side_effects.changes_state:
            return "the reference changes its own state: no two calls are alike"
        return "the reference changes its inputs: no two calls are alike" if self.reference.side_effects.changed_inputs else ""

    def _logs(self, pairs: Sequence[Sequence[PairTimes]], against: str) -> list[list[float]]:
        """log(``against`` ÷ kernel) of each process pair, by workload."""
        return [trial.log_ratios(own, against) for trial, own in zip(self._trials, pairs, strict=True)]

    def _claimable(self, pairs: Sequence[Sequence[PairTimes]]) -> float:
        return fmean(trial.claimable(own) for trial, own in zip(self._trials, pairs, strict=True))

    def _mean_ratio(self, pairs: Sequence[Sequence[PairTimes]], against: str) -> Interval:
        return stats.ratio_interval(stopping.mean_logs(self._logs(pairs, against)), self._claimable(pairs))

    def _evidence(self, found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        return by_workload([trial.name for trial in self._trials], found)

    def _raw(self, pairs: Sequence[Sequence[PairTimes]]) -> bytes:
        return raw({trial.name: own for trial, own in zip(self._trials, pairs, strict=True)})

    def _pairs(
        self, candidate: Candidate, say: Say, other: Candidate | None = None, bounds: tuple[int, int] | None = None
    ) -> tuple[list[list[PairTimes]], tuple[str, ...]]:
        """Process pairs of single calls, by workload, and notes on them. The kernel's screen is the first, unless it races."""
        judged = {KERNEL: candidate} if other is None else {KERNEL: candidate, OTHER: other}
        against = OTHER if other else self._opened.baseline
        screened, first = self._screened if self._screened is not None else (None, [])
        reused = screened == candidate and other is None
        pairs: list[list[PairTimes]] = [[pair] for pair in first] if reused else [[] for _ in self._trials]

        notes: list[str] = []
        began = time.monotonic()

        def owed() -> frozenset[int]:
            more = self._owed(pairs, against, raced=bounds is not None)
            note = stopping.cut_short(more, time.monotonic() - began) if bounds is None else ""
            notes.extend(filter(None, [note]))
            return frozenset() if note else more

        def take(trial: WorkloadTrial, contest: Contestants, own: list[PairTimes]) -> PairTimes:
            return trial.run_next_pair(contest, own)

        self._process_pairs.take(judged, say, pairs, take, owed, bounds)
        return pairs, tuple(notes)

    def tidy(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Work deferred until after the verdict: end the measured processes, start those of the next kernel.

        ``is_over``: whether there is none. It is asked once the processes have ended, which takes a moment on a GPU.
        """
        try:
            self._process_pairs.end_processes()
            if self._trials[0].beds.in_use and not is_over():
                if not self._pool.has_checked:  # they were started for it
                    self._pool.discard_prestarted()
                self._pool.prestart(1 if self._checks_next else self._bounds[0] - self._pool.has_checked)
        except SandboxError:
            self._pool.close()

    def _owed(self, pairs: Sequence[Sequence[PairTimes]], against: str, *, raced: bool) -> frozenset[int]:
        """Where another process pair is to be taken."""
        each = enumerate(zip(self._trials, pairs, strict=True))
        doubted = [place for place, (trial, own) in each if trial.report.doubts(own)]
        return stopping.owed(self._logs(pairs, against), doubted, self.device.kind, self._claimable(pairs), raced=raced)
