"""One workload on trial: its reference, test beds and baselines, and what is done on it with a kernel's runner. Imports torch.

A judge has one for each workload of its suite. They share the hosts and, within a process pair, the processes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.domain import stats
from engine.domain.memory_plan import TrialProcesses
from engine.domain.model import FailureKind, Interval, Measurement, Role, Verification
from engine.domain.preparation import CorrectnessCheck, Peaks, Preparation
from engine.problem.chance_holdout import BY_CHANCE
from engine.problem.reference import Reference
from engine.trial.judge.baselines import Baselines
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.perturbations import AT_ENDS, AT_ENDS_OF_ONE, OWN, dimensions
from engine.trial.judge.interleaving import Contestants, run_pair
from engine.trial.judge.judge_tools import JudgeTools
from engine.trial.judge.judged_calls import CheckTally, check_workspace, difference_of_calls, fresh_call, rehearse_check
from engine.trial.judge.memory_room import needs_of, release_unused
from engine.trial.judge.outputs.fused_comparison import compile_ahead
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.sustained_workload import SustainedWorkload
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.test_beds import TestBeds
from engine.trial.judge.timing import plausibility, roofline
from engine.trial.judge.timing.call_order import first_checks
from engine.trial.judge.timing.measurement import MeasurementReport
from engine.trial.judge.timing.pair_times import KERNEL, PairTimes, cost_share, log_ratios, samples_for, shared_samples
from engine.trial.judge.timing.sustained_times import SustainedPair
from engine.trial.judge.tolerance.correctness_check import describe_check
from engine.trial.judge.tolerance.known_calibrations import KnownCalibrations, shape_text
from engine.trial.judge.tolerance.mismatch_tally import on_holdout
from engine.trial.protocol import Candidate, OpenRequest, PreparedWorkload

Say = Callable[[str], None]
Pair = TypeVar("Pair", PairTimes, SustainedPair)

_OWN_TRIALS = 3
"""Calls on the problem's own inputs; in a suite there is one on each workload."""
_OWN_S = 10.0
"""After so many seconds no further call on the problem's own inputs is made: every timed call is checked as well."""
_HOLDOUT_TRIALS = 2
"""Calls on the problem's own inputs on each hold-out shape."""
_HOLDOUT_OTHERS = 2
"""Perturbed distributions on each hold-out shape, besides those at the ends of dimensions."""
_HOLDOUT_S = 5.0
"""After so many seconds no further call on perturbed inputs is made on a hold-out shape."""
_SCREEN_SAMPLES = 6
"""With the warm-up, one burst over eight slots."""
_JITTER_LIMIT = 1e-2
"""Two calls on the same inputs may differ by so much, in units of scale, or by twice the tolerance."""
_SCREEN_RETRIES = 2
"""Repetitions of a screen that raises doubts."""
_PERTURBED = 3
"""Calls on perturbed inputs per process pair."""
_AGAIN_S = 0.1
"""After so many seconds no distribution is checked again."""
_LEAST_PERTURBED = 4
"""Perturbed distributions that every workload of a suite is checked on; each distribution is tried on about two of them."""


@dataclass(frozen=True, slots=True)
class VerifiedWorkload:
    """A kernel's verification and screen on one workload."""

    verification: Verification
    screen: Measurement
    pair: PairTimes
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedOutputs:
    """What the correctness checks found."""

    own: CheckTally
    """On the problem's own inputs."""
    perturbed: CheckTally
    jitter: float
    holdouts: str


class WorkloadTrial:
    """One workload on trial. Raises ProblemError or DeviceError."""

    def __init__(self, opened: OpenRequest, tools: JudgeTools, say: Say = lambda _: None) -> None:
        self._opened = opened
        self._tools = tools
        self.reference = Reference(opened.problem, opened.workload, opened.device)
        if not self.reference.known_without_running():
            say("running the reference once: it cannot be traced without its inputs' values (a smaller --workload is faster)")
        self.signature = self.reference.signature()
        compile_ahead(self.signature.with_roles(Role.OUTPUT), tools.device)
        self.holdouts = [Reference(opened.problem, w, opened.device) for w in opened.holdouts]
        self._check: CorrectnessCheck | None = None
        self._checked: tuple[Candidate, CheckedOutputs] | None = None
        """The last ``check``, for the ``verify`` that follows it."""
        self._checked_with = 0
        """The seed of its weights."""
        processes = TrialProcesses(
            1 + len(opened.further_baselines), 1 + sum(not name.startswith("compile") for name in opened.further_baselines),
            tools.most_pairs, tuple(needs_of(r).operands for r in self.holdouts),
        )  # fmt: skip
        calibrations = KnownCalibrations(opened.calibrations, opened.tolerance)
        self.beds = TestBeds(opened, tools.device, self.reference, self.holdouts, processes, tools.pool, calibrations)
        self.baselines = Baselines(opened, tools.device, tools.pool, tools.setup, tools.workloads)
        self.sustained = SustainedWorkload(self.signature, tools, self.baselines, self.bed)
        self.report = MeasurementReport(
            self.signature, tools.device, tools.peaks, tools.measure_peaks_again, opened.cold, opened.confined
        )

    @property
    def name(self) -> str:
        """The workload's name."""
        return self._opened.workload.name

    @property
    def device_kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self._tools.device.kind

    def bed(self) -> TestBed:
        """The workload's test bed, calibrated at first use."""
        return self.beds.main()

    # preparation

    def calibrate(self, say: Say, start: Callable[[], None] | None = None) -> None:
        """Calibrate the correctness check and try the trivial models. ``start`` is called once memory is planned."""
        say("calibrating the correctness check against float64")
        if start is not None:
            self.beds.allocate_ahead()
            start()
        bed = self.bed()
        if self._check is None:
            self._check = describe_check(self.reference, bed.calibration, self.beds.complete)
            self.beds.release_unused()

    def prepare(self, ceilings: Peaks, cached: bytes, say: Say, *, measure: bool) -> PreparedWorkload:
        """What the preparation finds on this workload. Once it is calibrated and the hosts are up."""
        assert self._check is not None
        bed = self.bed()
        least = roofline.floor(self.signature, ceilings)
        notes = (self.beds.note,) if self.beds.note else ()
        to_cache = b""
        measured: dict[str, Measurement] = {}
        same = Interval(1.0, 1.0, 1.0)
        if measure:
            if not self.beds.plan.keeps_processes:
                release_unused(self._tools.device)
            results = self.baselines.measure(bed, self.report, cached, say)
            measured, to_cache = results.measured, results.to_cache
            notes = (*notes, *results.notes)
            same = self.baselines.same or same
            if self.holdouts:
                say("calibrating the correctness check on hold-out shapes")
            self.beds.calibrate_holdouts()
            self._tools.pool.start_null_runners({KERNEL: "host"})
        preparation = Preparation(
            self.signature, self._check, measured, same, least.floor_us, least.bound, ceilings, least.bytes_moved, "", notes
        )
        return PreparedWorkload(preparation, to_cache, self.beds.calibrations.encode())

    # correctness

    def check(self, runner: RunnerClient, candidate: Candidate, say: Say, prestarted: int) -> None:
        """The correctness checks of ``verify``, which need neither baselines nor ceilings. Raises TrialFailed.

        ``prestarted``: how many runners of the measurement to start before the check; they stand still during its calls.
        """
        self._checked = None
        bed = self.bed()
        self._tools.weights.renew(bed, candidate, scalars=True)
        rehearse_check(bed)
        self._tools.pool.prestart(prestarted)
        self.load(runner, candidate)
        self.baselines.start_ahead({KERNEL: candidate.contract})
        own = self._tools.weights.settle(bed, runner, candidate, lambda: self.load(runner, candidate))
        perturbed = CheckTally()
        jitter = self._check_own(bed, runner, own)
        self._check_perturbed(bed, runner, perturbed)
        holdouts = self._verify_holdouts(runner, candidate, say)
        self._checked, self._checked_with = (candidate, CheckedOutputs(own, perturbed, jitter, holdouts)), bed.init_seed

    def verify(self, runner: RunnerClient, candidate: Candidate, say: Say, prestarted: int) -> VerifiedWorkload:
        """Check fresh inputs of every distribution, determinism and hold-out shapes, and take a quick interleaved screen.

        What ``check`` has just found for this candidate is not checked again; every timed call still is. A runner that it left
        with this workload loaded is used again. Raises TrialFailed.
        ``prestarted``: how many runners of the measurement to start meanwhile.
        """
        bed, pool, weights = self.bed(), self._tools.pool, self._tools.weights
        earlier, self._checked = self._checked, None
        known = earlier[1] if earlier is not None and earlier[0] == candidate else None
        goes_on = known is not None and runner.loaded_for is bed and self._checked_with == bed.init_seed
        if not goes_on:
            weights.renew(bed, candidate, scalars=True)
        contracts = {KERNEL: candidate.contract}
        pool.prestart(prestarted)
        if not self.baselines.started:
            say("starting the baselines")
        baselines, nulls = self.baselines.runners(bed, 0), pool.null_runners(bed, contracts)  # they load meanwhile
        if not goes_on:
            self.load(runner, candidate)
        pool.stand_by()
        settled = weights.settle(bed, runner, candidate, lambda: self.load(runner, candidate))
        own, perturbed = (known.own, known.perturbed) if known is not None else (settled, CheckTally())
        jitter = known.jitter if known is not None else self._check_own(bed, runner, own)
        if known is None:
            self._check_perturbed(bed, runner, perturbed)
        contest = Contestants({KERNEL: runner}, baselines, nulls, contracts)
        pool.stand_by()
        say("quick timing")
        pair = self._screen(bed, contest, own)
        pool.end_pair()
        holdouts = known.holdouts if known is not None else self._verify_holdouts(runner, candidate, say)
        verification = replace(
            self._verification(bed, own, own.trials + perturbed.trials, holdouts, jitter),
            caveats=tuple(dict.fromkeys((*own.caveats, *perturbed.caveats, *weights.caveats(candidate)))),
            format_verdict=own.format_verdict,
            chance=next((shape_text(b.workload) for b in candidate.holdouts if b.workload.name.endswith(BY_CHANCE)), ""),
        )
        interleaved = {n: stats.block_interval(pair.counted(n), pair.counted(KERNEL)) for n in self.baselines.interleaved}
        screen = weights.marked(self.measurement("screen", [pair], self.baselines.over_all(interleaved)), candidate)
        evidence = (*plausibility.verification_doubts(verification), *self.report.evidence([pair]))
        return VerifiedWorkload(verification, screen, pair, evidence)

    def load(self, runner: RunnerClient, candidate: Candidate) -> None:
        """Load the kernel in its runner, and wait. Raises TrialFailed."""
        self._tools.pool.load_and_wait(runner, self.bed(), candidate, candidate.built)

    def settle_weights(self, runner: RunnerClient, candidate: Candidate) -> None:
        """Decide on the weights of a module that was not verified here. Raises TrialFailed."""
        bed = self.bed()
        bed.new_model()
        self.load(runner, candidate)
        self._tools.weights.settle(bed, runner, candidate, lambda: self.load(runner, candidate))

    def _check_own(self, bed: TestBed, runner: RunnerClient, own: CheckTally) -> float:
        """Fresh inputs as the problem draws them; the difference of two calls on the same inputs."""
        trials = _OWN_TRIALS if self._tools.workloads == 1 else 1
        began, slot = time.monotonic(), 0
        for index in range(own.trials, trials):
            slot = index % bed.slots
            fresh_call(bed, runner, slot, own)
            if time.monotonic() - began > _OWN_S:
                break
        jitter = self._determinism(bed, runner, slot, own)
        own.format_verdict = bed.format_verdict(slot)
        return jitter

    def _check_perturbed(self, bed: TestBed, runner: RunnerClient, tally: CheckTally) -> None:
        """Every distribution once, and some again as long as that is quick.

        In a suite the distributions are spread over its workloads, at random. Where the reference proves inaccurate on one,
        those that are used instead follow.
        """
        spent, rng, known = 0.0, self._tools.setup.rng, bed.calibration.distributions
        checks = deque(first_checks(rng, self._distributions(bed)))
        while checks:
            check = checks.popleft()
            if (check.optional and spent > _AGAIN_S) or check.distribution not in bed.calibration.distributions:
                continue
            began = time.monotonic()
            fresh_call(bed, runner, 0, tally, check.distribution, partly=check.partly)
            spent += time.monotonic() - began if check.optional else 0.0
            checks.extend(first_checks(rng, [name for name in bed.calibration.distributions if name not in known]))
            known = bed.calibration.distributions

    def _distributions(self, bed: TestBed) -> Sequence[str]:
        every = [name for name in bed.calibration.distributions if name != OWN]
        if self._tools.workloads == 1:
            return every
        count = max(_LEAST_PERTURBED, math.ceil(2 * len(every) / self._tools.workloads))
        return self._tools.setup.rng.sample(every, min(count, len(every)))

    def _screen(self, bed: TestBed, contest: Contestants, tally: CheckTally) -> PairTimes:
        """A few samples. If they raise doubts or were disturbed, they are replaced by new ones.

        In a suite a member's screen is repeated only if it would quarantine the kernel. Its calls are still checked,
        the mean over the members decides whether the kernel is measured, and a measurement adds pairs while one raises a doubt.
        A kernel that is not measured keeps its doubts: its time is not corroborated, and it cannot lead. On a busy machine some
        of many members are always disturbed, and repeating their screens took most of a suite's verification.
        """
        pair = self.run_pair(bed, contest, shared_samples(_SCREEN_SAMPLES, self._tools.workloads), tally)
        unclear = self._is_unclear if self._tools.workloads == 1 else self._is_suspect
        for _ in range(_SCREEN_RETRIES):
            if not unclear(pair):
                break
            more = shared_samples(max(_SCREEN_SAMPLES, samples_for([pair], KERNEL)), self._tools.workloads)
            again = self.run_pair(bed, contest, more, tally)
            pair = replace(again, disturbed=pair.disturbed + again.disturbed, taken=pair.taken + again.taken)
        return pair

    def _is_unclear(self, pair: PairTimes) -> bool:
        return not pair.calm or bool(self.report.doubts([pair]))

    def _is_suspect(self, pair: PairTimes) -> bool:
        return bool(self.report.evidence([pair]))

    def _verification(self, bed: TestBed, own: CheckTally, trials: int, holdouts: str, jitter: float) -> Verification:
        policy = bed.calibration.policy
        limit = own.limit or policy.limit(OWN)
        return Verification(
            policy.name, trials, own.errors.rel_fro, limit.rel_fro, own.errors.max_abs, own.errors.max_scaled,
            limit.max_scaled, policy.label(own.errors, OWN), holdouts, jitter,
        )  # fmt: skip

    def _determinism(self, bed: TestBed, runner: RunnerClient, slot: int, tally: CheckTally) -> float:
        """Call again on the same inputs. Both outputs must be right; returns their largest difference in units of scale."""
        jitter = difference_of_calls(bed, runner, slot, tally)
        most = max(_JITTER_LIMIT, 2 * bed.calibration.policy.limit(OWN).max_scaled)
        if jitter > most and not bed.calibration.several:  # both were checked, and several outputs are right
            raise TrialFailed(FailureKind.UNSTABLE, f"two calls on the same inputs differ by {jitter:.1e} of scale: data race?")
        return jitter

    def _verify_holdouts(self, runner: RunnerClient, candidate: Candidate, say: Say) -> str:
        check_workspace(runner, candidate)
        if not candidate.holdouts and not candidate.specialised:
            return "none"
        for built in candidate.holdouts:
            say(f"hold-out shape {shape_text(built.workload)}")
            bed = self.beds.holdout(built.workload)
            self._tools.weights.renew(bed, candidate, scalars=True)
            tally = CheckTally()
            try:
                self._tools.pool.load_and_wait(runner, bed, candidate, built)
                for index in range(_HOLDOUT_TRIALS):
                    fresh_call(bed, runner, index % bed.slots, tally)
                self._perturb_holdout(bed, runner)
                check_workspace(runner, candidate)
            except TrialFailed as error:
                reason = f"on hold-out shape {shape_text(built.workload)}: {error.failure.reason}"
                evidence = on_holdout(error.failure.mismatches)
                raise TrialFailed(error.failure.kind, reason, error.log, evidence) from error
            self.beds.let_go(built.workload)
        done = f"{len(candidate.holdouts)}/{len(candidate.holdouts) + candidate.specialised}"
        return f"{done}, specialised" if candidate.specialised else done

    def _perturb_holdout(self, bed: TestBed, runner: RunnerClient) -> None:
        """Calls on changed ends, since where a loop ends depends on the shape, and on a few other kinds drawn at random.

        Those that change the ends of one dimension, which is drawn, are tried twice as often as there are dimensions. Where the
        reference proves inaccurate on one, those that are used instead follow.
        """
        again = AT_ENDS_OF_ONE * (2 * dimensions(bed.signature.operands) - 1)
        ends = [name for name in (*AT_ENDS, *again) if name in bed.calibration.distributions]
        others = [name for name in bed.calibration.distributions if name not in (OWN, *ends)]
        drawn = self._tools.setup.rng.sample(others, min(_HOLDOUT_OTHERS, len(others)))
        began, tally = time.monotonic(), CheckTally()
        names = deque((*ends, *drawn))
        while names and time.monotonic() - began <= _HOLDOUT_S:
            distribution, known = names.popleft(), bed.calibration.distributions
            fresh_call(bed, runner, 0, tally, distribution, partly=self._tools.setup.rng.random() < 0.5)
            names.extend(name for name in bed.calibration.distributions if name not in known)

    # times

    def run_next_pair(self, contest: Contestants, earlier: Sequence[PairTimes]) -> PairTimes:
        """The process pair after ``earlier`` on this workload; in a suite with fewer samples."""
        samples = shared_samples(samples_for(earlier, KERNEL), self._tools.workloads)
        return self.run_pair(self.bed(), contest, samples, CheckTally())

    def run_pair(self, bed: TestBed, contest: Contestants, samples: int, tally: CheckTally) -> PairTimes:
        """One process pair on this workload; in a suite with fewer perturbed calls."""
        perturbed = _PERTURBED if self._tools.workloads == 1 else 1
        return run_pair(bed, contest, samples, self._tools.setup, tally, perturbed)

    def log_ratios(self, pairs: Sequence[PairTimes], against: str) -> list[float]:
        """log(``against`` ÷ kernel) of each process pair."""
        return log_ratios(pairs, against, KERNEL)

    def claimable(self, pairs: Sequence[PairTimes]) -> float:
        """The smallest effect on this workload that is ever claimed, in logarithms."""
        return max(self.baselines.claimable, cost_share(pairs))

    def ratio(self, pairs: Sequence[PairTimes], against: str) -> Interval:
        """The speedup over ``against`` on this workload."""
        return stats.ratio_interval(self.log_ratios(pairs, against), self.claimable(pairs))

    def measurement(
        self, depth: str, pairs: Sequence[PairTimes], ratios: dict[str, Interval], notes: Sequence[str] = ()
    ) -> Measurement:
        """The kernel's measurement on this workload, with these speedups; ``notes`` are further conditions."""
        return self.report.of_kernel(depth, pairs, ratios, (*self.baselines.dated(ratios), *notes))


TakePair = Callable[[WorkloadTrial, Contestants, list[Pair]], Pair]
"""Takes the next process pair on one workload, after those so far."""
