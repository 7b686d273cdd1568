"""The judge: owns seeds, inputs, expected outputs and the verdict for one problem, workload and device. Imports torch.

It never runs a candidate's code. Kernels run in runners forked from a sandboxed host. Baselines run in runners of another host:
no candidate can reach an expected value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import torch

from engine.domain import stats
from engine.domain.errors import DeviceError, SandboxError
from engine.domain.model import FailureKind, Interval, Measurement, Verification, Workload
from engine.domain.preparation import Peaks, Preparation
from engine.problem.reference import Reference
from engine.sandbox.bubblewrap import bubblewrap_reason, filter_reason
from engine.trial.judge import conditions, devices, plausibility, roofline, stopping
from engine.trial.judge.baselines import Baselines
from engine.trial.judge.calibration import calibrate
from engine.trial.judge.contention import ContentionMonitor
from engine.trial.judge.correctness_check import describe_check
from engine.trial.judge.interleaving import HOT, CacheFlush, CheckTally, Contestants, PairSetup, Probe, judged_call, run_pair
from engine.trial.judge.measurement import MeasurementReport
from engine.trial.judge.perturbations import OWN
from engine.trial.judge.process_pool import LOAD_S, ProcessPool
from engine.trial.judge.runner_client import RunnerClient, TrialFailed, TrustedProcessLost, blaming
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing import KERNEL, PairTimes, log_ratios, raw, samples_for
from engine.trial.protocol import OTHER, Candidate, MeasureReply, OpenRequest, PrepareReply, VerifyReply

Say = Callable[[str], None]
Reply = TypeVar("Reply")

_OWN_TRIALS = 3
_HOLDOUT_TRIALS = 2
_SCREEN_SAMPLES = 6
"""With the warm-up, one burst over eight slots."""
_JITTER_LIMIT = 1e-2
_FREE_SHARE = 0.1
"""A kernel is blamed for running out of memory if at least this share of the device's memory is free without it."""
_SCREEN_RETRIES = 2
"""Repetitions of a screen that raises doubts."""


class Judge:
    """One problem on trial. Created for an ``OpenRequest``. Raises ProblemError or DeviceError."""

    def __init__(self, opened: OpenRequest) -> None:
        self._opened = opened
        self.device = devices.describe(opened.device)
        if opened.device == "cpu":
            torch.set_num_threads(self.device.units)
        self.reference = Reference(opened.problem, opened.workload, opened.device)
        self.signature = self.reference.signature()
        self.holdouts = [Reference(opened.problem, w, opened.device) for w in opened.holdouts]
        self.sandbox_reason = bubblewrap_reason()
        self.confined = self.sandbox_reason is None
        self._pool = ProcessPool(opened.problem, self.device, cold=opened.cold, confined=self.confined)
        self._setup = PairSetup(
            CacheFlush(opened.device if opened.cold else HOT, self.device.cache_bytes),
            ContentionMonitor(opened.device),
            random.SystemRandom(),
            Probe(opened.device),
            holds=self.device.kind == "cuda",
            monitor=conditions.monitor_for(self.device, devices.bus_id),
        )
        self._bounds = stopping.PAIRS[self.device.kind]
        self._bed: TestBed | None = None
        self._holdout_beds: dict[str, TestBed] = {}
        self._peaks = opened.peaks
        self._processes_to_end = ExitStack()
        self._screened: tuple[Candidate, PairTimes] | None = None
        self._baselines = Baselines(opened, self.device, self._pool, self._setup)
        self._report = MeasurementReport(self.signature, self.device, self.peaks, opened.cold, self.confined)

    def close(self) -> None:
        """End every process of the trial."""
        self._pool.close()

    def retry(self, act: Callable[[], Reply], *, trying: bool = False) -> Reply:
        """``act``, repeated with new processes if a trusted process was lost: a kernel is not blamed for a baseline's crash.

        With ``trying`` (``act`` runs a kernel), the kernel is rejected if memory runs out twice and is free without it. Raises
        what ``act`` raises.
        """
        try:
            return act()
        except TrustedProcessLost:
            self._pool.restart()
            return act()
        except (DeviceError, torch.OutOfMemoryError) as error:
            if not (trying and _is_out_of_memory(error)):
                raise
        self._make_room()
        try:
            return act()
        except (DeviceError, torch.OutOfMemoryError) as error:
            self._make_room()
            if not _is_out_of_memory(error) or not self._has_room():
                raise
        raise TrialFailed(FailureKind.REJECTED, "the device ran out of memory during its trial and has enough without it")

    def _make_room(self) -> None:
        self._pool.restart()
        torch.cuda.empty_cache()

    def _has_room(self) -> bool:
        if self.device.kind == "cpu":
            return False
        free, total = torch.cuda.mem_get_info(self.device.index)
        return free > _FREE_SHARE * total

    # preparation

    def prepare(self, say: Say, *, measure: bool = True) -> PrepareReply:
        """Calibrate the correctness check, test it with the trivial models, measure baselines and device ceilings."""
        self._pool.launch()
        say("calibrating the correctness check against float64")
        bed = self.bed()
        check = describe_check(self.reference, bed.calibration)
        self._pool.await_hosts()
        say("measuring the device's peak bandwidth and arithmetic rates")
        self._peaks = None
        ceilings = self.peaks()
        least = roofline.floor(self.signature, ceilings)
        unsafe = filter_reason() if self.confined else f"no sandbox: {self.sandbox_reason}; only resource limits apply"
        notes = (unsafe,) if unsafe else ()
        measured: dict[str, Measurement] = {}
        same = Interval(1.0, 1.0, 1.0)
        pairs: list[PairTimes] = []
        if measure:
            results = self._baselines.measure(bed, self._report, say)
            pairs, measured, notes = results.pairs, results.measured, (*notes, *results.notes)
            same = self._baselines.same or same
            for reference in self.holdouts:
                self._holdout_bed(reference.workload)
            self._pool.null_runner(bed, "host")
        preparation = Preparation(
            self.signature, check, measured, same, least.floor_us, least.bound, ceilings, least.bytes_moved,
            "bubblewrap" if self.confined else "limits", notes,
        )  # fmt: skip
        return PrepareReply(preparation, raw(pairs))

    def bed(self) -> TestBed:
        """The workload's test bed, calibrated at first use."""
        if self._bed is None:
            self._bed = TestBed(self.reference, calibrate(self.reference, self._opened.tolerance), self.device)
        return self._bed

    def reference_for(self, workload: Workload) -> Reference:
        """The reference on the workload or on one of its hold-out shapes."""
        return next((r for r in self.holdouts if r.workload == workload), self.reference)

    def peaks(self) -> Peaks:
        """The device's ceilings."""
        if self._peaks is None:
            self._peaks = roofline.peaks(self.device, Path(self._opened.cache))
        return self._peaks

    # verdicts

    def verify(self, candidate: Candidate, say: Say) -> VerifyReply:
        """Check fresh inputs of every distribution, determinism and hold-out shapes, and take a quick interleaved screen.

        One process makes all these calls; they are the same message. Raises TrialFailed.
        """
        bed = self.bed()
        tally, own = CheckTally(), CheckTally()
        self._pool.discard_prestarted()
        with self._pool.kernel() as runner:
            bed.new_model()
            self._pool.prestart(self._bounds[0] - 1)
            self._pool.load_kernel(runner, bed, candidate, candidate.built)
            runner.wait_ready(LOAD_S)
            self._pool.stand_by()
            for index in range(_OWN_TRIALS):
                bed.refill(index % bed.slots)
                judged_call(bed, runner, index % bed.slots, own)
            jitter = self._determinism(bed, runner, (_OWN_TRIALS - 1) % bed.slots, own)
            for distribution in bed.calibration.distributions:
                if distribution != OWN:
                    bed.refill(0, distribution)
                    judged_call(bed, runner, 0, tally, distribution)
            say("quick timing")
            null_runner = self._pool.null_runner(bed, candidate.contract)
            contest = Contestants({KERNEL: runner}, self._baselines.runners(bed, 0), null_runner, {KERNEL: candidate.contract})
            self._pool.stand_by()
            pair = self._screen(bed, contest, own)
            holdouts = self._verify_holdouts(runner, candidate, say)
        self._screened = (candidate, pair)
        interleaved = {n: stats.block_interval(pair.claims(n), pair.claims(KERNEL)) for n in self._baselines.interleaved}
        ratios = self._baselines.over_all(interleaved)
        screen = self._measurement("screen", [pair], ratios)
        verification = self._verification(bed, own, own.trials + tally.trials, holdouts, jitter)
        evidence = (*plausibility.verification_doubts(verification), *self._report.evidence([pair]))
        return VerifyReply(verification, screen, raw([pair]), evidence)

    def _screen(self, bed: TestBed, contest: Contestants, tally: CheckTally) -> PairTimes:
        """A few samples. If they raise doubts or were disturbed, they are replaced by new ones."""
        pair = run_pair(bed, contest, _SCREEN_SAMPLES, self._setup, tally)
        for _ in range(_SCREEN_RETRIES):
            if pair.calm and not self._report.doubts([pair]):
                break
            pair = run_pair(bed, contest, max(_SCREEN_SAMPLES, samples_for([pair], KERNEL)), self._setup, tally)
        return pair

    def _verification(self, bed: TestBed, own: CheckTally, trials: int, holdouts: str, jitter: float) -> Verification:
        policy = bed.calibration.policy
        limit = policy.limit(OWN)
        return Verification(
            policy.name, trials, own.errors.rel_fro, limit.rel_fro, own.errors.max_abs, own.errors.max_scaled,
            limit.max_scaled, policy.label(own.errors, OWN), holdouts, jitter,
        )  # fmt: skip

    def _determinism(self, bed: TestBed, runner: RunnerClient, slot: int, tally: CheckTally) -> float:
        """Call again on the same inputs. Both outputs must be right; returns their largest difference in units of scale."""
        earlier = bed.copy_outputs(slot)
        judged_call(bed, runner, slot, tally)
        jitter = bed.jitter(slot, earlier)
        if jitter > max(_JITTER_LIMIT, 2 * bed.calibration.policy.limit(OWN).max_scaled):
            raise TrialFailed(FailureKind.UNSTABLE, f"two calls on the same inputs differ by {jitter:.1e} of scale: data race?")
        return jitter

    def _verify_holdouts(self, runner: RunnerClient, candidate: Candidate, say: Say) -> str:
        if not candidate.holdouts and not candidate.specialised:
            return "none"
        for built in candidate.holdouts:
            say(f"hold-out shape {_shape_text(built.workload)}")
            bed = self._holdout_bed(built.workload)
            bed.new_model()
            tally = CheckTally()
            try:
                self._pool.load_kernel(runner, bed, candidate, built)
                runner.wait_ready(LOAD_S)
                for index in range(_HOLDOUT_TRIALS):
                    bed.refill(index % bed.slots)
                    judged_call(bed, runner, index % bed.slots, tally)
            except TrialFailed as error:
                reason = f"on hold-out shape {_shape_text(built.workload)}: {error.failure.reason}"
                raise TrialFailed(error.failure.kind, reason, error.log) from error
        done = f"{len(candidate.holdouts)}/{len(candidate.holdouts) + candidate.specialised}"
        return f"{done}, specialised" if candidate.specialised else done

    def _holdout_bed(self, workload: Workload) -> TestBed:
        key = _shape_text(workload)
        if key not in self._holdout_beds:
            reference = next(r for r in self.holdouts if _shape_text(r.workload) == key)
            calibration = calibrate(reference, self._opened.tolerance, self.bed().calibration)
            self._holdout_beds[key] = TestBed(reference, calibration, self.device)
        return self._holdout_beds[key]

    def measure(self, candidate: Candidate, say: Say) -> MeasureReply:
        """Process pairs until the interval is narrow enough; the kernel's screen is the first pair.

        Raises TrialFailed if a timed call is wrong.
        """
        pairs = self._pairs(candidate, say)
        against = self._baselines
        interleaved = {n: stats.ratio_interval(log_ratios(pairs, n, KERNEL), against.claimable) for n in against.interleaved}
        ratios = against.over_all(interleaved)
        return MeasureReply(self._measurement("precise", pairs, ratios), raw(pairs), self._report.evidence(pairs))

    def versus(self, candidate: Candidate, other: Candidate, say: Say, effort: int | None = None) -> MeasureReply:
        """The speedup of ``candidate`` over ``other``, both checked in every call, in fresh process pairs.

        Both get the same inputs, one right after the other, in A-B-B-A order (``interleaving.CallOrder``). Earlier measurements
        are not used. With ``effort`` it is a race for the lead: few pairs, twice as many per step, until the result is clear.
        """
        pairs = self._pairs(candidate, say, other, stopping.race_bounds(effort))
        ratio = stats.ratio_interval(log_ratios(pairs, OTHER, KERNEL), self._baselines.claimable)
        return MeasureReply(self._measurement("precise", pairs, {OTHER: ratio}), raw(pairs))

    def _pairs(
        self, candidate: Candidate, say: Say, other: Candidate | None = None, bounds: tuple[int, int] | None = None
    ) -> list[PairTimes]:
        least, most = bounds or self._bounds
        bed = self.bed()
        judged = {KERNEL: candidate} if other is None else {KERNEL: candidate, OTHER: other}
        screened, pair = self._screened if self._screened is not None else (None, None)
        pairs = [pair] if pair is not None and screened == candidate and other is None else []
        if not pairs:
            self._pool.discard_prestarted()
        null_runner = self._pool.null_runner(bed, candidate.contract)
        contracts = {name: one.contract for name, one in judged.items()}
        with ExitStack() as stack:
            waiting: list[dict[str, RunnerClient]] = []
            while len(pairs) < most:
                if not waiting:
                    if bounds is not None:
                        stack.close()  # a long race must not accumulate processes on the device
                    waiting = self._start_runners(stack, bed, judged, max(min(least, self._bounds[0]) - len(pairs), 2))
                runners = waiting.pop(0)
                baselines = {} if other is not None else self._baselines.runners(bed, len(pairs))
                self._pool.stand_by()
                say(f"process pair {len(pairs) + 1}")
                contest = Contestants(runners, baselines, null_runner, contracts)
                pairs.append(run_pair(bed, contest, samples_for(pairs, KERNEL), self._setup, CheckTally()))
                against = OTHER if other else self._opened.baseline
                if len(pairs) >= least and self._is_settled(pairs, against, raced=bounds is not None):
                    break
            self._processes_to_end = stack.pop_all()
        return pairs

    def tidy(self) -> None:
        """Work deferred until after the verdict: end the measured processes, start those of the next kernel."""
        try:
            self._processes_to_end.close()
            if self._bed is not None:
                self._pool.discard_prestarted()
                self._pool.prestart(self._bounds[0])
        except SandboxError:
            self._pool.restart()

    def _start_runners(
        self, stack: ExitStack, bed: TestBed, judged: Mapping[str, Candidate], count: int
    ) -> list[dict[str, RunnerClient]]:
        """Fresh, loaded runners of the judged kernels for ``count`` pairs, started in parallel."""
        bed.new_model()
        rows = [{name: stack.enter_context(self._pool.kernel(rival=name == OTHER)) for name in judged} for _ in range(count)]
        for row in rows:
            for name, runner in row.items():
                with blaming(name):
                    self._pool.load_kernel(runner, bed, judged[name], judged[name].built)
        for row in rows:
            for name, runner in row.items():
                with blaming(name):
                    runner.wait_ready(LOAD_S)
        return rows

    def _is_settled(self, pairs: Sequence[PairTimes], against: str, *, raced: bool) -> bool:
        """Whether to stop. A doubt may be noise: like a wide interval, it calls for more pairs."""
        kind, claimable = self.device.kind, self._baselines.claimable
        return not self._report.doubts(pairs) and stopping.is_settled(pairs, against, kind, claimable, raced=raced)

    def _measurement(self, depth: str, pairs: Sequence[PairTimes], ratios: Mapping[str, Interval]) -> Measurement:
        return self._report.of_kernel(depth, pairs, ratios, self._baselines.dated(ratios))


def _is_out_of_memory(error: Exception) -> bool:
    return "out of memory" in str(error).lower()


def _shape_text(workload: Workload) -> str:
    return ", ".join(f"{k}={v:g}" for k, v in workload.settings.items())
