"""The judge: owns seeds, inputs, expected outputs and the verdict for one problem, workload and device. Imports torch.

It never runs a candidate's code. Kernels run in runners forked from a host that the sandbox holds; baselines run in runners of
another host, so that nothing of a candidate's can reach an expected value.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.domain import stats
from engine.domain.errors import ProblemError
from engine.domain.model import FailureKind, Interval, Measurement, Verification, Workload
from engine.domain.preparation import Gate, Peaks, Preparation
from engine.problem.loading import Loaded
from engine.problem.reference import Reference
from engine.trial import devices, light
from engine.trial.calibration import calibrate, make_gate
from engine.trial.distributions import OWN
from engine.trial.modules import template_of
from engine.trial.pairing import CacheFlush, Contest, PairTimes, Tally, corroborated, judged_call, run_pair
from engine.trial.protocol import Built, Candidate, Measured, Open, Prepared, Verified
from engine.trial.rig import Rig
from engine.trial.sandbox import Host, bubblewrap_reason
from engine.trial.seat import Seat, Timing, TrialFailed
from engine.trial.wire import Load

Say = Callable[[str], None]

LOAD_S = 120.0
CALL_S = 20.0
_OWN_TRIALS = 3
_HOLDOUT_TRIALS = 2
_SCREEN_SAMPLES = 5
_PAIR_SAMPLES = 8
_PAIRS = (4, 8)
"""Process pairs of a precise measurement: at least, at most."""
_ENOUGH = 0.01
"""Half-width (in logarithms) at which a precise measurement stops adding pairs."""
_PATIENCE_US = 4e6
"""Device time that the samples of one precise measurement may take."""
_JITTER_LIMIT = 1e-2


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
        self._candidates = Host(opened.device, self.device.units, confined=self.confined)
        self._rivals = Host(opened.device, self.device.units, confined=self.confined)
        self._baselines = Host(opened.device, self.device.units, confined=self.confined, shared=True)
        self._flush = CacheFlush(opened.device if opened.cold else "hot", self.device.cache_bytes)
        self._order = random.Random(0)
        self._rig: Rig | None = None
        self._holdout_rigs: dict[str, Rig] = {}
        self._screen_baseline: Seat | None = None
        self._nulls: dict[str, Seat] = {}
        self._peaks: Peaks | None = None
        self._same = Interval(*opened.same) if opened.same is not None else None

    def close(self) -> None:
        """End every process of the trial."""
        for host in (self._candidates, self._rivals, self._baselines):
            host.close()

    # preparation

    def prepare(self, say: Say, *, measure: bool = True) -> Prepared:
        """Calibrate the gate, try the null models, and measure what everything is measured against."""
        say("calibrating the gate against float64")
        rig = self.rig()
        gate = make_gate(self.reference, rig.calibration)
        say("measuring the device's ceilings")
        ceilings = self.peaks()
        bound, floor_us, moved = light.floor(self.signature, ceilings)
        notes = [] if self.confined else [f"no sandbox: {self.sandbox_reason}; only resource limits hold"]
        baselines: dict[str, Measurement] = {}
        same = Interval(1.0, 1.0, 1.0)
        raw: dict[str, Any] = {}
        if measure:
            say(f"measuring {self._opened.baseline} against itself and the other baselines")
            baselines, same, raw = self._measure_baselines(rig, bound, floor_us)
        preparation = Preparation(
            self.signature, gate, baselines, same, floor_us, bound, ceilings, moved,
            "bubblewrap" if self.confined else "limits", tuple(notes),
        )  # fmt: skip
        return Prepared(preparation, msgspec.json.encode(raw))

    def rig(self) -> Rig:
        if self._rig is None:
            calibration = calibrate(self.reference, self._opened.tolerance)
            self._rig = Rig(self.reference, calibration, self._opened.device)
        return self._rig

    def gate(self) -> Gate:
        return make_gate(self.reference, self.rig().calibration)

    def peaks(self) -> Peaks:
        if self._peaks is None:
            self._peaks = light.peaks(self.device, Path(self._opened.cache))
        return self._peaks

    def _measure_baselines(
        self, rig: Rig, bound: str, floor_us: float
    ) -> tuple[dict[str, Measurement], Interval, dict[str, Any]]:
        """Each baseline against the ranking one, and the ranking one against itself, in fresh process pairs."""
        ranking = self._opened.baseline
        names = {"itself": ranking, **{name: name for name in self._opened.others}}
        logs: dict[str, list[float]] = {key: [] for key in names}
        times: dict[str, list[Timing]] = {key: [] for key in (ranking, *names)}
        for _ in range(_PAIRS[0]):
            rig.new_model()
            with ExitStack() as stack:
                first = stack.enter_context(self._baseline_seat(rig, ranking))
                seats = {key: stack.enter_context(self._baseline_seat(rig, name)) for key, name in names.items()}
                for seat in (first, *seats.values()):
                    seat.wait_ready(LOAD_S * 3)
                gathered = self._baseline_pair(rig, {ranking: first, **seats})
            for key in names:
                logs[key].append(stats.pair_log_ratio(_blocks(gathered[ranking]), _blocks(gathered[key])))
            for key, found in gathered.items():
                times[key].extend(found)
        same = stats.ratio_interval(logs["itself"])
        self._same = same
        measured = {ranking: self._as_measurement(times[ranking], {ranking: Interval(1.0, 1.0, 1.0)}, bound, floor_us)}
        for name in self._opened.others:
            ratio = stats.ratio_interval(logs[name], _claim_floor(same))
            measured[name] = self._as_measurement(times[name], {ranking: ratio}, bound, floor_us)
        raw = {key: [t.claimed_us for t in found] for key, found in times.items()}
        return measured, same, raw

    def _baseline_pair(self, rig: Rig, seats: Mapping[str, Seat]) -> dict[str, list[Timing]]:
        gathered: dict[str, list[Timing]] = {key: [] for key in seats}
        for index in range(2 + _PAIR_SAMPLES):
            slot = self._order.randrange(rig.slots)
            rig.refill(slot)
            keys = list(seats)
            self._order.shuffle(keys)
            for key in keys:
                rig.settle()
                self._flush()
                timing = seats[key].call(slot)
                if index >= 2:
                    gathered[key].append(timing)
        return gathered

    def _as_measurement(
        self, times: Sequence[Timing], speedup: Mapping[str, Interval], bound: str, floor_us: float
    ) -> Measurement:
        median = stats.median_interval([t.claimed_us for t in times])
        return Measurement(
            "precise", median, len(times), _PAIRS[0], dict(speedup), light.of(bound, floor_us, median.value), True,
            (self._caches(),),
        )  # fmt: skip

    def _caches(self) -> str:
        return "cold caches" if self._opened.cold else "hot caches"

    # verdicts

    def verify(self, candidate: Candidate, say: Say) -> Verified:
        """Trials on fresh inputs of every distribution, hold-out shapes, determinism, then a quick interleaved screen.

        Raises TrialFailed.
        """
        rig = self.rig()
        tally, own = Tally(), Tally()
        rig.new_model()
        holdouts = self._verify_holdouts(candidate, say)
        with self._seat(rig, candidate, candidate.built) as seat:
            seat.wait_ready(LOAD_S)
            for index in range(_OWN_TRIALS):
                slot = index % rig.slots
                rig.refill(slot)
                judged_call(rig, seat, slot, own)
            jitter = self._determinism(rig, seat, (_OWN_TRIALS - 1) % rig.slots, own)
            for distribution in rig.calibration.distributions:
                if distribution != OWN:
                    rig.refill(0, distribution)
                    judged_call(rig, seat, 0, tally, distribution)
            say("screening its time")
            baselines = {self._opened.baseline: self._warm_baseline(rig)}
            contest = Contest(seat, baselines, self._null(rig, candidate.contract))
            pair = run_pair(rig, contest, _SCREEN_SAMPLES, self._flush, own, self._order)
        ranking = self._opened.baseline
        ratio = stats.block_interval(_blocks(pair.baselines[ranking]), _blocks(pair.kernel))
        screen = self._measurement("screen", [pair], {ranking: ratio})
        verification = self._verification(rig, own, own.trials + tally.trials, holdouts, jitter)
        return Verified(verification, screen, _raw([pair]))

    def _verification(self, rig: Rig, own: Tally, trials: int, holdouts: str, jitter: float) -> Verification:
        policy = rig.calibration.policy
        limit = policy.limit(OWN)
        if jitter > 0:
            holdouts += f"; repeats differ by up to {jitter:.1e} of scale"
        return Verification(
            policy.name, trials, own.errors.rel_fro, limit.rel_fro, own.errors.max_abs, own.errors.max_scaled,
            limit.max_scaled, policy.label(own.errors, OWN), holdouts,
        )  # fmt: skip

    def _determinism(self, rig: Rig, seat: Seat, slot: int, tally: Tally) -> float:
        """Call once more on the same bytes: both answers must be right; how far they differ is kept."""
        earlier = rig.copy_outputs(slot)
        judged_call(rig, seat, slot, tally)
        jitter = rig.jitter(slot, earlier)
        if jitter > max(_JITTER_LIMIT, 2 * rig.calibration.policy.limit(OWN).max_scaled):
            raise TrialFailed(FailureKind.UNSTABLE, f"two calls on the same inputs differ by {jitter:.1e} of scale: a race?")
        return jitter

    def _verify_holdouts(self, candidate: Candidate, say: Say) -> str:
        if not candidate.holdouts and not candidate.specialised:
            return "none"
        for built in candidate.holdouts:
            say(f"hold-out shape {_shape(built.workload)}")
            rig = self._holdout_rig(built.workload)
            rig.new_model()
            tally = Tally()
            try:
                with self._seat(rig, candidate, built) as seat:
                    seat.wait_ready(LOAD_S)
                    for index in range(_HOLDOUT_TRIALS):
                        rig.refill(index % rig.slots)
                        judged_call(rig, seat, index % rig.slots, tally)
            except TrialFailed as error:
                reason = f"on hold-out shape {_shape(built.workload)}: {error.failure.reason}"
                raise TrialFailed(error.failure.kind, reason, error.log) from error
        done = f"{len(candidate.holdouts)}/{len(candidate.holdouts) + candidate.specialised}"
        return f"{done}, specialised" if candidate.specialised else done

    def measure(self, candidate: Candidate, say: Say) -> Measured:
        """Process pairs until the interval is tight enough. Raises TrialFailed when a timed call is wrong."""
        pairs = self._pairs(candidate, say)
        ratios = {
            name: stats.ratio_interval(
                [stats.pair_log_ratio(_blocks(p.baselines[name]), _blocks(p.kernel)) for p in pairs], self._claimable()
            )
            for name in pairs[0].baselines
        }
        measurement = self._measurement("precise", pairs, ratios)
        return Measured(measurement, _raw(pairs))

    def versus(self, candidate: Candidate, other: Candidate, say: Say) -> Measured:
        """The speedup of ``candidate`` over ``other``, both under full judgement, in fresh process pairs."""
        pairs = self._pairs(candidate, say, other)
        logs = [stats.pair_log_ratio(_blocks(p.baselines["other"]), _blocks(p.kernel)) for p in pairs]
        ratio = stats.ratio_interval(logs)
        return Measured(self._measurement("precise", pairs, {"other": ratio}), _raw(pairs))

    def _pairs(self, candidate: Candidate, say: Say, other: Candidate | None = None) -> list[PairTimes]:
        rig = self.rig()
        names = () if other is not None else tuple(dict.fromkeys((self._opened.baseline, *self._opened.others)))
        pairs: list[PairTimes] = []
        samples = _PAIR_SAMPLES
        while len(pairs) < _PAIRS[1]:
            say(f"process pair {len(pairs) + 1}")
            rig.new_model()
            with ExitStack() as stack:
                seats = {name: stack.enter_context(self._baseline_seat(rig, name)) for name in names}
                if other is not None:
                    seats["other"] = stack.enter_context(self._seat(rig, other, other.built, self._rivals))
                kernel = stack.enter_context(self._seat(rig, candidate, candidate.built))
                for seat in (kernel, *seats.values()):
                    seat.wait_ready(LOAD_S)
                contest = Contest(kernel, seats, self._null(rig, candidate.contract))
                pairs.append(run_pair(rig, contest, samples, self._flush, Tally(), self._order))
            slowest = statistics.median(t.claimed_us for t in pairs[0].kernel)
            samples = max(2, min(_PAIR_SAMPLES, int(_PATIENCE_US / _PAIRS[0] / max(slowest, 1.0))))
            if len(pairs) >= _PAIRS[0] and self._settled(pairs):
                break
        return pairs

    def _settled(self, pairs: Sequence[PairTimes]) -> bool:
        name = next(iter(pairs[0].baselines))
        ratio = stats.ratio_interval([stats.pair_log_ratio(_blocks(p.baselines[name]), _blocks(p.kernel)) for p in pairs])
        return _half_width(ratio) <= max(_ENOUGH, self._claimable())

    def _claimable(self) -> float:
        return _claim_floor(self._same) if self._same is not None else 0.0

    def _measurement(self, depth: str, pairs: Sequence[PairTimes], ratios: Mapping[str, Interval]) -> Measurement:
        times = [t for p in pairs for t in p.kernel]
        median = stats.median_interval([t.claimed_us for t in times])
        bound, floor_us, _ = light.floor(self.signature, self.peaks())
        sound = corroborated(pairs)
        conditions = [self._caches()]
        if self.device.kind == "cuda" and median.value < 0.8 * floor_us:
            sound = False
            conditions.append(f"faster than the device allows: {median.value:.1f} us against a floor of {floor_us:.1f} us")
        elif not sound:
            conditions.append("not corroborated: the judge's clock saw more time than the runner claims")
        if any(t.idle_us > 0.2 * t.claimed_us + 50 for t in times):
            sound = False
            conditions.append("the device was still busy after the kernel's last event")
        if not self.confined:
            conditions.append("no sandbox")
        return Measurement(
            depth, median, len(times), len(pairs), dict(ratios), light.of(bound, floor_us, median.value), sound,
            tuple(conditions),
        )  # fmt: skip

    # seats

    def _seat(self, rig: Rig, candidate: Candidate, built: Built, host: Host | None = None) -> Seat:
        artefact = [os.open(built.binary, os.O_RDONLY | os.O_CLOEXEC)] if built.binary else []
        scalars = self._module_call(rig) if candidate.contract == "module" else ()
        load, fds = self._load(
            rig, contract=candidate.contract, source=candidate.source, filename=candidate.name, tunables=candidate.tunables,
            plan=built.plan, scalars=scalars,
        )  # fmt: skip
        return Seat(host or self._candidates, load, [*fds, *artefact], seconds=CALL_S)

    def _baseline_seat(self, rig: Rig, name: str) -> Seat:
        load, fds = self._load(
            rig, contract="baseline", source=self._opened.problem.reference, filename="reference.py", baseline=name,
            settings=dict(rig.reference.workload.settings), scalars=self._module_call(rig),
        )  # fmt: skip
        seconds = CALL_S * 10 if name.startswith("compile") else CALL_S
        return Seat(self._baselines, load, fds, seconds=seconds, trusted=True)

    def _warm_baseline(self, rig: Rig) -> Seat:
        """One baseline process kept for all screens."""
        if self._screen_baseline is None or not self._screen_baseline.alive:
            self._screen_baseline = self._baseline_seat(rig, self._opened.baseline)
            self._screen_baseline.wait_ready(LOAD_S)
        return self._screen_baseline

    def _module_call(self, rig: Rig) -> tuple[Any, ...]:
        construction = Loaded(self._opened.problem, rig.reference.workload).construction()
        try:
            return (list(construction.positional), dict(construction.named), template_of(rig.reference.inputs(0)))
        except TypeError as error:
            name = self._opened.problem.name
            raise ProblemError(f"{name}: an argument cannot be handed to another process: {error}") from error

    def _load(self, rig: Rig, contract: str, **more: Any) -> tuple[Load, list[int]]:
        (inputs, input_fds), (outputs, output_fds) = rig.loans()
        load = Load(
            contract=contract, device=self._opened.device, slots=rig.layout.slots, inputs=inputs, outputs=outputs,
            threads=self.device.units, init_seed=rig.init_seed, cold=self._opened.cold, **more,
        )  # fmt: skip
        return load, [*input_fds, *output_fds]

    def _holdout_rig(self, workload: Workload) -> Rig:
        key = _shape(workload)
        if key not in self._holdout_rigs:
            reference = next(r for r in self.holdouts if _shape(r.workload) == key)
            calibration = calibrate(reference, self._opened.tolerance, stress=False)
            self._holdout_rigs[key] = Rig(reference, calibration, self._opened.device)
        return self._holdout_rigs[key]

    def _null(self, rig: Rig, contract: str) -> Seat:
        """A runner that does nothing through the same path: what a call costs beside the kernel."""
        kind = "module" if contract == "module" else "native"
        seat = self._nulls.get(kind)
        if seat is None or not seat.alive:
            load, fds = self._load(rig, "null", baseline=kind)
            seat = self._nulls[kind] = Seat(self._baselines, load, fds, seconds=CALL_S, trusted=True)
            seat.wait_ready(LOAD_S)
        return seat


def _blocks(times: Sequence[Timing]) -> list[list[float]]:
    """Each sample is a block of its own: baseline and kernel saw the same inputs one right after the other."""
    return [[t.claimed_us] for t in times]


def _half_width(interval: Interval) -> float:
    """Half the interval's width in logarithms; infinite for a single pair."""
    if interval.low <= 0 or not math.isfinite(interval.high):
        return math.inf
    return math.log(interval.high / interval.low) / 2


def _claim_floor(same: Interval) -> float:
    """The largest effect that the baseline shows against itself: nothing smaller is ever claimed."""
    return max(abs(math.log(same.low)), abs(math.log(same.high)))


def _shape(workload: Workload) -> str:
    return ", ".join(f"{k}={v:g}" for k, v in workload.settings.items())


def _raw(pairs: Sequence[PairTimes]) -> bytes:
    """All samples as JSON: a sceptic can compute every figure again."""
    rows = [
        {
            "kernel": [[t.claimed_us, t.wall_us, t.idle_us] for t in pair.kernel],
            "baselines": {name: [t.claimed_us for t in times] for name, times in pair.baselines.items()},
        }
        for pair in pairs
    ]
    return msgspec.json.encode({"unit": "us", "columns": ["claimed", "wall", "idle"], "pairs": rows})
