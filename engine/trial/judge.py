"""The judge: owns seeds, inputs, expected outputs and the verdict for one problem, workload and device. Imports torch.

It never runs a candidate's code. Kernels run in runners forked from a host that the sandbox holds; baselines run in runners of
another host, so that nothing of a candidate's can reach an expected value.
"""

from __future__ import annotations

import math
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
from engine.trial import devices, doubts, light, surroundings
from engine.trial.baseline_runs import BaselineRuns
from engine.trial.calibration import calibrate, make_gate
from engine.trial.distributions import OWN
from engine.trial.interference import Interference
from engine.trial.pairing import (
    HOT,
    CacheFlush,
    Conditions,
    Contest,
    Probe,
    Tally,
    judged_call,
    run_pair,
)
from engine.trial.protocol import OTHER, Candidate, Measured, Open, Prepared, Verified
from engine.trial.rig import Rig
from engine.trial.sandbox import bubblewrap_reason, filter_reason
from engine.trial.seat import Seat, Timing, TrialFailed, TrustedLost, blaming
from engine.trial.seating import LOAD_S, Seating
from engine.trial.times import KERNEL, PairTimes, host_share, log_ratios, raw, samples_of

Say = Callable[[str], None]
Reply = TypeVar("Reply")

_OWN_TRIALS = 3
_HOLDOUT_TRIALS = 2
_SCREEN_SAMPLES = 6
"""With the warm-up one burst over eight slots."""
_PAIRS = {"cuda": (3, 8), "cpu": (3, 6)}
"""Process pairs of a precise measurement: at least, at most. On a CPU a pair takes most of a second for the emptying of its
caches, and who leads is settled by a race."""
_RACE_PAIRS = (3, 5)
"""Process pairs of a race for the lead, at least and at most; twice as many for each step of effort."""
_CLEAR = 3.0
"""Half-widths between a race's ratio and 1 at which it is over: looking after every pair cannot make that of noise."""
_ENOUGH = {"cuda": 0.01, "cpu": 0.03}
"""Half-width (in logarithms) at which a precise measurement stops adding pairs."""
_JITTER_LIMIT = 1e-2
_ROOM = 0.1
"""Of a device's memory that must be free for a kernel to be blamed for the lack of it."""
_SECOND_LOOKS = 2
"""Times that a screen which raises doubts is taken again."""


class Judge:
    """One problem on trial. Created by ``Open``; raises ProblemError or DeviceError when that cannot be."""

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        self.device = devices.describe(opened.device)
        if opened.device == "cpu":
            torch.set_num_threads(self.device.units)
        self.reference = Reference(opened.problem, opened.workload, opened.device)
        self.signature = self.reference.signature()
        self.holdouts = [Reference(opened.problem, w, opened.device) for w in opened.holdouts]
        self.sandbox_reason = bubblewrap_reason()
        self.confined = self.sandbox_reason is None
        self._seating = Seating(opened.problem, self.device, cold=opened.cold, confined=self.confined)
        self._conditions = Conditions(
            CacheFlush(opened.device if opened.cold else HOT, self.device.cache_bytes),
            Interference(opened.device),
            random.SystemRandom(),
            Probe(opened.device),
            holds=self.device.kind == "cuda",
            surroundings=surroundings.watch(self.device, devices.bus_id),
        )
        self._bounds = _PAIRS[self.device.kind]
        self._rig: Rig | None = None
        self._holdout_rigs: dict[str, Rig] = {}
        self._peaks = opened.peaks
        self._leaving = ExitStack()
        self._screened: tuple[Candidate, PairTimes] | None = None
        self._baselines = BaselineRuns(opened, self.device, self._seating, self._conditions)

    def close(self) -> None:
        """End every process of the trial."""
        self._seating.close()

    def insist(self, act: Callable[[], Reply], *, trying: bool = False) -> Reply:
        """``act`` on this judge, once more with every process made anew where a trusted one was lost: a kernel must not pay for
        what happened to the baseline.

        Nor must a session pay for a kernel (``trying`` one) that takes all memory: where there is too little twice, and room
        once the kernel has gone, it is rejected. Raises what ``act`` raises.
        """
        try:
            return act()
        except TrustedLost:
            self._seating.start_over()
            return act()
        except (DeviceError, torch.OutOfMemoryError) as error:
            if not (trying and _full(error)):
                raise
        self._make_room()
        try:
            return act()
        except (DeviceError, torch.OutOfMemoryError) as error:
            self._make_room()
            if not _full(error) or not self._has_room():
                raise
        raise TrialFailed(FailureKind.REJECTED, "the device ran out of memory while it was tried, and has room without it")

    def _make_room(self) -> None:
        self._seating.start_over()
        torch.cuda.empty_cache()

    def _has_room(self) -> bool:
        if self.device.kind == "cpu":
            return False
        free, total = torch.cuda.mem_get_info(self.device.index)
        return free > _ROOM * total

    # preparation

    def prepare(self, say: Say, *, measure: bool = True) -> Prepared:
        """Calibrate the gate, try the null models, and measure what everything is measured against."""
        self._seating.launch()
        say("calibrating the gate against float64")
        rig = self.rig()
        gate = make_gate(self.reference, rig.calibration)
        self._seating.await_hosts()
        say("measuring the device's ceilings")
        self._peaks = None
        ceilings = self.peaks()
        least = light.floor(self.signature, ceilings)
        unsafe = filter_reason() if self.confined else f"no sandbox: {self.sandbox_reason}; only resource limits hold"
        notes = (unsafe,) if unsafe else ()
        measured: dict[str, Measurement] = {}
        same = Interval(1.0, 1.0, 1.0)
        pairs: list[PairTimes] = []
        if measure:
            found = self._baselines.measure(rig, self._times, say)
            pairs, measured, notes = found.pairs, found.measured, (*notes, *found.notes)
            same = self._baselines.same or same
            for reference in self.holdouts:
                self._holdout_rig(reference.workload)
            self._seating.null(rig, "host")
        preparation = Preparation(
            self.signature, gate, measured, same, least.floor_us, least.bound, ceilings, least.bytes_moved,
            "bubblewrap" if self.confined else "limits", notes,
        )  # fmt: skip
        return Prepared(preparation, raw(pairs))

    def rig(self) -> Rig:
        """The workload set up; calibrated at first use."""
        if self._rig is None:
            self._rig = Rig(self.reference, calibrate(self.reference, self._opened.tolerance), self.device)
        return self._rig

    def reference_for(self, workload: Workload) -> Reference:
        """The reference on one of the shapes that it was opened with."""
        return next((r for r in self.holdouts if r.workload == workload), self.reference)

    def peaks(self) -> Peaks:
        """The device's ceilings."""
        if self._peaks is None:
            self._peaks = light.peaks(self.device, Path(self._opened.cache))
        return self._peaks

    # verdicts

    def verify(self, candidate: Candidate, say: Say) -> Verified:
        """Trials on fresh inputs of every distribution, hold-out shapes, determinism, then a quick interleaved screen.

        One process sees them all, in calls that look alike. Raises TrialFailed.
        """
        rig = self.rig()
        tally, own = Tally(), Tally()
        self._seating.dismiss()
        with self._seating.kernel() as seat:
            rig.new_model()
            self._seating.look_ahead(self._bounds[0] - 1)
            self._seating.load_kernel(seat, rig, candidate, candidate.built)
            seat.wait_ready(LOAD_S)
            self._seating.stand_by()
            for index in range(_OWN_TRIALS):
                rig.refill(index % rig.slots)
                judged_call(rig, seat, index % rig.slots, own)
            jitter = self._determinism(rig, seat, (_OWN_TRIALS - 1) % rig.slots, own)
            for distribution in rig.calibration.distributions:
                if distribution != OWN:
                    rig.refill(0, distribution)
                    judged_call(rig, seat, 0, tally, distribution)
            say("screening its time")
            null = self._seating.null(rig, candidate.contract)
            contest = Contest({KERNEL: seat}, self._baselines.seats(rig, 0), null, {KERNEL: candidate.contract})
            self._seating.stand_by()
            pair = self._screen(rig, contest, own)
            holdouts = self._verify_holdouts(seat, candidate, say)
        self._screened = (candidate, pair)
        beside = {n: stats.block_interval(pair.claims(n), pair.claims(KERNEL)) for n in self._baselines.interleaved}
        ratios = self._baselines.over_all(beside)
        screen = self._measurement("screen", [pair], ratios)
        verification = self._verification(rig, own, own.trials + tally.trials, holdouts, jitter)
        evidence = (*doubts.of_verification(verification), *self._evidence([pair]))
        return Verified(verification, screen, raw([pair]), evidence)

    def _screen(self, rig: Rig, contest: Contest, tally: Tally) -> PairTimes:
        """A few samples. A doubt may be noise, and so may its absence where nothing was calm enough to tell: then more samples
        are taken, a moment later, and count alone."""
        pair = run_pair(rig, contest, _SCREEN_SAMPLES, self._conditions, tally)
        for _ in range(_SECOND_LOOKS):
            if pair.calm and not self._doubts([pair]):
                break
            pair = run_pair(rig, contest, max(_SCREEN_SAMPLES, samples_of([pair], KERNEL)), self._conditions, tally)
        return pair

    def _verification(self, rig: Rig, own: Tally, trials: int, holdouts: str, jitter: float) -> Verification:
        policy = rig.calibration.policy
        limit = policy.limit(OWN)
        return Verification(
            policy.name, trials, own.errors.rel_fro, limit.rel_fro, own.errors.max_abs, own.errors.max_scaled,
            limit.max_scaled, policy.label(own.errors, OWN), holdouts, jitter,
        )  # fmt: skip

    def _determinism(self, rig: Rig, seat: Seat, slot: int, tally: Tally) -> float:
        """Call once more on the same bytes: both answers must be right; how far they differ is kept."""
        earlier = rig.copy_outputs(slot)
        judged_call(rig, seat, slot, tally)
        jitter = rig.jitter(slot, earlier)
        if jitter > max(_JITTER_LIMIT, 2 * rig.calibration.policy.limit(OWN).max_scaled):
            raise TrialFailed(FailureKind.UNSTABLE, f"two calls on the same inputs differ by {jitter:.1e} of scale: a race?")
        return jitter

    def _verify_holdouts(self, seat: Seat, candidate: Candidate, say: Say) -> str:
        if not candidate.holdouts and not candidate.specialised:
            return "none"
        for built in candidate.holdouts:
            say(f"hold-out shape {_shape(built.workload)}")
            rig = self._holdout_rig(built.workload)
            rig.new_model()
            tally = Tally()
            try:
                self._seating.load_kernel(seat, rig, candidate, built)
                seat.wait_ready(LOAD_S)
                for index in range(_HOLDOUT_TRIALS):
                    rig.refill(index % rig.slots)
                    judged_call(rig, seat, index % rig.slots, tally)
            except TrialFailed as error:
                reason = f"on hold-out shape {_shape(built.workload)}: {error.failure.reason}"
                raise TrialFailed(error.failure.kind, reason, error.log) from error
        done = f"{len(candidate.holdouts)}/{len(candidate.holdouts) + candidate.specialised}"
        return f"{done}, specialised" if candidate.specialised else done

    def _holdout_rig(self, workload: Workload) -> Rig:
        key = _shape(workload)
        if key not in self._holdout_rigs:
            reference = next(r for r in self.holdouts if _shape(r.workload) == key)
            calibration = calibrate(reference, self._opened.tolerance, self.rig().calibration)
            self._holdout_rigs[key] = Rig(reference, calibration, self.device)
        return self._holdout_rigs[key]

    def measure(self, candidate: Candidate, say: Say) -> Measured:
        """Process pairs until the interval is tight enough, the one that screened it being the first.

        Raises TrialFailed when a timed call is wrong.
        """
        pairs = self._pairs(candidate, say)
        against = self._baselines
        beside = {n: stats.ratio_interval(log_ratios(pairs, n, KERNEL), against.claimable) for n in against.interleaved}
        ratios = against.over_all(beside)
        return Measured(self._measurement("precise", pairs, ratios), raw(pairs), self._evidence(pairs))

    def versus(self, candidate: Candidate, other: Candidate, say: Say, effort: int | None = None) -> Measured:
        """The speedup of ``candidate`` over ``other``, both under full judgement, in fresh process pairs.

        Both see the same inputs, one right after the other, A-B then B-A (``pairing.Turns``); nothing of an earlier measurement
        counts. With an ``effort`` it is a race for the lead: few pairs, twice as many for each step, and it is over as soon as
        it is clear.
        """
        pairs = self._pairs(candidate, say, other, _race_bounds(effort))
        ratio = stats.ratio_interval(log_ratios(pairs, OTHER, KERNEL), self._baselines.claimable)
        return Measured(self._measurement("precise", pairs, {OTHER: ratio}), raw(pairs))

    def _pairs(
        self, candidate: Candidate, say: Say, other: Candidate | None = None, bounds: tuple[int, int] | None = None
    ) -> list[PairTimes]:
        least, most = bounds or self._bounds
        rig = self.rig()
        judged = {KERNEL: candidate} if other is None else {KERNEL: candidate, OTHER: other}
        screened, pair = self._screened if self._screened is not None else (None, None)
        pairs = [pair] if pair is not None and screened == candidate and other is None else []
        if not pairs:
            self._seating.dismiss()
        null = self._seating.null(rig, candidate.contract)
        contracts = {name: one.contract for name, one in judged.items()}
        with ExitStack() as stack:
            waiting: list[dict[str, Seat]] = []
            while len(pairs) < most:
                if not waiting:
                    if bounds is not None:
                        stack.close()  # a long race must not fill the device with processes that have run
                    waiting = self._seated(stack, rig, judged, max(min(least, self._bounds[0]) - len(pairs), 2))
                seats = waiting.pop(0)
                baselines = {} if other is not None else self._baselines.seats(rig, len(pairs))
                self._seating.stand_by()
                say(f"process pair {len(pairs) + 1}")
                pairs.append(
                    run_pair(
                        rig, Contest(seats, baselines, null, contracts), samples_of(pairs, KERNEL), self._conditions, Tally()
                    )
                )
                against = OTHER if other else self._opened.baseline
                if len(pairs) >= least and self._settled(pairs, against, raced=bounds is not None):
                    break
            self._leaving = stack.pop_all()
        return pairs

    def tidy(self) -> None:
        """What can wait until the verdict is out: end the processes that were measured, start those of the next kernel."""
        try:
            self._leaving.close()
            if self._rig is not None:
                self._seating.dismiss()
                self._seating.look_ahead(self._bounds[0])
        except SandboxError:
            self._seating.start_over()

    def _seated(self, stack: ExitStack, rig: Rig, judged: Mapping[str, Candidate], count: int) -> list[dict[str, Seat]]:
        """Fresh, loaded processes of those under judgement for ``count`` pairs, started side by side."""
        rig.new_model()
        rows = [{name: stack.enter_context(self._seating.kernel(rival=name == OTHER)) for name in judged} for _ in range(count)]
        for row in rows:
            for name, seat in row.items():
                with blaming(name):
                    self._seating.load_kernel(seat, rig, judged[name], judged[name].built)
        for row in rows:
            for name, seat in row.items():
                with blaming(name):
                    seat.wait_ready(LOAD_S)
        return rows

    def _settled(self, pairs: Sequence[PairTimes], against: str, *, raced: bool = False) -> bool:
        """Whether there are enough pairs: a doubt may be noise and keeps them coming, as a wide interval does.

        A race is over as well when who wins is far beyond question, however wide the interval is.
        """
        if len(pairs) < self._bounds[0] or self._doubts(pairs):
            return False
        ratio = stats.ratio_interval(log_ratios(pairs, against, KERNEL))
        half = math.log(ratio.high / ratio.low) / 2
        clear = raced and abs(math.log(ratio.value)) > _CLEAR * max(half, self._baselines.claimable)
        return clear or half <= max(_ENOUGH[self.device.kind], self._baselines.claimable)

    def _doubts(self, pairs: Sequence[PairTimes], *, sure: bool = False) -> tuple[str, ...]:
        return doubts.of_times(pairs, self.signature, self.peaks(), self.device, cold=self._opened.cold, sure=sure)

    def _evidence(self, pairs: Sequence[PairTimes]) -> tuple[str, ...]:
        """Doubts beyond all question, from where nothing else was at work. Others are no evidence: such a measurement is not
        corroborated, which says so and cannot lead."""
        calm = [pair for pair in pairs if pair.calm]
        return self._doubts(calm, sure=True) if calm else ()

    def _measurement(self, depth: str, pairs: Sequence[PairTimes], ratios: Mapping[str, Interval]) -> Measurement:
        times = [t for p in pairs for t in p.kernel]
        doubted = self._doubts(pairs)
        disturbed = sum(p.disturbed for p in pairs)
        said = [f"{disturbed} of {disturbed + len(times)} samples disturbed by other work"] if disturbed else []
        said += self._baselines.dated(ratios)
        said += [*host_share(times), *surroundings.told([p.seen for p in pairs])]
        return self._times(times, depth, len(pairs), ratios, sound=not doubted, conditions=(*doubted, *said))

    def _times(
        self, times: Sequence[Timing], depth: str, processes: int, ratios: Mapping[str, Interval], *, sound: bool,
        conditions: tuple[str, ...],
    ) -> Measurement:  # fmt: skip
        median = stats.median_interval([t.claimed_us for t in times])
        said = ("cold caches" if self._opened.cold else "hot caches", *conditions, *(() if self.confined else ("no sandbox",)))
        speed_of_light = light.of(light.floor(self.signature, self.peaks()), median.value)
        return Measurement(depth, median, len(times), processes, dict(ratios), speed_of_light, sound, said)


def _full(error: Exception) -> bool:
    return "out of memory" in str(error).lower()


def _race_bounds(effort: int | None) -> tuple[int, int] | None:
    """Process pairs of a race, at least and at most; ``None`` for as many as a precise measurement takes."""
    return (_RACE_PAIRS[0] << effort, _RACE_PAIRS[1] << effort) if effort is not None else None


def _shape(workload: Workload) -> str:
    return ", ".join(f"{k}={v:g}" for k, v in workload.settings.items())
