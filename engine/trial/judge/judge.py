"""The judge: owns seeds, inputs, expected outputs and the verdict for one problem, workload and device. Imports torch.

It never runs a candidate's code. Kernels run in runners forked from a sandboxed host. Baselines run in runners of another host:
no candidate can reach an expected value.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from engine.domain import stats
from engine.domain.errors import SandboxError
from engine.domain.memory_plan import TrialProcesses, WorkloadMemory
from engine.domain.model import FailureKind, Interval, Measurement, Verification, Workload
from engine.domain.preparation import CorrectnessCheck, Peaks, Preparation
from engine.problem.chance_holdout import BY_CHANCE
from engine.problem.reference import Reference
from engine.trial.judge import conditions, devices, plausibility, roofline, stopping
from engine.trial.judge.baselines import Baselines
from engine.trial.judge.constant_weights import ConstantWeights
from engine.trial.judge.contention import ContentionMonitor
from engine.trial.judge.correctness_check import describe_check
from engine.trial.judge.interleaving import HOT, CacheFlush, CheckTally, Contestants, PairSetup, Probe, judged_call, run_pair
from engine.trial.judge.known_calibrations import KnownCalibrations, shape_text
from engine.trial.judge.measurement import MeasurementReport
from engine.trial.judge.memory_room import needs_of
from engine.trial.judge.mismatch_tally import on_holdout
from engine.trial.judge.perturbations import OWN
from engine.trial.judge.process_pool import LOAD_S, ProcessPool
from engine.trial.judge.retrying import retried
from engine.trial.judge.runner_client import RunnerClient, TrialFailed, blaming
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.test_beds import TestBeds
from engine.trial.judge.timing import KERNEL, PairTimes, cost_share, log_ratios, raw, samples_for
from engine.trial.protocol import OTHER, Candidate, CheckReply, MeasureReply, OpenRequest, PrepareReply, VerifyReply

Say = Callable[[str], None]
Reply = TypeVar("Reply")

_OWN_TRIALS = 3
_HOLDOUT_TRIALS = 2
_SCREEN_SAMPLES = 6
"""With the warm-up, one burst over eight slots."""
_JITTER_LIMIT = 1e-2
_SCREEN_RETRIES = 2
"""Repetitions of a screen that raises doubts."""


class Judge:
    """One problem on trial. Created for an ``OpenRequest``. Raises ProblemError or DeviceError."""

    def __init__(self, opened: OpenRequest, supervisor: socket.socket | None = None) -> None:
        """``supervisor`` starts the hosts if this process runs in the trial's sandbox."""
        self._opened = opened
        self.device = devices.describe(opened.device)
        self._pool = ProcessPool(opened.problem, self.device, cold=opened.cold, confined=opened.confined, supervisor=supervisor)
        calibrations = KnownCalibrations(opened.calibrations, opened.tolerance)
        if calibrations.known:
            self._pool.launch()  # a kernel will follow soon: the hosts import torch while the problem is loaded
        if opened.device == "cpu":
            torch.set_num_threads(self.device.units)
        self.reference = Reference(opened.problem, opened.workload, opened.device)
        self.signature = self.reference.signature()
        self.holdouts = [Reference(opened.problem, w, opened.device) for w in opened.holdouts]
        self._setup = PairSetup(
            CacheFlush(opened.device if opened.cold else HOT, self.device.cache_bytes),
            ContentionMonitor(opened.device),
            random.SystemRandom(),
            Probe(opened.device),
            holds=self.device.kind == "cuda",
            monitor=conditions.monitor_for(self.device, devices.bus_id, sees_others=supervisor is None),
        )
        self._bounds = stopping.PAIRS[self.device.kind]
        self._check: CorrectnessCheck | None = None
        self._peaks = opened.peaks
        self._measured_peaks_again = False
        self._processes_to_end = ExitStack()
        self._weights = ConstantWeights()
        self._screened: tuple[Candidate, PairTimes] | None = None
        named = 1 + len(opened.others)
        processes = TrialProcesses(
            named, sum(not n.startswith("compile") for n in opened.others) + 1, self._bounds[1],
            tuple(needs_of(r).operands for r in self.holdouts),
        )  # fmt: skip
        self._beds = TestBeds(opened, self.device, self.reference, self.holdouts, processes, self._pool, calibrations)
        self._baselines = Baselines(opened, self.device, self._pool, self._setup)
        self._report = MeasurementReport(
            self.signature, self.device, self.peaks, self._measure_peaks_again, opened.cold, opened.confined
        )

    def close(self) -> None:
        """End every process of the trial."""
        self._pool.close()

    def retry(self, act: Callable[[], Reply], *, trying: bool = False) -> Reply:
        """``act``, repeated where a lost process or a lack of memory ended it (``retried``)."""
        return retried(act, self._pool, self._beds, self.device, trying=trying)

    # preparation

    def prepare(self, ceilings: Peaks, cached: bytes, say: Say, *, measure: bool = True) -> PrepareReply:
        """Calibrate the correctness check, test it with the trivial models, measure baselines that are not ``cached``."""
        self._peaks = ceilings
        self._pool.launch()
        say("calibrating the correctness check against float64")
        bed = self.bed()
        self._check = self._check or describe_check(self.reference, bed.calibration)
        self._pool.await_hosts()
        least = roofline.floor(self.signature, ceilings)
        notes = (self._beds.note,) if self._beds.note else ()
        to_cache = b""
        measured: dict[str, Measurement] = {}
        same = Interval(1.0, 1.0, 1.0)
        pairs: list[PairTimes] = []
        if measure:
            results = self._baselines.measure(bed, self._report, cached, say)
            pairs, measured, to_cache = results.pairs, results.measured, results.to_cache
            notes = (*notes, *results.notes)
            same = self._baselines.same or same
            self._beds.calibrate_holdouts()
            self._pool.null_runners(bed, {KERNEL: "host"})
        preparation = Preparation(
            self.signature, self._check, measured, same, least.floor_us, least.bound, ceilings, least.bytes_moved, "", notes,
        )  # fmt: skip
        return PrepareReply(preparation, raw(pairs), to_cache, self._beds.calibrations.encode())

    def bed(self) -> TestBed:
        """The workload's test bed, calibrated at first use."""
        return self._beds.main()

    def memory_plans(self) -> tuple[WorkloadMemory, ...]:
        """The memory plans of all workloads, the opened one's first."""
        return (self._beds.memory, *self._beds.others())

    def reference_for(self, workload: Workload) -> Reference:
        """The reference on the workload or on one of its hold-out shapes."""
        return next((r for r in self.holdouts if r.workload == workload), self.reference)

    def _measure_peaks_again(self) -> None:
        """Once, before a time is called impossible: ceilings measured beside other work are too low."""
        if not self._measured_peaks_again:
            self._measured_peaks_again = True
            self._peaks = roofline.better(self.peaks(), roofline.measure_peaks(self.device))

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
        bed = self.bed()
        tally, own = CheckTally(), CheckTally()
        self._pool.discard_prestarted()
        with self._pool.kernel() as runner:
            bed.new_model(varied=self._weights.varied(candidate), scalars=candidate.contract == "module")
            self._pool.prestart(self._bounds[0] - 1)
            self._load(runner, bed, candidate)
            self._pool.stand_by()
            self._weights.settle(bed, runner, candidate, lambda: self._load(runner, bed, candidate))
            jitter = self._check_outputs(bed, runner, own, tally)
            say("quick timing")
            contracts = {KERNEL: candidate.contract}
            contest = Contestants(
                {KERNEL: runner}, self._baselines.runners(bed, 0), self._pool.null_runners(bed, contracts), contracts
            )
            self._pool.stand_by()
            pair = self._screen(bed, contest, own)
            self._pool.end_pair()
            holdouts = self._verify_holdouts(runner, candidate, say)
        self._screened = (candidate, pair)
        interleaved = {n: stats.block_interval(pair.counted(n), pair.counted(KERNEL)) for n in self._baselines.interleaved}
        ratios = self._baselines.over_all(interleaved)
        screen = self._measurement("screen", [pair], ratios)
        told = (*tally.caveats, self._weights.caveat(candidate))
        verification = replace(
            self._verification(bed, own, own.trials + tally.trials, holdouts, jitter),
            caveats=tuple(filter(None, told)),
            format_verdict=own.format_verdict,
            chance=next((shape_text(b.workload) for b in candidate.holdouts if b.workload.name.endswith(BY_CHANCE)), ""),
        )
        evidence = (*plausibility.verification_doubts(verification), *self._report.evidence([pair]))
        return VerifyReply(verification, screen, raw([pair]), evidence)

    def check(self, candidate: Candidate, say: Say) -> CheckReply:
        """The correctness checks of ``verify``, which need neither baselines nor ceilings. Raises TrialFailed."""
        self._pool.launch()
        bed = self.bed()
        self._pool.discard_prestarted()
        with self._pool.kernel() as runner:
            bed.new_model(varied=self._weights.varied(candidate))
            self._load(runner, bed, candidate)
            self._weights.settle(bed, runner, candidate, lambda: self._load(runner, bed, candidate))
            self._check_outputs(bed, runner, CheckTally(), CheckTally())
            self._verify_holdouts(runner, candidate, say)
        return CheckReply()

    def _check_outputs(self, bed: TestBed, runner: RunnerClient, own: CheckTally, perturbed: CheckTally) -> float:
        """Fresh inputs of every distribution; the difference of two calls on the same inputs."""
        for index in range(_OWN_TRIALS):
            bed.refill(index % bed.slots)
            judged_call(bed, runner, index % bed.slots, own)
        jitter = self._determinism(bed, runner, (_OWN_TRIALS - 1) % bed.slots, own)
        own.format_verdict = bed.format_verdict((_OWN_TRIALS - 1) % bed.slots)
        for distribution in bed.calibration.distributions:
            if distribution != OWN:
                bed.refill(0, distribution)
                judged_call(bed, runner, 0, perturbed, distribution)
        return jitter

    def _load(self, runner: RunnerClient, bed: TestBed, candidate: Candidate) -> None:
        self._pool.load_kernel(runner, bed, candidate, candidate.built)
        runner.wait_ready(LOAD_S)

    def _screen(self, bed: TestBed, contest: Contestants, tally: CheckTally) -> PairTimes:
        """A few samples. If they raise doubts or were disturbed, they are replaced by new ones."""
        pair = run_pair(bed, contest, _SCREEN_SAMPLES, self._setup, tally)
        for _ in range(_SCREEN_RETRIES):
            if pair.calm and not self._report.doubts([pair]):
                break
            again = run_pair(bed, contest, max(_SCREEN_SAMPLES, samples_for([pair], KERNEL)), self._setup, tally)
            pair = replace(again, disturbed=pair.disturbed + again.disturbed, taken=pair.taken + again.taken)
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
            say(f"hold-out shape {shape_text(built.workload)}")
            bed = self._beds.holdout(built.workload)
            bed.new_model(varied=self._weights.varied(candidate), scalars=candidate.contract == "module")
            tally = CheckTally()
            try:
                self._pool.load_kernel(runner, bed, candidate, built)
                runner.wait_ready(LOAD_S)
                for index in range(_HOLDOUT_TRIALS):
                    bed.refill(index % bed.slots)
                    judged_call(bed, runner, index % bed.slots, tally)
            except TrialFailed as error:
                reason = f"on hold-out shape {shape_text(built.workload)}: {error.failure.reason}"
                evidence = on_holdout(error.failure.mismatches)
                raise TrialFailed(error.failure.kind, reason, error.log, evidence) from error
            self._beds.let_go(built.workload)
        done = f"{len(candidate.holdouts)}/{len(candidate.holdouts) + candidate.specialised}"
        return f"{done}, specialised" if candidate.specialised else done

    def measure(self, candidate: Candidate, say: Say) -> MeasureReply:
        """Process pairs until the interval is narrow enough; the kernel's screen is the first pair.

        Raises TrialFailed if a timed call is wrong.
        """
        pairs = self._pairs(candidate, say)
        against = self._baselines
        interleaved = {
            n: stats.ratio_interval(log_ratios(pairs, n, KERNEL), max(against.claimable, cost_share(pairs)))
            for n in against.interleaved
        }
        ratios = against.over_all(interleaved)
        return MeasureReply(self._measurement("precise", pairs, ratios), raw(pairs), self._report.evidence(pairs))

    def versus(self, candidate: Candidate, other: Candidate, say: Say, effort: int | None = None) -> MeasureReply:
        """The speedup of ``candidate`` over ``other``, both checked in every call, in fresh process pairs.

        Both get the same inputs, one right after the other, in A-B-B-A order (``interleaving.CallOrder``). Earlier measurements
        are not used. With ``effort`` it is a race for the lead: few pairs, twice as many per step, until the result is clear.
        """
        pairs = self._pairs(candidate, say, other, stopping.race_bounds(effort))
        ratio = stats.ratio_interval(log_ratios(pairs, OTHER, KERNEL), max(self._baselines.claimable, cost_share(pairs)))
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
        contracts = {name: one.contract for name, one in judged.items()}
        nulls = self._pool.null_runners(bed, contracts)
        with ExitStack() as stack:
            waiting: list[dict[str, RunnerClient]] = []
            while len(pairs) < most:
                if not waiting:
                    if bounds is not None or not self._pool.keeps_processes:
                        stack.close()  # a long race must not accumulate processes on the device
                    count = max(min(least, self._bounds[0]) - len(pairs), 2) if self._pool.keeps_processes else 1
                    waiting = self._start_runners(stack, bed, judged, count)
                runners = waiting.pop(0)
                baselines = {} if other is not None else self._baselines.runners(bed, len(pairs))
                self._pool.stand_by()
                say(f"process pair {len(pairs) + 1}")
                contest = Contestants(runners, baselines, nulls, contracts)
                pairs.append(run_pair(bed, contest, samples_for(pairs, KERNEL), self._setup, CheckTally()))
                self._pool.end_pair()
                against = OTHER if other else self._opened.baseline
                if len(pairs) >= least and self._is_settled(pairs, against, raced=bounds is not None):
                    break
            self._processes_to_end = stack.pop_all()
        return pairs

    def tidy(self) -> None:
        """Work deferred until after the verdict: end the measured processes, start those of the next kernel."""
        try:
            self._processes_to_end.close()
            if self._beds.in_use:
                self._pool.discard_prestarted()
                self._pool.prestart(self._bounds[0])
        except SandboxError:
            self._pool.restart()

    def _start_runners(
        self, stack: ExitStack, bed: TestBed, judged: Mapping[str, Candidate], count: int
    ) -> list[dict[str, RunnerClient]]:
        """Fresh, loaded runners of the judged kernels for ``count`` pairs, started in parallel."""
        self._settle_weights(bed, judged)
        bed.new_model(varied=self._weights.varied(*judged.values()))
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

    def _settle_weights(self, bed: TestBed, judged: Mapping[str, Candidate]) -> None:
        """Decide on the weights of modules that were not verified here."""
        for name, candidate in judged.items():
            if self._weights.knows(candidate) or not bed.reference.constants:
                continue
            bed.new_model()
            with blaming(name), self._pool.kernel(rival=name == OTHER) as runner:
                self._load(runner, bed, candidate)
                self._weights.settle(bed, runner, candidate, partial(self._load, runner, bed, candidate))

    def _is_settled(self, pairs: Sequence[PairTimes], against: str, *, raced: bool) -> bool:
        """Whether to stop. A doubt may be noise: like a wide interval, it calls for more pairs."""
        kind, claimable = self.device.kind, max(self._baselines.claimable, cost_share(pairs))
        return not self._report.doubts(pairs) and stopping.is_settled(pairs, against, kind, claimable, raced=raced)

    def _measurement(self, depth: str, pairs: Sequence[PairTimes], ratios: Mapping[str, Interval]) -> Measurement:
        return self._report.of_kernel(depth, pairs, ratios, self._baselines.dated(ratios))
