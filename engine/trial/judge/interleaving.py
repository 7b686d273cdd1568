"""Interleaved timing: baseline and kernel in different processes, on the same fresh inputs, in random order, then reversed.

A *sample* releases one set of secret inputs and calls every process on it. Before each call the judge poisons the outputs and
flushes the caches; after it the kernel is frozen and its outputs are copied at once. Every timed call is therefore also a
checked one, and a kernel cannot distinguish them. A *pair* is one process of each contestant, called for many samples. Imports
torch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.domain.model import FailureKind
from engine.domain.problem_format import FormatVerdict
from engine.trial.judge.call_order import CallOrder, UnannouncedCalls
from engine.trial.judge.call_times import CallHook, Timing
from engine.trial.judge.comparison import NO_ERROR, Errors
from engine.trial.judge.conditions import ConditionsMonitor, NoMonitor
from engine.trial.judge.contention import ContentionMonitor
from engine.trial.judge.failures import TrialFailed, blaming
from engine.trial.judge.perturbations import OWN
from engine.trial.judge.runner_client import RunnerClient
from engine.trial.judge.test_bed import Findings, TestBed
from engine.trial.judge.timing import (
    BY_JUDGES_CLOCK,
    KERNEL,
    WARM_UP,
    WARM_UP_AGAIN,
    PairTimes,
    columns,
    pair_times,
    undisturbed_rows,
    with_counted_times,
)
from engine.trial.judge.watch import Watch
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


@dataclass(slots=True)
class CheckTally:
    """The checks of all calls of one trial: their number and the worst errors."""

    trials: int = 0
    errors: Errors = NO_ERROR
    caveats: list[str] = field(default_factory=list)
    format_verdict: FormatVerdict | None = None

    def add(self, errors: Errors) -> None:
        self.trials += 1
        self.errors = self.errors.worst(errors)


@dataclass(frozen=True, slots=True)
class Contestants:
    """Who is called in every sample: the judged kernels (``kernel``, perhaps ``other``), baselines, the null kernel."""

    judged: Mapping[str, RunnerClient]
    baselines: Mapping[str, RunnerClient]
    nulls: Mapping[str, RunnerClient]
    """The null kernels by name (``timing.null_name``), one for each path that is used."""
    contracts: Mapping[str, str] = field(default_factory=dict)
    """The contracts of the judged kernels: under some of them the kernel's host code runs."""

    def everyone(self) -> dict[str, RunnerClient]:
        return {**self.judged, **self.baselines, **self.nulls}

    def judged_alone(self) -> Contestants:
        """Only the judged kernels: whose outputs count, and no times."""
        return replace(self, baselines={}, nulls={})

    @property
    def warm_up(self) -> int:
        """Calls that are not counted."""
        return WARM_UP_AGAIN if all(runner.has_run for runner in self.everyone().values()) else WARM_UP

    @property
    def by_judges_clock(self) -> bool:
        """Whether the judge's clock counts for the judged kernels."""
        return any(contract in BY_JUDGES_CLOCK for contract in self.contracts.values())


def judged_call(bed: TestBed, runner: RunnerClient, slot: int, tally: CheckTally, distribution: str = "own") -> Timing:
    """Poison, call, check. Raises TrialFailed when the output is wrong or a rule of the trial was broken."""
    bed.poison(slot)
    if runner.checks_gated:
        timing = _watched_gated_call(bed, runner, slot, lambda: None)
    else:
        watch = bed.watch(slot)
        bed.settle()
        timing = _watched(bed, watch, runner, RunKernel(slot))
    judge_outputs(bed.check(slot, distribution), tally, distribution)
    return timing


def _watched(
    bed: TestBed, watch: Watch, runner: RunnerClient, order: RunKernel, *others: CallHook, at_once: bool = True
) -> Timing:
    timing = runner.call(order, (*others, watch.of_runner(lambda: runner.delivered)), at_once=at_once)
    _receive_outputs(bed, watch, runner, order.slot)
    return timing


def _watched_gated_call(bed: TestBed, runner: RunnerClient, slot: int, flush: Callable[[], None]) -> Timing:
    """A gated call of a judged kernel; inputs are withdrawn before it and released within it."""
    watch = bed.read_only_watch(slot).of_runner(lambda: runner.delivered)
    bed.withdraw(slot)
    timing = runner.gated_call(slot, _releasing(bed, slot, flush), watch)
    _receive_outputs(bed, watch, runner, slot)
    return timing


def _receive_outputs(bed: TestBed, watch: Watch, runner: RunnerClient, slot: int) -> None:
    """Check that nothing was written after the call, and take a module's outputs from where it made them."""
    with unreadable_outputs_fail():
        if watch.outputs_changed():
            raise TrialFailed(FailureKind.REJECTED, "outputs were still being written after the call returned")
        receive_delivered(bed, runner, slot)


@contextmanager
def unreadable_outputs_fail() -> Iterator[None]:
    """A kernel whose outputs cannot be read has failed."""
    try:
        yield
    except OSError as error:
        raise TrialFailed(FailureKind.REJECTED, f"its output cannot be read: {error.strerror}") from error


def receive_delivered(bed: TestBed, runner: RunnerClient, slot: int) -> None:
    """Take a module's outputs from where it made them, and check that those of earlier calls that are held have stayed.

    Raises TrialFailed, OSError.
    """
    if runner.delivered is None:
        if runner.delivers:
            raise TrialFailed(FailureKind.REJECTED, "its reply does not say where its outputs are: did the kernel forge it?")
        return
    bed.receive(slot, runner.delivered)
    if runner.held.overwritten_by(runner.delivered, bed.outputs(slot), bed.reference.lent_outputs):
        raise TrialFailed(FailureKind.REJECTED, "overwrote the memory of an earlier call's output, which is still held")


def judge_outputs(findings: Findings, tally: CheckTally, distribution: str) -> None:
    """Add one check to the tally, or raise TrialFailed."""
    if findings.violation:
        raise TrialFailed(FailureKind.REJECTED, findings.violation)
    errors = findings.ruling.errors
    tally.add(errors)
    if findings.ruling.caveat:
        tally.caveats.append(findings.ruling.caveat)
    if not findings.ruling.passed:
        on = "" if distribution == "own" else f" on perturbed inputs ({distribution})"
        what = errors.flaw or (
            f"centred error {errors.rel_fro:.2e}, worst element {errors.max_scaled:.2e} of its scale, "
            f"largest absolute error {errors.max_abs:.2e}"
        )
        evidence = tuple(replace(one, inputs=distribution, call=tally.trials) for one in findings.ruling.evidence)
        raise TrialFailed(FailureKind.MISMATCH, f"call {tally.trials}{on}: {what}", evidence=evidence)


@dataclass(frozen=True, slots=True)
class PairSetup:
    """How samples are taken: the flush before each call, the contention and conditions monitors, the random order."""

    flush: CacheFlush
    contention: ContentionMonitor
    order: random.Random
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

    A few *unannounced* calls of the judged kernels at random places use inputs with another perturbation each (``perturbed`` of
    them) and are not counted as samples: being careful in a process's first calls only does not help. In them the order is
    sent before the runner is resumed, as in every call on a GPU. On a CPU that would add noise to every sample, because the
    threads of a team would just be waking up. There those on the problem's own inputs are timed beside the null kernel, and
    repeated too where they were disturbed: a kernel can disturb its own calls.
    """
    rows: list[dict[str, Timing]] = []
    audits: list[dict[str, Timing]] = []
    at_once: list[dict[str, Timing]] = []
    turns, audit_turns, alone_turns = (CallOrder(setup.order) for _ in range(3))
    warm_up = contest.warm_up
    wanted = warm_up + samples
    distributions, most = (bed.calibration.distributions, perturbed) if contest.judged else ((), 0)
    unannounced = UnannouncedCalls(setup.order, distributions, wanted, most)
    unannounced_tally = CheckTally(tally.trials)
    holds = setup.holds and not contest.by_judges_clock
    setup.monitor.begin()
    while (
        len(rows) < wanted
        or unannounced.remain
        or (len(undisturbed_rows(rows[warm_up:])) < samples and len(rows) < warm_up + _PATIENCE * samples)
    ):
        burst = setup.order.sample(range(bed.slots), min(bed.slots, max(wanted - len(rows), 2)))
        kinds = {slot: unannounced.next() for slot in burst}
        for slot, kind in kinds.items():
            bed.draw(slot, kind or OWN)
        taken: dict[int, list[tuple[str, Sequence[torch.Tensor]]]] = {}
        for slot, kind in kinds.items():
            bed.release(slot)
            audit = holds and _AUDITED * len(audits) < len(rows) - warm_up
            order = RunKernel(slot, _hold_us(rows[:warm_up], warm_up) if holds and not audit else 0.0)
            if kind == OWN and not setup.holds:
                compared = replace(contest, baselines={})
                row, taken[slot] = _sample(bed, compared, order, setup, unannounced.turns, at_once=True)
                at_once.append(row)
                unannounced.repeat_if(any(t.disturbed for t in row.values()))
                continue
            if kind is not None:
                _, taken[slot] = _sample(bed, contest.judged_alone(), order, setup, alone_turns, at_once=True)
                continue
            row, taken[slot] = _sample(bed, contest, order, setup, audit_turns if audit else turns, at_once=setup.holds)
            setup.monitor.sample()
            (audits if audit else rows).append(row)
        for slot, copies in taken.items():
            for name, outputs in copies:
                try:
                    kind = kinds[slot] or OWN
                    judge_outputs(bed.check(slot, kind, outputs), tally if kind == OWN else unannounced_tally, kind)
                except TrialFailed as failed:
                    wrong = name if failed.failure.kind is FailureKind.MISMATCH else KERNEL
                    failed.at_fault = _find_culprit(bed, contest, slot) or wrong
                    raise
    found = replace(
        pair_times(rows[warm_up:], samples),
        audits=columns(audits),
        at_once=columns(at_once),
        conditions=setup.monitor.end(),
        on_gpu=setup.holds,
    )
    return with_counted_times(found, contest.contracts, contest.baselines)


def _find_culprit(bed: TestBed, contest: Contestants, slot: int) -> str:
    """Which of several judged kernels fails when called alone; empty if none does.

    Memory is checked after all calls, and an input modified by one kernel makes the next one's outputs wrong.
    """
    for name, runner in contest.judged.items():
        for _ in range(_ALONE if len(contest.judged) > 1 else 0):
            bed.draw(slot)
            bed.release(slot)
            try:
                judged_call(bed, runner, slot, CheckTally())
            except TrialFailed:
                return name
    return ""


_ALONE = 2
"""Calls of each kernel alone, to find the one that failed."""
_PATIENCE = 3
"""Limit on samples, as a multiple of the wanted ones, to get enough undisturbed ones."""
_AUDITED = 2
"""Samples with the device held per sample without."""
_HOLDS_US = (1000.0, 200.0, 20_000.0)
"""Microseconds that the device is held: before the first measurement, minimum, maximum."""


def _hold_us(warm_ups: Sequence[Mapping[str, Timing]], wanted: int) -> float:
    """The same for every contestant: twice the slowest one's enqueue time in the last of the wanted warm-ups."""
    first, least, most = _HOLDS_US
    if len(warm_ups) < wanted:
        return first
    slowest = max(t.enqueue_us for t in warm_ups[-1].values())
    return min(max(2 * slowest + 100.0, least), most)


def _sample(
    bed: TestBed, contest: Contestants, order: RunKernel, setup: PairSetup, turns: CallOrder, *, at_once: bool
) -> tuple[dict[str, Timing], list[tuple[str, Sequence[torch.Tensor]]]]:
    """Call everyone once on one slot: timings, and copies of judged outputs taken before they can change."""
    row: dict[str, Timing] = {}
    copies: list[tuple[str, Sequence[torch.Tensor]]] = []
    everyone = contest.everyone()
    for name in turns.next(everyone):
        runner = everyone[name]
        judged = name in contest.judged
        if judged:
            bed.poison(order.slot)
        contention = setup.contention.for_process(runner.process)
        with blaming(name):
            if setup.holds and contest.by_judges_clock:
                timing = _gated(bed, runner, order.slot, setup, judged=judged)
            else:
                timing = _plain(bed, runner, order, setup, contention, judged=judged, at_once=at_once)
        disturbed = contention.disturbed(timing.wall_us)
        row[name] = replace(timing, disturbed=disturbed, after_us=setup.probe())
        if judged:
            copies.append((name, bed.copy_outputs(order.slot)))
            with blaming(name):
                if len(contest.judged) > 1 and (flaw := bed.trespass(order.slot)):
                    raise TrialFailed(FailureKind.REJECTED, flaw)
    return row, copies


def _plain(
    bed: TestBed, runner: RunnerClient, order: RunKernel, setup: PairSetup, contention: ContentionMonitor, *, judged: bool,
    at_once: bool,
) -> Timing:  # fmt: skip
    watch = bed.watch(order.slot) if judged else None
    bed.settle()
    setup.flush()
    if watch is None:
        return runner.call(order, (contention,), at_once=at_once)
    return _watched(bed, watch, runner, order, contention, at_once=at_once)


def _gated(bed: TestBed, runner: RunnerClient, slot: int, setup: PairSetup, *, judged: bool) -> Timing:
    if judged:
        return _watched_gated_call(bed, runner, slot, setup.flush.enqueue)
    bed.withdraw(slot)
    return runner.gated_call(slot, _releasing(bed, slot, setup.flush.enqueue), None)


def _releasing(bed: TestBed, slot: int, flush: Callable[[], None]) -> Callable[[], None]:
    def release() -> None:
        bed.release_inputs(slot)
        flush()

    return release
