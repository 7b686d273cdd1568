"""Interleaved timing: baseline and kernel in different processes, on the same fresh inputs, in an order that alternates.

One *sample* releases one set of secret inputs: the outputs are poisoned, the caches flushed by the judge, one process is
called, the caches flushed again, the other is called; the kernel is frozen and its output taken away at once. So every timed
call is also a checked one, and no call can be told from another. One *pair* is one process of each.
Imports torch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.domain.model import FailureKind
from engine.trial.distributions import OWN
from engine.trial.interference import Interference
from engine.trial.rig import Findings, Rig, Watch
from engine.trial.seat import Attendant, Seat, Timing, TrialFailed, blaming
from engine.trial.surroundings import Surroundings, Unwatched
from engine.trial.times import KERNEL, NULL, WARM_UP, PairTimes, charged, clean, columns, together
from engine.trial.tolerance import NO_ERROR, Errors


class CacheFlush:
    """Drives the operands out of the caches by walking twice the last level. On a GPU the runner's stopwatch does it once more,
    for what a module's own copies brought back; that one is in the candidate's hands.

    On a CPU in one thread, so that nothing of the judge's is still winding down when the kernel starts.
    """

    def __init__(self, device: str, cache_bytes: int) -> None:
        words = 2 * cache_bytes // 8 + 1
        self._buffer = np.zeros(words) if device == "cpu" else None
        on_gpu = device not in ("cpu", HOT)
        self._on_device = torch.zeros(words, dtype=torch.float64, device=device) if on_gpu else None

    def __call__(self) -> None:
        if self._buffer is not None:
            np.add(self._buffer, 1.0, out=self._buffer)
        if self._on_device is not None:
            self._on_device.add_(1.0)
            torch.cuda.synchronize()


HOT = "hot"
"""In place of a device: caches are left as the last call left them."""


class Probe:
    """Whether the device is free once a runner has been stopped: how long a piece of work of no size takes the judge, in
    microseconds. What a kernel left running would slow the next contestant's call, and nobody stops a device by a signal."""

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
class Tally:
    """What the checks of all calls of one trial came to."""

    trials: int = 0
    errors: Errors = NO_ERROR

    def add(self, errors: Errors) -> None:
        self.trials += 1
        self.errors = self.errors.worst(errors)


@dataclass(frozen=True, slots=True)
class Contest:
    """Who is called in every sample: kernels under judgement (``kernel``, perhaps ``other``), baselines, the null kernel."""

    judged: Mapping[str, Seat]
    baselines: Mapping[str, Seat]
    null: Seat
    contracts: Mapping[str, str] = field(default_factory=dict)
    """Of those under judgement: under which of them foreign host code runs."""

    def everyone(self) -> dict[str, Seat]:
        return {**self.judged, **self.baselines, NULL: self.null}


def judged_call(rig: Rig, seat: Seat, slot: int, tally: Tally, distribution: str = "own") -> Timing:
    """Poison, call, judge. Raises TrialFailed when the output is wrong or a rule of the trial was broken."""
    rig.poison(slot)
    watch = rig.watch(slot)
    rig.settle()
    timing = _watched(watch, seat, slot)
    judge_outputs(rig.check(slot, distribution), tally, distribution)
    return timing


def _watched(watch: Watch, seat: Seat, slot: int, hold_us: float = 0.0, *others: Attendant, at_once: bool = True) -> Timing:
    timing = seat.call(slot, (*others, watch), hold_us, at_once=at_once)
    if watch.outputs_changed():
        raise TrialFailed(FailureKind.REJECTED, "its outputs were still being written after it had answered")
    return timing


def judge_outputs(findings: Findings, tally: Tally, distribution: str) -> None:
    """Add one check to the tally, or raise TrialFailed."""
    if findings.violation:
        raise TrialFailed(FailureKind.REJECTED, findings.violation)
    errors = findings.ruling.errors
    tally.add(errors)
    if not findings.ruling.passed:
        on = "" if distribution == "own" else f" on inputs bent by {distribution!r}"
        what = errors.flaw or (
            f"error {errors.rel_fro:.2e} (centred, Frobenius), worst element {errors.max_scaled:.2e} of its scale, "
            f"{errors.max_abs:.2e} absolute"
        )
        raise TrialFailed(FailureKind.MISMATCH, f"call {tally.trials}{on}: {what}")


@dataclass(frozen=True, slots=True)
class Conditions:
    """How samples are taken: the flush before each call, who watches for interference, the order of chance."""

    flush: CacheFlush
    interference: Interference
    order: random.Random
    probe: Probe
    holds: bool = False
    """Whether the device is held before a call, so that the time between its events is its own: on a GPU."""
    surroundings: Surroundings = field(default_factory=Unwatched)


def run_pair(rig: Rig, contest: Contest, samples: int, conditions: Conditions, tally: Tally) -> PairTimes:
    """Interleave one process of every contestant. Raises TrialFailed for the faults of those under judgement.

    Samples are taken in bursts over the slots: inputs for all are drawn, then, one slot after the other, released, everyone is
    called on them and judged outputs are copied away before anything else may run; then all are judged. The order of the calls
    is one of chance, and for the next inputs the same one backwards: of any two, A-B is followed by B-A, so that neither drift
    nor what a call leaves behind for the next one favours either.
    So the device is not doing float64 work right before a timed call, and no kernel sees the inputs of two calls at once.
    Disturbed samples are taken again, within reason. At a few places of chance those under judgement are called on bent inputs
    instead, where there are any: nobody gets by with being careful in the first calls of a process only. There they have their
    order before they are woken, as on a GPU in every call; on a CPU the threads of a team, just woken, would blur each sample.
    """
    rows: list[dict[str, Timing]] = []
    audits: list[dict[str, Timing]] = []
    at_once: list[dict[str, Timing]] = []
    turns, audit_turns = Turns(conditions.order), Turns(conditions.order)
    wanted = WARM_UP + samples
    unannounced = Unannounced(conditions.order, rig.calibration.distributions, wanted, tally.trials)
    conditions.surroundings.begin()
    while len(rows) < wanted or (len(clean(rows)) < samples and len(rows) < WARM_UP + _PATIENCE * samples):
        burst = conditions.order.sample(range(rig.slots), min(rig.slots, max(wanted - len(rows), 2)))
        kinds = {slot: unannounced.next() for slot in burst}
        for slot, kind in kinds.items():
            rig.draw(slot, kind or OWN)
        taken: dict[int, list[tuple[str, Sequence[torch.Tensor]]]] = {}
        for slot, kind in kinds.items():
            rig.release(slot)
            audit = conditions.holds and _AUDITED * len(audits) < len(rows) - WARM_UP
            hold_us = _hold_us(rows) if conditions.holds and not audit else 0.0
            if kind is not None:
                few = replace(contest, baselines={})
                row, taken[slot] = _sample(rig, few, slot, conditions, unannounced.turns, hold_us, at_once=True)
                at_once += [] if conditions.holds else [row]
                continue
            row, taken[slot] = _sample(rig, contest, slot, conditions, audit_turns if audit else turns, hold_us)
            conditions.surroundings.sample()
            (audits if audit else rows).append(row)
        for slot, copies in taken.items():
            for name, outputs in copies:
                try:
                    kind = kinds[slot] or OWN
                    judge_outputs(rig.check(slot, kind, outputs), tally if kind == OWN else unannounced.tally, kind)
                except TrialFailed as failed:
                    wrong = name if failed.failure.kind is FailureKind.MISMATCH else KERNEL
                    failed.at_fault = _culprit(rig, contest, slot) or wrong
                    raise
    found = replace(
        together(rows, samples), audits=columns(audits), at_once=columns(at_once), seen=conditions.surroundings.end()
    )
    return charged(found, contest.contracts, contest.baselines)


def _culprit(rig: Rig, contest: Contest, slot: int) -> str:
    """Who of several under judgement fails when it is called alone: memory is looked at when all were called, and a changed
    input makes the next one's outputs wrong. Empty where none does."""
    for name, seat in contest.judged.items():
        for _ in range(_ALONE if len(contest.judged) > 1 else 0):
            rig.draw(slot)
            rig.release(slot)
            try:
                judged_call(rig, seat, slot, Tally())
            except TrialFailed:
                return name
    return ""


_ALONE = 2
"""Calls of each alone, to find out who of several it was."""
_PATIENCE = 3
"""Times the wanted samples that may be taken to get enough undisturbed ones."""
_AUDITED = 2
"""Samples with the device held for each one without."""
_HOLDS_US = (1000.0, 200.0, 20_000.0)
"""How long the device is held before anything is known of a call, at least and at most."""


def _hold_us(rows: Sequence[Mapping[str, Timing]]) -> float:
    """The same for everyone: twice what the slowest takes to enqueue its call, seen in the last warm-up."""
    first, least, most = _HOLDS_US
    if len(rows) < WARM_UP:
        return first
    slowest = max(t.enqueue_us for t in rows[WARM_UP - 1].values())
    return min(max(2 * slowest + 100.0, least), most)


class Unannounced:
    """Which calls of a pair are made on bent inputs, or on its own where there is no bent distribution to judge on."""

    def __init__(self, chance: random.Random, distributions: Sequence[str], calls: int, judged: int) -> None:
        """``calls`` are made at least; ``judged`` were before, for the words in which a failure is told."""
        bent = [name for name in distributions if name != OWN]
        some = chance.sample(bent, min(_BENT, len(bent), calls)) if bent else [OWN] * min(_BENT, calls)
        self._left: list[str | None] = [*some, *[None] * (calls - len(some))]
        chance.shuffle(self._left)
        self.turns = Turns(chance)
        self.tally = Tally(judged)

    def next(self) -> str | None:
        """What the inputs of the next call are to be drawn from; ``None`` for a call that is no such."""
        return self._left.pop() if self._left else None


_BENT = 3
"""Calls on bent inputs in each pair, each bent in another way."""


class Turns:
    """Who is called first: an order of chance, then the same one backwards, then another of chance. A-B-B-A, B-A-A-B, …"""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._backwards: list[str] = []

    def next(self, names: Iterable[str]) -> list[str]:
        """The order of the next sample, over the same names every time."""
        if self._backwards:
            order, self._backwards = self._backwards, []
            return order
        order = list(names)
        self._chance.shuffle(order)
        self._backwards = order[::-1]
        return order


def _sample(
    rig: Rig, contest: Contest, slot: int, conditions: Conditions, turns: Turns, hold_us: float, *, at_once: bool = False
) -> tuple[dict[str, Timing], list[tuple[str, Sequence[torch.Tensor]]]]:
    """Call everyone once on one slot: timings, and copies of the judged outputs taken before they can change."""
    row: dict[str, Timing] = {}
    copies: list[tuple[str, Sequence[torch.Tensor]]] = []
    everyone = contest.everyone()
    for name in turns.next(everyone):
        seat = everyone[name]
        judged = name in contest.judged
        if judged:
            rig.poison(slot)
        watch = rig.watch(slot) if judged else None
        rig.settle()
        conditions.flush()
        beside = conditions.interference.of(seat.process)
        with blaming(name):
            if watch is None:
                timing = seat.call(slot, (beside,), hold_us, at_once=at_once or conditions.holds)
            else:
                timing = _watched(watch, seat, slot, hold_us, beside, at_once=at_once or conditions.holds)
        disturbed = beside.disturbed(timing.wall_us)
        row[name] = replace(timing, disturbed=disturbed, after_us=conditions.probe())
        if judged:
            copies.append((name, rig.copy_outputs(slot)))
            with blaming(name):
                if len(contest.judged) > 1 and (flaw := rig.trespass(slot)):
                    raise TrialFailed(FailureKind.REJECTED, flaw)
    return row, copies
