"""The sustained regime: calls back to back over rotating operands, in turns A-B-B-A of baseline and kernel. Imports torch.

Fresh inputs are drawn for a process pair; every contestant gets them. In each turn the outputs of two calls are checked: one of
the burst on fresh inputs, one of the last burst. Before each burst that counts a few elements of the inputs are swapped: a
kernel that knows inputs by samples, and leaves or copies an earlier output, is wrong. What one that reads them all could gain
by reusing earlier results shows between the two bursts (``sustained_times.skipped_work``).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

from engine.trial.judge.call_order import CallOrder
from engine.trial.judge.call_times import CallHook, During
from engine.trial.judge.conditions import UnderLoad
from engine.trial.judge.failures import blaming
from engine.trial.judge.interleaving import Contestants, PairSetup
from engine.trial.judge.judged_calls import CheckTally, judge_outputs, receive_delivered, unreadable_outputs_fail
from engine.trial.judge.perturbations import OWN
from engine.trial.judge.runner_client import RunnerClient
from engine.trial.judge.sustained_times import Burst, ContestantTurn, Pace, SustainedPair, is_steady
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing import NULL
from engine.trial.messages import RunKernel

_TURNS = 2
_NULL_CALLS = 5
_ROUGH = 2
"""Calls of the burst that shows how long a call takes: of a burst, no cache is flushed, and a module may report new memory."""
_READ_AT = 0.5
"""When clock and power are read, as a share of a burst's expected duration."""


class SustainedTrial:
    """Takes the turns of one process pair on one test bed."""

    def __init__(self, bed: TestBed, contest: Contestants, setup: PairSetup, pace: Pace) -> None:
        self._bed = bed
        self._contest = contest
        self._setup = setup
        self._pace = pace
        self._tally = CheckTally()
        self._cost_us = 0.0
        self._rng: random.Random = setup.order

    def run(self, moving_us: float) -> SustainedPair:
        """One process pair. Raises TrialFailed if a kernel's outputs are wrong."""
        for slot in range(self._bed.slots):
            self._bed.draw(slot)
            self._bed.release(slot)
            self._bed.let_go(slot)
        self._cost_us = self._empty_call_us()
        turns: dict[str, list[ContestantTurn]] = {}
        order = CallOrder(self._rng)
        contestants = {**self._contest.judged, **self._contest.baselines}
        for number in range(1, _TURNS + 1):
            for name in order.next(contestants):
                with blaming(name):
                    turns.setdefault(name, []).append(self._turn(name, contestants[name], last=number == _TURNS))
        return SustainedPair(turns, moving_us, on_gpu=self._setup.holds)

    def _empty_call_us(self) -> float:
        """What an order and its reply take beside the calls, by the judge's clock."""
        null = self._contest.nulls[NULL]
        timings = [null.call(RunKernel(0, calls=2), at_once=self._setup.holds) for _ in range(_NULL_CALLS)]
        return statistics.median(t.wall_us - (0.0 if self._setup.holds else t.claimed_us) for t in timings)

    def _turn(self, name: str, runner: RunnerClient, *, last: bool) -> ContestantTurn:
        judged = name in self._contest.judged
        bed, pace, first = self._bed, self._pace, self._rng.randrange(self._bed.slots)
        for slot in range(bed.slots) if judged else ():
            bed.poison(slot)
        bed.settle()
        rough, _ = self._burst(runner, first, _ROUGH)
        self._draw_again(first, _ROUGH)
        few = max(1, min(bed.slots, pace.calls(rough)))
        fresh, _ = self._burst(runner, first, few)
        if judged:
            self._check(name, runner, first, few)
        calls = pace.calls(fresh)
        before: list[Burst] = []
        most = pace.within(pace.most, fresh.most_us * calls)
        while len(before) < most and not is_steady([one.call_us for one in before], pace):
            before.append(self._burst(runner, first, calls)[0])
            calls = pace.calls(before[-1])
        settled = is_steady([one.call_us for one in before], pace) or most < pace.least
        counted: list[Burst] = []
        readings: list[UnderLoad] = []
        for _ in range(pace.within(pace.counted, before[-1].wall_us)):
            self._swap_elements()
            burst, reading = self._burst(runner, first, calls, before[-1].wall_us)
            counted.append(burst)
            readings += [reading] if reading is not None else []
        if judged:
            self._check(name, runner, first, calls)
        late = self._late(name, runner, first, few) if last else None
        return ContestantTurn(fresh, tuple(counted), len(before), settled, tuple(readings), late)

    def _late(self, name: str, runner: RunnerClient, first: int, calls: int) -> Burst:
        """Calls on inputs drawn again, while the clock is still that of the bursts. Raises TrialFailed."""
        judged = name in self._contest.judged
        self._draw_again(first, calls)
        for slot in range(self._bed.slots) if judged else ():
            self._bed.poison(slot)
        self._bed.settle()
        burst, _ = self._burst(runner, first, calls)
        if judged:
            self._check(name, runner, first, calls)
        return burst

    def _draw_again(self, first: int, calls: int) -> None:
        """New inputs for the slots of so many calls."""
        for slot in {(first + call) % self._bed.slots for call in range(calls)}:
            self._bed.refill(slot)
            self._bed.let_go(slot)
        self._bed.settle()

    def _swap_elements(self) -> None:
        """In every slot, for every contestant alike: what a kernel still knows of earlier calls is wrong in a few elements.

        Not where only the problem's own inputs count: their structure could be lost.
        """
        for slot in range(self._bed.slots) if self._bed.calibration.judges_perturbed else ():
            self._bed.swap_elements(slot)
        self._bed.settle()

    def _burst(self, runner: RunnerClient, first: int, calls: int, expected_us: float = 0.0) -> tuple[Burst, UnderLoad | None]:
        """One burst, with a reading of the device halfway through where its duration is known."""
        found: list[UnderLoad | None] = []
        on_gpu = self._setup.holds
        during = During(_READ_AT * expected_us / 1e6, lambda: found.append(self._setup.monitor.under_load()))
        contention = self._setup.contention.for_process(runner.process)
        hooks: Sequence[CallHook] = () if on_gpu else (contention,)
        order = RunKernel(first % self._bed.slots, calls=calls)
        timing = runner.call(order, hooks, at_once=on_gpu, during=during if on_gpu and expected_us else None)
        timing = replace(timing, disturbed=not on_gpu and contention.disturbed(timing.wall_us))
        return Burst.timed(calls, timing, self._cost_us), next(iter(found), None)

    def _check(self, name: str, runner: RunnerClient, first: int, calls: int) -> None:
        """Check the outputs of one call of the last burst: of a module the last one's, else of any. Raises TrialFailed."""
        bed = self._bed
        slot = (first + calls - 1) % bed.slots
        if runner.delivered is None and self._contest.contracts.get(name) != "module":
            slot = (first + self._rng.randrange(min(calls, bed.slots))) % bed.slots
        with unreadable_outputs_fail():
            receive_delivered(bed, runner, slot)
        judge_outputs(bed.check(slot, OWN, bed.copy_outputs(slot)), self._tally, OWN)
