"""Interleaved timing: baseline and kernel in different processes, on the same fresh inputs, in random order, then reversed.

A *sample* releases one set of secret inputs and calls every process on it. Before each call the judge poisons the outputs and
flushes the caches; after it the kernel is frozen and its outputs are copied at once. Every timed call is therefore also a
checked one, and a kernel cannot distinguish them. A *pair* is one process of each contestant, called for many samples. Imports
torch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.domain.model import FailureKind
from engine.trial.judge.failures import TrialFailed, blaming
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.judged_calls import (
    CheckTally,
    judge_outputs,
    judged_call,
    poison_for,
    releasing,
    watched,
    watched_gated_call,
)
from engine.trial.judge.outputs.taken_outputs import Taken
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing.call_order import CallOrder, PerturbedCalls
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.conditions import ConditionsMonitor, NoMonitor
from engine.trial.judge.timing.contention import ContentionMonitor, OtherWork
from engine.trial.judge.timing.pair_times import (
    BY_JUDGES_CLOCK,
    KERNEL,
    SLOW_SAMPLES,
    WARM_UP,
    WARM_UP_AGAIN,
    PairTimes,
    columns,
    is_slow,
    pair_times,
    undisturbed_rows,
    with_counted_times,
    without_marks,
)
from engine.trial.messages import RunKernel


class CacheFlush:
    """Evicts the operands from the caches by writing twice the size of the last-level cache.

    On a GPU the runner's stopwatch flushes again, to evict what a module's own copies loaded; a candidate can tamper with that
    flush. On a CPU a single thread flushes: no other thread of the judge is still active when the kernel starts.
    """

    def __init__(self, device: str, cache_bytes: int) -> None:
        words = 2 * cache_bytes // 8 + 1
        self._buffer = np.zeros(words) if device == "cpu" else None
        on_gpu = device not in ("cpu", HOT)
        self._on_device = torch.zeros(words, dtype=torch.float64, device=device) if on_gpu else None

    def enqueue(self) -> None:
        """On a GPU, without waiting for it."""
        if self._on_device is not None:
            self._on_device.add_(1.0)

    def __call__(self) -> None:
        if self._buffer is not None:
            np.add(self._buffer, 1.0, out=self._buffer)
        if self._on_device is not None:
            self._on_device.add_(1.0)
            torch.cuda.synchronize()


HOT = "hot"
"""In place of a device: caches are not flushed."""


class Probe:
    """Time of a trivial operation of the judge on the device after a runner was stopped, in microseconds.

    It shows whether the device is free: signals do not stop a GPU, and what a kernel left running would slow the next call.
    """

    def __init__(self, device: str) -> None:
        self._word = torch.zeros(1, device=device) if device != "cpu" else None

    def __call__(self) -> float:
        if self._word is None:
            return 0.0
        start = time.perf_counter_ns()
        self._word.fill_(1.0)
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / 1e3


@dataclass(frozen=True, slots=True)
class Contestants:
    """Who is called in every sample: the judged kernels (``kernel``, perhaps ``other``), baselines, the null kernel."""

    judged: Mapping[str, RunnerClient]
    baselines: Mapping[str, RunnerClient]
    nulls: Mapping[str, RunnerClient]
    """The null kernels by name (``pair_times.null_name``), one for each path that is used."""
    contracts: Mapping[str, str] = field(default_factory=dict)
    """The contracts of the judged kernels: under some of them the kernel's host code runs."""

    def everyone(self) -> dict[str, RunnerClient]:
        return {**self.judged, **self.baselines, **self.nulls}

    def judged_alone(self) -> Contestants:
        """Only the judged kernels: whose outputs count, and no times."""
        return replace(self, baselines={}, nulls={})

    def without_baselines(self) -> Contestants:
        """The judged kernels and the null kernels: the judge's clock is compared on them alone."""
        return replace(self, baselines={})

    @property
    def warm_up(self) -> int:
        """Calls that are not counted."""
        return WARM_UP_AGAIN if all(runner.has_run for runner in self.everyone().values()) else WARM_UP

    @property
    def by_judges_clock(self) -> bool:
        """Whether the judge's clock counts for the judged kernels."""
        return any(contract in BY_JUDGES_CLOCK for contract in self.contracts.values())


@dataclass(frozen=True, slots=True)
class PairSetup:
    """How samples are taken: the flush before each call, the contention and conditions monitors, the random numbers."""

    flush: CacheFlush
    contention: ContentionMonitor
    other_work: OtherWork
    rng: random.Random
    probe: Probe
    holds: bool = False
    """Whether the device is held before a call, which keeps host time out of event times: on a GPU."""
    monitor: ConditionsMonitor = field(default_factory=NoMonitor)


def run_pair(
    bed: TestBed, contest: Contestants, samples: int, setup: PairSetup, tally: CheckTally, perturbed: int = 3
) -> PairTimes:
    """Interleave one process of every contestant. Raises TrialFailed for faults of the judged kernels.

    Samples are taken in bursts over the slots: inputs for all slots are drawn; then, slot by slot, they are released, every
    contestant is called, and judged outputs are copied before anything else runs; at the end all copies are checked. The device
    does no float64 work right before a timed call, and no kernel sees the inputs of two calls at once. The order of calls is
    random, then reversed for the next inputs (ABBA): neither drift nor after-effects favour a contestant. Disturbed samples are
    repeated, within limits.

    A few calls of the judged kernels at random places use inputs with another perturbation each (``perturbed`` of them) and are
    not counted as samples: being careful in a process's first calls only does not help.
    """
    return _PairRun(bed, contest, samples, setup, tally, perturbed).run()


_Outputs = list[tuple[str, Taken]]
"""The outputs of each judged kernel in one call."""


class _PairRun:
    """One pair, while its samples are taken."""

    def __init__(
        self, bed: TestBed, contest: Contestants, samples: int, setup: PairSetup, tally: CheckTally, perturbed: int
    ) -> None:
        self._bed, self._contest, self._setup, self._tally = bed, contest, setup, tally
        self._samples = samples
        self._rows: list[dict[str, Timing]] = []
        """Warm-ups first."""
        self._audits: list[dict[str, Timing]] = []
        self._turns, self._audit_turns, self._alone_turns = (CallOrder(setup.rng) for _ in range(3))
        self._warm_up = contest.warm_up
        self._wanted = self._warm_up + samples
        self._is_shortened, self._alone = False, 0
        distributions, most = (bed.calibration.distributions, perturbed) if contest.judged else ((), 0)
        self._perturbed_calls = PerturbedCalls(setup.rng, distributions, self._wanted, most)
        self._perturbed_tally = CheckTally(tally.trials)
        self._holds = setup.holds and not contest.by_judges_clock
        self._audits_calls = self._holds and bool(contest.judged)

    def run(self) -> PairTimes:
        """Take samples until there are enough. Raises TrialFailed."""
        self._setup.monitor.begin()
        self._setup.other_work.begin()
        while self._lacks_samples():
            self._burst()
        rows = self._rows if self._setup.other_work.is_present() else without_marks(self._rows)
        found = replace(
            pair_times(rows[self._warm_up :], self._samples),
            audits=columns(self._audits),
            conditions=self._setup.monitor.end(),
            on_gpu=self._setup.holds,
        )
        return with_counted_times(found, self._contest.contracts, self._contest.baselines)

    def _lacks_samples(self) -> bool:
        if len(self._rows) < self._wanted or self._perturbed_calls.remain or self._lacks_audits():
            return True
        if len(self._rows) >= self._warm_up + _PATIENCE * self._samples:
            return False
        few = len(undisturbed_rows(self._rows[self._warm_up :])) < self._samples
        return few and self._setup.other_work.is_present()

    def _lacks_audits(self) -> bool:
        """Whether all samples are taken, and not enough audits to know what they vary by."""
        if not (self._audits_calls and len(self._rows) >= self._wanted):
            return False
        return len(self._audits) < _FEWEST_AUDITS and not self._is_shortened

    def _burst(self) -> None:
        """Draw inputs for some slots, call everyone on each, then check all outputs."""
        bed, rng = self._bed, self._setup.rng
        burst = rng.sample(range(bed.slots), min(bed.slots, max(self._wanted - len(self._rows), 2)))
        kinds = {slot: self._perturbed_calls.next() for slot in burst}
        for slot, kind in kinds.items():
            bed.draw(slot, kind or OWN, partly=rng.random() < 0.5)
        taken: dict[int, _Outputs] = {}
        for slot, kind in kinds.items():
            if self._is_shortened and self._has_enough(kind):
                continue
            bed.release(slot)
            taken[slot] = self._call(slot) if kind is None else self._call_alone(slot)
        for slot, each in taken.items():
            for name, outputs in each:
                self._check(slot, kinds[slot] or OWN, name, outputs)

    def _call(self, slot: int) -> _Outputs:
        """A sample, or an audit: a call without the device held."""
        audit = self._is_audit()
        turns = self._audit_turns if audit else self._turns
        contest = self._contest.without_baselines() if audit else self._contest
        row, taken = self._take(contest, self._request(slot), turns)
        self._setup.monitor.sample()
        (self._audits if audit else self._rows).append(row)
        if len(self._rows) == _SHOWN and not audit and is_slow(row, self._contest.baselines):
            self._shorten()
        return taken

    def _shorten(self) -> None:
        """Make fewer calls: each takes seconds."""
        self._warm_up, self._samples, self._is_shortened = 1, min(self._samples, SLOW_SAMPLES), True
        self._wanted = self._warm_up + self._samples
        self._perturbed_calls.keep_at_most(1)

    def _has_enough(self, kind: str | None) -> bool:
        """Whether a shortened pair needs no further call on such inputs."""
        return self._alone >= 1 if kind is not None else len(self._rows) >= self._wanted

    def _call_alone(self, slot: int) -> _Outputs:
        """A call of the judged kernels only, on perturbed inputs: it is no sample."""
        self._alone += 1
        return self._take(self._contest.judged_alone(), self._request(slot), self._alone_turns)[1]

    def _is_audit(self) -> bool:
        """Whether the device is not held in the next call, for comparison. Baselines are trusted."""
        is_due = _AUDITED * len(self._audits) < len(self._rows) - self._warm_up
        return (self._audits_calls and is_due) or self._lacks_audits()

    def _request(self, slot: int) -> RunKernel:
        held = self._holds and not self._is_audit()
        return RunKernel(slot, _hold_us(self._rows[: self._warm_up], self._warm_up) if held else 0.0)

    def _take(self, contest: Contestants, request: RunKernel, turns: CallOrder) -> tuple[dict[str, Timing], _Outputs]:
        return _sample(self._bed, contest, request, self._setup, turns)

    def _check(self, slot: int, kind: str, name: str, outputs: Taken) -> None:
        """Judge the outputs of one kernel in one call. Raises TrialFailed with the kernel at fault."""
        self._bed.turn_to(name)
        tally = self._tally if kind == OWN else self._perturbed_tally
        try:
            judge_outputs(self._bed.check(slot, kind, outputs), tally, kind)
        except TrialFailed as failed:
            wrong = name if failed.failure.kind is FailureKind.MISMATCH else KERNEL
            failed.at_fault = _find_culprit(self._bed, self._contest, slot) or wrong
            raise


def _find_culprit(bed: TestBed, contest: Contestants, slot: int) -> str:
    """Which of several judged kernels fails when called alone; empty if none does.

    Memory is checked after all calls, and an input modified by one kernel makes the next one's outputs wrong.
    """
    for name, runner in contest.judged.items():
        bed.turn_to(name)
        for _ in range(_ALONE if len(contest.judged) > 1 else 0):
            bed.draw(slot)
            bed.release(slot)
            try:
                judged_call(bed, runner, slot, CheckTally())
            except TrialFailed:
                return name
    return ""


_SHOWN = 2
"""Samples after which a slow problem is known: the first call may load libraries or compile."""
_ALONE = 2
"""Calls of each kernel alone, to find the one that failed."""
_PATIENCE = 3
"""Limit on samples, as a multiple of the wanted ones, to get enough undisturbed ones."""
_AUDITED = 2
"""Samples with the device held per sample without."""
_FEWEST_AUDITS = 3
"""Audits of a pair at least: one says nothing of what they vary by. Where a suite's screens had one on each workload, 5 of 8
honest kernels were doubted on an H200."""
_HOLDS_US = (1000.0, 200.0, 100_000.0)
"""Microseconds that the device is held: before the first measurement, minimum, maximum."""


def _hold_us(warm_ups: Sequence[Mapping[str, Timing]], wanted: int) -> float:
    """The same for every contestant: twice the slowest one's enqueue time in the last of the wanted warm-ups."""
    first, least, most = _HOLDS_US
    if len(warm_ups) < wanted:
        return first
    slowest = max(t.enqueue_us for t in warm_ups[-1].values())
    return min(max(2 * slowest + 100.0, least), most)


def _sample(
    bed: TestBed, contest: Contestants, request: RunKernel, setup: PairSetup, turns: CallOrder
) -> tuple[dict[str, Timing], _Outputs]:
    """Call everyone once on one slot: timings, and judged outputs, taken before they can change."""
    row: dict[str, Timing] = {}
    found: _Outputs = []
    everyone = contest.everyone()
    for name in turns.next(everyone):
        runner = everyone[name]
        judged = name in contest.judged
        bed.turn_to(name)
        if judged:
            poison_for(bed, runner, request.slot, alone=len(contest.judged) == 1)
        contention = setup.contention.for_process(runner.process)
        with blaming(name):
            if setup.holds and contest.by_judges_clock:
                timing = _gated(bed, runner, request.slot, setup, judged=judged)
            else:
                timing = _plain(bed, runner, request, setup, contention, judged=judged)
        disturbed = contention.disturbed(timing.wall_us)
        if judged and (flaw := contention.overuse):
            with blaming(name):
                raise TrialFailed(FailureKind.REJECTED, flaw)
        row[name] = replace(timing, disturbed=disturbed, after_us=setup.probe())
        if judged:
            found.append((name, bed.take_outputs(request.slot, alone=len(contest.judged) == 1)))
            with blaming(name):
                if len(contest.judged) > 1 and (flaw := bed.trespass(request.slot)):
                    raise TrialFailed(FailureKind.REJECTED, flaw)
    return row, found


def _plain(
    bed: TestBed, runner: RunnerClient, request: RunKernel, setup: PairSetup, contention: ContentionMonitor, *, judged: bool
) -> Timing:
    bed.renew(request.slot)
    watch = bed.watch(request.slot) if judged else None
    bed.settle()
    setup.flush()
    return runner.call(request, (contention,)) if watch is None else watched(bed, watch, runner, request, contention)


def _gated(bed: TestBed, runner: RunnerClient, slot: int, setup: PairSetup, *, judged: bool) -> Timing:
    if judged:
        return watched_gated_call(bed, runner, slot, setup.flush.enqueue)
    # Read as a kernel's outputs are, though nobody looks: the device gets the same work during every call.
    watch = bed.watch(slot)
    bed.withdraw(slot)
    return runner.gated_call(slot, releasing(bed, slot, setup.flush.enqueue), watch)
