"""Interleaved timing: baseline and kernel in different processes, on the same fresh inputs, in an order that alternates.

One *sample* releases one set of secret inputs: the outputs are poisoned, the caches flushed by the judge, one process is
called, the caches flushed again, the other is called; the kernel's output is judged while the kernel is frozen. So every timed
call is also a checked one, and no call can be told from another. One *pair* is one process of each.
Imports torch.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine.domain.model import FailureKind
from engine.trial.rig import Findings, Rig
from engine.trial.seat import Seat, Timing, TrialFailed
from engine.trial.tolerance import NO_ERROR, Errors

WARM_UP = 2
"""Calls of a fresh process that are checked but not counted: first touch of pages, lazy loading."""


class CacheFlush:
    """Drives the operands out of the CPU's caches by walking twice the last level; on a GPU the runner's stopwatch does it."""

    def __init__(self, device: str, cache_bytes: int) -> None:
        size = 2 * cache_bytes if device == "cpu" else 0
        self._buffer = torch.zeros(max(size, 1) // 8 + 1, dtype=torch.int64) if size else None

    def __call__(self) -> None:
        if self._buffer is not None:
            self._buffer.add_(1)


@dataclass(slots=True)
class Tally:
    """What the checks of all calls of one trial came to."""

    trials: int = 0
    errors: Errors = NO_ERROR

    def add(self, errors: Errors) -> None:
        self.trials += 1
        self.errors = self.errors.worst(errors)


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Timings of one process pair: baseline name → its samples, and the kernel's own, index by index."""

    baselines: Mapping[str, Sequence[Timing]]
    kernel: Sequence[Timing]
    null: Sequence[Timing]
    """A call that does nothing, through the same path, in every sample."""


@dataclass(slots=True)
class _Gathered:
    baselines: dict[str, list[Timing]] = field(default_factory=dict)
    kernel: list[Timing] = field(default_factory=list)
    null: list[Timing] = field(default_factory=list)


def judged_call(rig: Rig, seat: Seat, slot: int, tally: Tally, distribution: str = "own") -> Timing:
    """Poison, call, freeze, judge. Raises TrialFailed when the output is wrong or a rule of the trial was broken."""
    rig.poison(slot)
    seat.thaw()
    timing = seat.call(slot)
    seat.freeze()
    judge_outputs(rig.check(slot, distribution), tally, distribution)
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
class Contest:
    """Who is called in every sample: the kernel under judgement, what it is compared with, and the null kernel."""

    kernel: Seat
    baselines: Mapping[str, Seat]
    null: Seat


def run_pair(
    rig: Rig, contest: Contest, samples: int, flush: CacheFlush, tally: Tally, order: random.Random
) -> PairTimes:
    """Interleave one kernel process with one process of each baseline. Raises TrialFailed for the kernel's faults."""
    gathered = _Gathered({name: [] for name in contest.baselines})
    for index in range(WARM_UP + samples):
        slot = order.randrange(rig.slots)
        rig.refill(slot)
        null = contest.null.call(slot)
        contestants: list[str | None] = [None, *contest.baselines]
        order.shuffle(contestants)
        for name in contestants:
            if name is None:
                rig.poison(slot)
                flush()
                contest.kernel.thaw()
                timing = contest.kernel.call(slot)
                contest.kernel.freeze()
            else:
                rig.settle()
                flush()
                timing = contest.baselines[name].call(slot)
            if index >= WARM_UP:
                (gathered.kernel if name is None else gathered.baselines[name]).append(timing)
        if index >= WARM_UP:
            gathered.null.append(null)
        judge_outputs(rig.check(slot), tally, "own")
    return PairTimes(gathered.baselines, gathered.kernel, gathered.null)


_SHARE = 0.2
_SLACK_US = 20.0


def corroborated(pairs: Sequence[PairTimes]) -> bool:
    """Whether the judge's clock bears out the claimed times.

    What a call costs beside the kernel is known from the null kernel in the same samples. Where the kernel's round trips cost
    more than that by a fifth of the claim (and the null kernel's own jitter), time was hidden from the claim.
    """
    kernel = [t for p in pairs for t in p.kernel]
    null = [t.wall_us - t.claimed_us for p in pairs for t in p.null]
    claimed = statistics.median(t.claimed_us for t in kernel)
    beside = statistics.median(t.wall_us - t.claimed_us for t in kernel)
    usual = statistics.median(null)
    jitter = statistics.median(abs(n - usual) for n in null)
    return beside <= usual + _SHARE * claimed + 3 * jitter + _SLACK_US
