"""Interleaved timing: baseline and kernel in different processes, on the same fresh inputs, in an order that alternates.

One *sample* releases one set of secret inputs: the outputs are poisoned, the caches flushed by the judge, one process is
called, the caches flushed again, the other is called; the kernel is frozen and its output taken away at once. So every timed
call is also a checked one, and no call can be told from another. One *pair* is one process of each.
Imports torch.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.domain.model import FailureKind
from engine.trial.interference import Interference
from engine.trial.rig import Findings, Rig, Watch
from engine.trial.seat import Seat, Timing, TrialFailed
from engine.trial.tolerance import NO_ERROR, Errors

WARM_UP = 2
"""Calls of a fresh process that are checked but not counted: first touch of pages, lazy loading."""


class CacheFlush:
    """Drives the operands out of the CPU's caches by walking twice the last level; on a GPU the runner's stopwatch does it.

    One thread, so that nothing of the judge's is still winding down when the kernel starts.
    """

    def __init__(self, device: str, cache_bytes: int) -> None:
        self._buffer = np.zeros(2 * cache_bytes // 8 + 1) if device == "cpu" else None

    def __call__(self) -> None:
        if self._buffer is not None:
            np.add(self._buffer, 1.0, out=self._buffer)


@dataclass(slots=True)
class Tally:
    """What the checks of all calls of one trial came to."""

    trials: int = 0
    errors: Errors = NO_ERROR

    def add(self, errors: Errors) -> None:
        self.trials += 1
        self.errors = self.errors.worst(errors)


KERNEL = "kernel"
NULL = "null"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Contest:
    """Who is called in every sample: kernels under judgement (``kernel``, perhaps ``other``), baselines, the null kernel."""

    judged: Mapping[str, Seat]
    baselines: Mapping[str, Seat]
    null: Seat

    def everyone(self) -> dict[str, Seat]:
        return {**self.judged, **self.baselines, NULL: self.null}


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Timings of one process pair by contestant, index by index.

    ``null`` is a call that does nothing, by the same path: of those, the ones that nothing disturbed, whatever befell the
    others of their sample (a disturbed one would make room for time that a kernel hides), or all where those are too few.
    """

    times: Mapping[str, Sequence[Timing]]
    disturbed: int = 0
    """Samples set aside because something else had the processor."""
    calm: bool = True
    """Whether there were enough undisturbed calls, and enough undisturbed null calls to hold them against."""

    @property
    def kernel(self) -> Sequence[Timing]:
        return self.times[KERNEL]

    def claims(self, name: str) -> list[list[float]]:
        """Claimed times, each a block of its own: contestants saw the same inputs one right after the other."""
        return [[t.claimed_us] for t in self.times[name]]


def judged_call(rig: Rig, seat: Seat, slot: int, tally: Tally, distribution: str = "own") -> Timing:
    """Poison, call, judge. Raises TrialFailed when the output is wrong or a rule of the trial was broken."""
    rig.poison(slot)
    watch = rig.watch(slot)
    rig.settle()
    timing = _watched(watch, seat, slot)
    judge_outputs(rig.check(slot, distribution), tally, distribution)
    return timing


def _watched(watch: Watch, seat: Seat, slot: int) -> Timing:
    timing = seat.call(slot, watch)
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


def run_pair(rig: Rig, contest: Contest, samples: int, conditions: Conditions, tally: Tally) -> PairTimes:
    """Interleave one process of every contestant. Raises TrialFailed for the faults of those under judgement.

    Samples are taken in bursts over the slots: inputs for all are drawn, then, one slot after the other, released, everyone is
    called on them in an order of chance and judged outputs are copied away before anything else may run; then all are judged.
    So the device is not doing float64 work right before a timed call, and no kernel sees the inputs of two calls at once.
    Disturbed samples are taken again, within reason.
    """
    rows: list[dict[str, Timing]] = []
    wanted = WARM_UP + samples
    while len(rows) < wanted or (len(_clean(rows)) < samples and len(rows) < WARM_UP + _PATIENCE * samples):
        burst = conditions.order.sample(range(rig.slots), min(rig.slots, max(wanted - len(rows), 2)))
        for slot in burst:
            rig.draw(slot)
        taken: dict[int, list[Sequence[torch.Tensor]]] = {}
        for slot in burst:
            rig.release(slot)
            row, taken[slot] = _sample(rig, contest, slot, conditions)
            rows.append(row)
        for slot, copies in taken.items():
            for outputs in copies:
                judge_outputs(rig.check(slot, outputs=outputs), tally, "own")
    return together(rows, samples)


def together(rows: Sequence[Mapping[str, Timing]], samples: int) -> PairTimes:
    """What the samples of one pair come to, warm-ups first: the undisturbed ones where there are enough of them."""
    counted, clean = rows[WARM_UP:], _clean(rows)
    fewest = min(samples, _FEWEST)
    kept = clean if len(clean) >= fewest else counted
    times = {name: [row[name] for row in kept] for name in kept[0]}
    quiet = [row[NULL] for row in counted if not row[NULL].disturbed]
    calm = kept is clean and len(quiet) >= fewest
    times[NULL] = quiet if calm else [row[NULL] for row in counted]
    return PairTimes(times, len(counted) - len(clean), calm)


_PATIENCE = 3
"""Times the wanted samples that may be taken to get enough undisturbed ones."""
_FEWEST = 3
"""Undisturbed samples that are better than all samples."""


def _clean(rows: Sequence[Mapping[str, Timing]]) -> list[Mapping[str, Timing]]:
    return [row for row in rows[WARM_UP:] if not any(t.disturbed for name, t in row.items() if name != NULL)]


def _sample(
    rig: Rig, contest: Contest, slot: int, conditions: Conditions
) -> tuple[dict[str, Timing], list[Sequence[torch.Tensor]]]:
    """Call everyone once on one slot: timings, and copies of the judged outputs taken before they can change."""
    row: dict[str, Timing] = {}
    copies: list[Sequence[torch.Tensor]] = []
    contestants = list(contest.everyone().items())
    conditions.order.shuffle(contestants)
    for name, seat in contestants:
        judged = name in contest.judged
        if judged:
            rig.poison(slot)
        watch = rig.watch(slot) if judged else None
        rig.settle()
        conditions.flush()
        conditions.interference.begin()
        timing = seat.call(slot) if watch is None else _watched(watch, seat, slot)
        row[name] = replace(timing, disturbed=conditions.interference.disturbed(timing.wall_us))
        if judged:
            copies.append(rig.copy_outputs(slot))
    return row, copies


_SHARE = 0.1
_SLACK_US = 20.0


def corroborated(pairs: Sequence[PairTimes]) -> bool:
    """Whether the judge's clock bears out the claimed times of the kernel."""
    return hidden_us(pairs) <= 0


def hidden_us(pairs: Sequence[PairTimes]) -> float:
    """Microseconds by which the kernel's round trips cost more than can be explained; not above nought where all is explained.

    What a call costs beside the kernel is known from the null kernel in the same samples; a tenth of the claim and the null
    kernel's own jitter may be on top. Medians are compared, and beside other work, which strikes calls at random and hides
    time as well as it seems to show some, lower quartiles.
    """
    calm = all(p.calm for p in pairs)
    kernel = [t for p in pairs for t in p.kernel]
    null = [t.wall_us - t.claimed_us for p in pairs for t in p.times[NULL]]
    claimed = statistics.median(t.claimed_us for t in kernel)
    beside = _centre([t.wall_us - t.claimed_us for t in kernel], calm=calm)
    usual = _centre(null, calm=calm)
    jitter = statistics.median(abs(n - usual) for n in (null if calm else sorted(null)[: len(null) // 2 + 1]))
    return beside - (usual + _SHARE * claimed + 3 * jitter + _SLACK_US)


def _centre(values: Sequence[float], *, calm: bool) -> float:
    return statistics.median(values) if calm else sorted(values)[len(values) // 4]
