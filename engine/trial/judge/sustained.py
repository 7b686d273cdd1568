"""The sustained regime: calls back to back over rotating operands, in turns A-B-B-A of baseline and kernel. Imports torch.

On a CPU no call that counts gets inputs that its process has seen: before each burst that counts they are drawn again, a burst
has at most as many calls as there are slots, and one call of each, drawn when it has ended, is checked; so are calls whose
outputs look as if they had been left out (``Watch.left_out``). Reusing earlier results gains nothing.

On a GPU a burst must last longer, for the power limit to settle, and inputs come back. In each turn the outputs of two calls
are checked: one of the burst on fresh inputs, one of the last burst. Before each burst that counts a few elements of the inputs
are swapped: a kernel that knows inputs by samples, and leaves or copies an earlier output, is wrong. What one that reads them
all could gain by reusing earlier results shows between the two bursts (``sustained_times.skipped_work``).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.domain.model import FailureKind
from engine.trial.judge.failures import TrialFailed, blaming
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.interleaving import Contestants, PairSetup
from engine.trial.judge.judged_calls import CheckTally, judge_outputs, receive_delivered, still_written, unreadable_outputs_fail
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.runners.watch import Watch
from engine.trial.judge.test_bed import TestBed
from engine.trial.judge.timing.call_order import CallOrder
from engine.trial.judge.timing.call_times import CallHook, During
from engine.trial.judge.timing.conditions import UnderLoad
from engine.trial.judge.timing.pair_times import KERNEL, NATIVE, NULL, null_name, path_of
from engine.trial.judge.timing.sustained_times import (
    Burst,
    ContestantTurn,
    Pace,
    SustainedPair,
    is_lowered,
    is_steady,
    is_unthrottled,
)
from engine.trial.messages import RunKernel

_TURNS = 2
"""Turns of each contestant in a process pair: A-B-B-A."""
_NULL_CALLS = 5
"""Empty calls, whose median is the cost of an order and its reply."""
_DRAWN_BYTES = 128 << 20
"""On a CPU, bytes of the slots whose inputs are drawn before an empty call: with larger operands a burst has fewer calls."""
_ROUGH = 2
"""Calls of the burst that shows how long a call takes: of a burst, no cache is flushed, and a module may report new memory."""
_READ_AT = 0.5
"""When clock and power are read, as a share of a burst's expected duration."""


_Read = tuple[Burst, UnderLoad | None]
"""A burst, with a reading of the device meanwhile."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """The bursts before those that count."""

    bursts: int
    last: Burst
    settled: bool
    is_lowered: bool
    """Whether they ended because a clock is lowered, for which their bursts are too short."""
    pace: Pace


class SustainedTrial:
    """Takes the turns of one process pair on one test bed."""

    def __init__(self, bed: TestBed, contest: Contestants, setup: PairSetup, pace: Pace) -> None:
        self._bed = bed
        self._contest = contest
        self._setup = setup
        self._pace = pace
        self._tally = CheckTally()
        self._cost_us = 0.0
        self._is_trusted = False
        """Whether the clock of the runner whose turn it is counts."""
        self._rng: random.Random = setup.rng

    def run(self, moving_us: float) -> SustainedPair:
        """One process pair. Raises TrialFailed if a kernel's outputs are wrong."""
        for slot in range(self._bed.slots):
            self._bed.draw(slot)
            self._bed.release(slot)
            self._bed.let_go(slot)
        self._bed.settle()  # an empty call that waits for the judge's own work would seem to cost as much
        self._setup.other_work.begin()
        contestants = {**self._contest.judged, **self._contest.baselines}
        nulls = {name: self._null_of(name) for name in contestants}
        costs_us = {null: self._empty_call_us(null) for null in sorted(set(nulls.values()))}
        rest_us = self._setup.probe()
        turns: dict[str, list[ContestantTurn]] = {}
        order = CallOrder(self._rng)
        for number in range(1, _TURNS + 1):
            for name in order.next(contestants):
                self._cost_us, self._is_trusted = costs_us[nulls[name]], self._trusts(name)
                with blaming(name):
                    turns.setdefault(name, []).append(self._turn(name, contestants[name], last=number == _TURNS))
        pair = self._charged(SustainedPair(turns, moving_us, on_gpu=self._setup.holds, rest_us=rest_us))
        return pair if self._setup.other_work.is_present() else pair.without_marks()

    def _charged(self, pair: SustainedPair) -> SustainedPair:
        """The pair, with what the path costs a module: as much as it costs a baseline, whose clock is trusted."""
        baseline = next(iter(self._contest.baselines), None)
        if baseline is None or path_of(self._contest.contracts.get(KERNEL, "")) == NATIVE:
            return pair
        return pair.charged(KERNEL, baseline, self._bed.slots)

    def _null_of(self, name: str) -> str:
        """The null kernel whose calls cost as much as this contestant's; a baseline's, as much as the kernel's."""
        contracts = self._contest.contracts
        return null_name(path_of(contracts[name]), contracts) if name in contracts else NULL

    def _empty_call_us(self, null: str) -> float:
        """What an order and its reply take beside the calls, by the judge's clock, after the judge has used the device.

        On a CPU after inputs were drawn, as before each burst that counts: without, 0.16 ms instead of 0.34.
        """
        timings = []
        drawn = max(1, _DRAWN_BYTES * self._bed.slots // max(1, self._bed.operand_bytes)) if not self._pace.repeats else 0
        for _ in range(_NULL_CALLS):
            if drawn:
                self._draw_again(0, drawn)
            self._setup.probe()
            timings.append(self._contest.nulls[null].call(RunKernel(0, calls=2)))
        return statistics.median(t.wall_us - (0.0 if self._setup.holds else t.claimed_us) for t in timings)

    def _trusts(self, name: str) -> bool:
        """Whether the runner's clock counts: one clock counts for all judged kernels of a pair."""
        return name not in self._contest.judged or not self._contest.by_judges_clock

    def _turn(self, name: str, runner: RunnerClient, *, last: bool) -> ContestantTurn:
        judged = name in self._contest.judged
        bed, pace, first = self._bed, self._pace, self._rng.randrange(self._bed.slots)
        bed.turn_to(name)
        bed.settle()
        few = max(1, min(bed.slots, pace.calls(self._rough(runner, first))))
        self._draw_again(first, max(few, _ROUGH))
        self._poison(range(bed.slots) if judged else ())
        fresh, _ = self._burst(runner, first, few, checked=judged)
        before = self._settle(runner, first, fresh, pace)
        if not pace.repeats:
            return ContestantTurn(fresh, self._drawn(runner, first, before, judged=judged), before.bursts, before.settled)
        found = [] if before.is_lowered else self._counted(runner, first, before, judged=judged)
        if pace.lowered is not None and (before.is_lowered or any(is_lowered(reading) for _, reading in found)):
            before = self._settle(runner, first, before.last, pace.lowered)
            found = self._counted(runner, first, before, judged=judged)
        late = self._fresh(runner, first, few, judged=judged) if last else None
        again = self._seen(runner, first, few) if last and judged else None
        readings = tuple(reading for _, reading in found if reading is not None)
        return ContestantTurn(fresh, tuple(burst for burst, _ in found), before.bursts, before.settled, readings, late, again)

    def _rough(self, runner: RunnerClient, first: int) -> Burst:
        """A burst that shows how long a call takes; once more where it is slow: the first call of a process loads code."""
        rough, _ = self._burst(runner, first, _ROUGH)
        return rough if self._pace.calls(rough) >= self._bed.slots else self._burst(runner, first, _ROUGH)[0]

    def _settle(self, runner: RunnerClient, first: int, fresh: Burst, pace: Pace) -> _Settled:
        """Bursts until the time of a call has settled, or as many as the pace allows; fewer if a clock is lowered."""
        calls, last = pace.calls(fresh), fresh
        most = pace.within(pace.most, fresh.most_us * calls)
        call_us: list[float] = []
        readings: list[UnderLoad | None] = []
        done = lowered = False
        while len(call_us) < most and not (done or lowered):
            last, reading = self._burst(runner, first, calls, calls * last.call_us if call_us else 0.0)
            call_us.append(last.call_us)
            readings.append(reading)
            calls = pace.calls(last)
            done = is_steady(call_us, pace) or is_unthrottled(call_us, readings, pace)
            lowered = pace.lowered is not None and is_lowered(reading)
        return _Settled(len(call_us), last, done or most < pace.least, lowered, pace)

    def _counted(self, runner: RunnerClient, first: int, before: _Settled, *, judged: bool) -> list[_Read]:
        """The bursts that count, on inputs of those before but for a few elements; the outputs of the last one are checked."""
        pace, last = before.pace, before.last
        calls, found = pace.calls(last), list[_Read]()
        wanted = pace.within(pace.counted, last.wall_us)
        for number in range(1, wanted + 1):
            self._swap_elements()
            self._setup.probe()  # the device changes from the judge to the runner, as before an empty call
            checked = judged and number == wanted
            found.append(self._burst(runner, first, calls, calls * last.call_us, checked=checked, probed=True))
        return found

    def _drawn(self, runner: RunnerClient, first: int, before: _Settled, *, judged: bool) -> tuple[Burst, ...]:
        """The bursts that count, each on inputs drawn for it.

        One with less than half of the calls that it has time for does not count: a kernel that is slow where inputs come back
        would choose how much of a call's time is subtracted for the order.
        """
        pace, slots, last = self._pace, self._bed.slots, before.last
        wanted = pace.within(pace.counted, last.wall_us)
        found, whole = list[Burst](), list[Burst]()
        while len(whole) < wanted and len(found) < 2 * wanted:
            last = self._fresh(runner, first, min(pace.calls(last), slots), judged=judged)
            found.append(last)
            whole += [last] if 2 * last.calls >= min(pace.calls(last), slots) else []
        return tuple(whole or found)

    def _fresh(self, runner: RunnerClient, first: int, calls: int, *, judged: bool) -> Burst:
        """Calls on inputs that the process has not seen, of which one is checked. Raises TrialFailed.

        A baseline's are drawn too: after a draw, calls of a softmax of 0.9 ms took 10% longer on a CPU than without.
        """
        self._draw_again(first, calls)
        self._poison(self._slots(first, calls) if judged else ())
        burst, _ = self._burst(runner, first, calls, checked=judged)
        return burst

    def _seen(self, runner: RunnerClient, first: int, calls: int) -> Burst:
        """The calls of the burst before on the same inputs, which are copied to lent memory again."""
        self._release_again(first, calls)
        self._poison(self._slots(first, calls))
        return self._burst(runner, first, calls)[0]

    def _poison(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._bed.poison(slot)
        self._bed.settle()

    def _slots(self, first: int, calls: int) -> list[int]:
        """The slots of the last calls of a burst, each slot once, in the order of these calls."""
        last = min(calls, self._bed.slots)
        return [(first + call) % self._bed.slots for call in range(calls - last, calls)]

    def _release_again(self, first: int, calls: int) -> None:
        """Copy the same inputs to lent memory again, for the slots of so many calls."""
        for slot in self._slots(first, calls):
            self._bed.release(slot)
            self._bed.let_go(slot)

    def _draw_again(self, first: int, calls: int) -> None:
        """Draw new inputs for the slots of so many calls."""
        for slot in self._slots(first, calls):
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

    def _burst(
        self, runner: RunnerClient, first: int, calls: int, expected_us: float = 0.0, *, checked: bool = False,
        probed: bool = False,
    ) -> _Read:  # fmt: skip
        """One burst, with a reading of the device halfway through where its duration is known.

        ``checked``: the outputs of one of its calls are. ``probed``: so is whether the device is free afterwards. Raises
        TrialFailed.
        """
        found: list[UnderLoad | None] = []
        on_gpu = self._setup.holds
        during = During(_READ_AT * expected_us / 1e6, lambda: found.append(self._setup.monitor.under_load()))
        contention = self._setup.contention.for_process(runner.process)
        slots = self._slots(first, calls)
        watch = self._bed.watch(*slots).of_runner(lambda: runner.delivered)
        hooks: Sequence[CallHook] = () if on_gpu else (contention, watch) if checked else (contention,)
        order = RunKernel(first % self._bed.slots, calls=calls)
        timing = runner.call(order, hooks, during=during if on_gpu and expected_us else None)
        after_us = self._setup.probe() if probed else 0.0
        timing = replace(timing, disturbed=not on_gpu and contention.disturbed(timing.wall_us), after_us=after_us)
        if checked and (flaw := contention.overuse):
            raise TrialFailed(FailureKind.REJECTED, flaw)
        if checked:
            self._check(runner, slots, watch if watch in hooks else None)
        return Burst.timed(calls, timing, self._cost_us, trusted=self._is_trusted), next(iter(found), None)

    def _check(self, runner: RunnerClient, slots: Sequence[int], watch: Watch | None) -> None:
        """Check the outputs of one call of the last burst, drawn now, and those of calls that were perhaps left out.

        ``slots``: those of its calls. Raises TrialFailed.
        """
        bed, drawn, delivered = self._bed, self._rng.randrange(len(slots)), runner.delivered
        suspects: Sequence[int] = ()
        with unreadable_outputs_fail():
            if watch is not None:
                if watch.outputs_changed():
                    raise still_written()
                suspects = watch.left_out([bed.poisons_of(slot) for slot in slots])
            if delivered is not None:
                for call in suspects:
                    bed.receive(slots[call], delivered.of_call(call, len(slots)))
                runner.delivered = delivered.of_call(drawn, len(slots))
            receive_delivered(bed, runner, slots[drawn])
        for call in {drawn, *suspects}:
            judge_outputs(bed.check(slots[call], OWN, bed.take_outputs(slots[call], alone=True)), self._tally, OWN)
