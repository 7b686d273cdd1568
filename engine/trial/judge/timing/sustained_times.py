"""The times of bursts: calls back to back, by the clock that counts. Pure arithmetic, in microseconds. No torch.

A *burst* is one order for many calls. A *turn* is one contestant's bursts: one on inputs that its process has not seen, then
until the time of a call has settled, then those that count. On a CPU each of these has inputs of its own; on a GPU they come
back, and in the last turn there is one more burst on inputs drawn again, and of a kernel the same once more on these. Each
contestant has two turns in a process pair, A-B-B-A.

The clock of a trusted runner counts: of baselines, and of kernels without host code. It excludes the order and its reply. For
other kernels the judge's clock counts, less what those cost on the same path (``charged``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from engine.domain import stats
from engine.domain.model import Interval
from engine.domain.regimes import ClockAndPower
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.conditions import UnderLoad
from engine.trial.judge.timing.pair_times import KERNEL, REPORTED, busy_after

_LEAST_US = 0.1
"""The least time of a burst that is counted."""
_MOST_CALLS = 20_000
"""Calls of one burst."""
_FEWEST = 2
"""With fewer undisturbed bursts in a turn, all count; fewer on fresh inputs are no evidence."""
_FRESH_SHARE, _FRESH_US = 0.5, 100.0
"""What calls on fresh inputs, before all others, may take longer: a share of a call's time, and microseconds for the burst."""
_MOST_CONTEXT_US = 500.0
"""Drawing gigabytes between two bursts was seen to add 330 µs to the next one on an H200."""
_COLD_TIMES = 3.0
"""Times the operands' own time that cold caches may add to a call on fresh inputs."""
_LATE_SHARE, _LATE_COLD_TIMES = 0.15, 1.0
"""The same for the calls at the clock of the bursts: they differ less."""
_BLATANT_TIMES = 2.0
"""Calls on fresh inputs that take so many times what is allowed are evidence, not only a doubt."""
_IN_RUNNER = 0.5
"""Share of an order's cost that falls into the runner's process, where a kernel could save it: of 0.4 ms of a module on a CPU
0.22 ms were between order and first call, and between last call and reply."""
_RESOLVED_TIMES = 20.0
"""A time whose error is so many times as large is not resolved."""
_HOST_SHARE = 0.97
"""Calls are host-bound if enqueuing a burst takes more than this share of its time on the device."""


@dataclass(frozen=True, slots=True)
class Unthrottled:
    """What is enough where the power limit has not lowered a clock: what still changes then is noise of the host."""

    least: int
    steady: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long bursts are and how many there are, by kind of device."""

    burst_us: float
    """Wanted duration of a burst."""
    least: int
    """Fewest bursts before the time of a call can have settled."""
    most: int
    """Bursts after which it is counted unsettled."""
    counted: int
    budget_us: float
    """Bursts that take longer than this together are fewer, but at least two."""
    steady: float
    """Change of the median, as a share, that counts as settled."""
    repeats: bool = True
    """Whether inputs come back in bursts that count. Otherwise these have at most as many calls as there are slots."""
    unthrottled: Unthrottled | None = None
    """What is enough while no clock is lowered."""
    lowered: Pace | None = None
    """The pace once one is. In the pause between two bursts a clock rises again, and falls within a longer one."""

    def calls(self, last: Burst) -> int:
        """Calls of the burst after ``last``."""
        return max(1, min(_MOST_CALLS, round(self.burst_us / last.most_us)))

    def within(self, bursts: int, burst_us: float) -> int:
        """So many bursts, or as many as the budget allows."""
        return max(2, min(bursts, int(self.budget_us / max(burst_us, 1.0))))

    def shared(self, workloads: int) -> Pace:
        """The pace on each workload of a suite."""
        few = max(1, min(workloads, 4))
        lowered = self.lowered and self.lowered.shared(workloads)
        return replace(self, burst_us=self.burst_us / few, budget_us=self.budget_us / few, lowered=lowered)


PACES = {
    "cuda": Pace(40e3, 6, 16, 4, 1e6, 0.004, unthrottled=Unthrottled(5, 0.02), lowered=Pace(250e3, 2, 4, 2, 1e6, 0.05)),
    "cpu": Pace(10e3, 4, 12, 5, 0.3e6, 0.03, repeats=False),
}
"""A GPU's power limit takes about 0.1 s to lower the clock: at least 0.2 s of load come before the time counts. On an H200
eager's matmul_fp16 took 190 µs in bursts of 40 ms, and 219 µs in the third second without a pause. At the limit the clock
swings: bursts of 250 ms differed by 6%."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Calls back to back."""

    calls: int
    wall_us: float
    """By the judge's clock, from the order to the reply."""
    claimed_us: float
    """By the runner's clock, until the device is idle."""
    enqueue_us: float
    disturbed: bool = False
    cost_us: float = 0.0
    """What an order and its reply take beside the calls."""
    trusted: bool = False
    """Whether the runner's clock counts."""
    after_us: float = 0.0
    """Time of the judge's next operation on the device, right after the reply; 0 if not taken."""

    @classmethod
    def timed(cls, calls: int, timing: Timing, cost_us: float, *, trusted: bool = False) -> Burst:
        """A burst from the timing of its order."""
        claimed = timing.claimed_us + timing.idle_us
        return cls(
            calls, timing.wall_us, claimed, timing.enqueue_us, timing.disturbed, cost_us, trusted, timing.after_us
        )  # fmt: skip

    @property
    def judged_us(self) -> float:
        """By the judge's clock, less the cost; no less than the runner claims."""
        return max(_LEAST_US, self.wall_us - self.cost_us, self.claimed_us)

    @property
    def call_us(self) -> float:
        """The time of one call."""
        return (max(_LEAST_US, self.claimed_us) if self.trusted else self.judged_us) / self.calls

    @property
    def most_us(self) -> float:
        """The most that one call can have taken: a short burst may take less than its order and reply usually do."""
        return max(_LEAST_US, self.wall_us, self.claimed_us) / self.calls


@dataclass(frozen=True, slots=True)
class ContestantTurn:
    """One contestant's bursts."""

    fresh: Burst
    """On inputs that its process has not seen, before the others."""
    counted: tuple[Burst, ...]
    before: int = 0
    """Bursts until it had settled."""
    settled: bool = True
    readings: tuple[UnderLoad, ...] = ()
    late: Burst | None = None
    """On inputs drawn again after the counted bursts, at the clock that those have left."""
    again: Burst | None = None
    """The same once more on the same inputs: what calls take after a pause where results could be reused."""

    @property
    def quiet(self) -> Sequence[Burst]:
        """The undisturbed bursts that count, or all if those are too few."""
        quiet = [one for one in self.counted if not one.disturbed]
        return quiet if len(quiet) >= _FEWEST else self.counted

    @property
    def call_us(self) -> float:
        """The time of one call: the median over the bursts that count."""
        return statistics.median(one.call_us for one in self.quiet)

    def changed(self, change: Callable[[Burst], Burst]) -> ContestantTurn:
        """The same turn with each burst changed."""
        late, again = (None if one is None else change(one) for one in (self.late, self.again))
        return replace(self, fresh=change(self.fresh), counted=tuple(map(change, self.counted)), late=late, again=again)


@dataclass(frozen=True, slots=True)
class SustainedPair:
    """One process pair: each contestant's turns."""

    turns: Mapping[str, Sequence[ContestantTurn]]
    moving_us: float = 0.0
    """The time that the operands of one call take to move at the device's bandwidth; 0 where the caches cannot hold them."""
    on_gpu: bool = False
    """There inputs come back."""
    rest_us: float = 0.0
    """Time of the judge's operation on the device after an empty call."""

    def charged(self, name: str, trusted: str, slots: int) -> SustainedPair:
        """The same pair, where the orders of ``name`` cost as much as those of ``trusted`` on the same path did.

        The path of a module costs more than that of an empty call: 1 ms and 0.6 ms of a burst on an H200. On a CPU a part of
        that is for the outputs of the last calls, one a slot: a burst of fewer calls does not pay for all of it.
        """
        theirs = [(one.wall_us - one.claimed_us, min(one.calls, slots)) for turn in self.turns[trusted] for one in turn.quiet]
        cost_us, outputs = (statistics.median(column) for column in zip(*theirs, strict=True))

        def charge(burst: Burst) -> Burst:
            missing = 0.0 if self.on_gpu else max(0.0, 1.0 - min(burst.calls, slots) / outputs)
            return replace(burst, cost_us=max(0.0, cost_us - missing * max(0.0, cost_us - burst.cost_us)))

        return replace(self, turns={**self.turns, name: [turn.changed(charge) for turn in self.turns[name]]})

    def without_marks(self) -> SustainedPair:
        """The same pair, no burst disturbed: nothing beside the trial used the cores, and its threads waited for each other."""

        def clear(burst: Burst) -> Burst:
            return replace(burst, disturbed=False)

        return replace(self, turns={name: [turn.changed(clear) for turn in own] for name, own in self.turns.items()})

    def log_us(self, name: str) -> float:
        """The logarithm of the time of one call, over the turns."""
        return statistics.fmean(math.log(turn.call_us) for turn in self.turns[name])

    @property
    def calm(self) -> bool:
        """Whether every turn has enough undisturbed bursts: a baseline that other work slows makes a speedup too large."""
        return all(_quiet(turn.counted) >= _FEWEST for own in self.turns.values() for turn in own)


def is_lowered(reading: UnderLoad | None) -> bool:
    """Whether a limit lowered the clock."""
    return reading is not None and bool(reading.slowed_by)


def is_steady(call_us: Sequence[float], pace: Pace) -> bool:
    """Whether the time of a call has settled: the last bursts take as long as those before them."""
    return _agree(call_us, pace.least, pace.steady)


def is_unthrottled(call_us: Sequence[float], readings: Sequence[UnderLoad | None], pace: Pace) -> bool:
    """Whether the time of a call has settled because nothing has lowered a clock: not before it would have.

    ``readings``: of the device during each burst.
    """
    enough = pace.unthrottled
    if enough is None or any(reading is None or is_lowered(reading) for reading in readings[-(enough.least // 2) :]):
        return False
    return _agree(call_us, enough.least, enough.steady)


def _agree(call_us: Sequence[float], least: int, steady: float) -> bool:
    if len(call_us) < least:
        return False
    half = least // 2
    late, early = statistics.median(call_us[-half:]), statistics.median(call_us[-2 * half : -half])
    return abs(math.log(late / early)) <= steady


def log_ratios(pairs: Sequence[SustainedPair], slower: str, faster: str) -> list[float]:
    """log(``slower`` ÷ ``faster``) of each process pair. Drift cancels: A-B-B-A."""
    return [pair.log_us(slower) - pair.log_us(faster) for pair in pairs]


def call_time(pairs: Sequence[SustainedPair], name: str) -> Interval:
    """The time of one call, with its interval over process pairs."""
    return stats.ratio_interval([pair.log_us(name) for pair in pairs])


def cost_share(pairs: Sequence[SustainedPair]) -> float:
    """What a time could be larger because of what was subtracted, in logarithms; 0 if it is below 2%.

    Nothing is from a trusted clock. On a GPU bursts of 40 ms are below, and those of suites, of 10 ms, are not. In a race the
    share of the contestant with the larger one counts.
    """
    each = [[burst for pair in pairs for turn in pair.turns[name] for burst in turn.quiet] for name in pairs[0].turns]
    unknown = max((_unknown_share(bursts) for bursts in each if not bursts[0].trusted), default=0.0)
    return unknown if unknown > REPORTED else 0.0


def _unknown_share(bursts: Sequence[Burst]) -> float:
    return statistics.median(math.log1p(_IN_RUNNER * burst.cost_us / burst.judged_us) for burst in bursts)


def unresolved(pairs: Sequence[SustainedPair]) -> str:
    """A doubt about bursts in which next to nothing was left after the subtraction; empty without."""
    if cost_share(pairs) <= math.log(_RESOLVED_TIMES):
        return ""
    return "not corroborated: the time is not resolved: the bursts take no longer than an order and its reply"


def clock_and_power(pairs: Sequence[SustainedPair], name: str) -> ClockAndPower:
    """The medians of the readings during a contestant's counted bursts."""
    found = [reading for pair in pairs for turn in pair.turns[name] for reading in turn.readings]
    clocks = [one.sm_mhz for one in found if one.sm_mhz is not None]
    watts = [one.watts for one in found if one.watts is not None]
    return ClockAndPower(statistics.median(clocks) if clocks else None, statistics.median(watts) if watts else None)


def skipped_work(pairs: Sequence[SustainedPair], *, sure: bool = False) -> str:
    """A doubt if calls on inputs seen before are faster than calls on fresh ones, beyond caches; empty without.

    On a CPU no call that counts is on inputs seen before. On a GPU calls of a burst come back to the same inputs, and a kernel
    could then reuse what it has computed. A burst on fresh inputs is short, and may pay for a change of the device's context:
    as much as the other contestants' bursts do is allowed, within limits. Where the same burst once more, on the same inputs,
    takes as long, the pause explains it: that is no evidence, but nothing is corroborated, because a kernel that reuses results
    in long bursts only would look like this. ``sure``: only what noise cannot explain.
    """
    if not pairs[0].on_gpu:
        undisturbed = sure or any(pair.calm for pair in pairs)
        return "" if undisturbed else "not corroborated: the bursts of every process pair were disturbed by CPU contention"
    turns = [pair.turns[KERNEL] for pair in pairs]
    early = [own[0].fresh for own in turns]
    late = [turn.late for own in turns for turn in own if turn.late is not None]
    again_us, _ = _fastest([turn.again for own in turns for turn in own if turn.again is not None])
    usual = math.exp(statistics.fmean(pair.log_us(KERNEL) for pair in pairs))
    burst_us = max(_FRESH_US, min(_context_us(pairs), _MOST_CONTEXT_US))
    times = _BLATANT_TIMES if sure else 1.0
    lowered = any(is_lowered(reading) for own in turns for turn in own for reading in turn.readings)
    rested = min(usual, again_us) if lowered and again_us else usual  # a pause lets a lowered clock rise
    for bursts, share, cold, seen_us in (
        (early, _FRESH_SHARE, _COLD_TIMES, usual),
        (late, _LATE_SHARE, _LATE_COLD_TIMES, rested),
    ):
        took, calls = _fastest(bursts)
        if bursts and not took:
            return "" if sure else "not corroborated: every burst on fresh inputs was disturbed by CPU contention"
        cold_us = cold * pairs[0].moving_us
        if took <= times * ((1 + share) * seen_us + cold_us + burst_us / calls) or (sure and _quiet(bursts) < _FEWEST):
            continue
        if took > times * ((1 + share) * again_us + cold_us):
            times_us = f"{seen_us:.1f} µs, on fresh ones {took:.1f} µs"
            return f"calls on inputs seen before take {times_us}: does it reuse earlier results?"
        if not sure:
            return (
                f"not corroborated: after a pause, calls on inputs seen before take {again_us:.1f} µs, back to back "
                f"{usual:.1f} µs: whether they reuse earlier results would not show"
            )
    return ""


def still_busy(pairs: Sequence[SustainedPair]) -> str:
    """A doubt if the device was still busy after the kernel's bursts: that would slow the next contestant's. Empty without."""
    after_us = statistics.median(one.after_us for pair in pairs for turn in pair.turns[KERNEL] for one in turn.counted)
    return busy_after(after_us, statistics.median(pair.rest_us for pair in pairs))


def _quiet(bursts: Sequence[Burst]) -> int:
    return sum(not one.disturbed for one in bursts)


def _fastest(bursts: Sequence[Burst]) -> tuple[float, int]:
    """The time of a call in the fastest undisturbed burst, and its calls; (0, 1) if there is none."""
    return min(((one.call_us, one.calls) for one in bursts if not one.disturbed), default=(0.0, 1))


def _context_us(pairs: Sequence[SustainedPair]) -> float:
    """What a burst of another contestant takes longer because its inputs were drawn just before; the median."""
    excess = [
        turn.late.judged_us - turn.late.calls * statistics.median(one.judged_us / one.calls for one in turn.quiet)
        for pair in pairs
        for name, turns in pair.turns.items()
        for turn in turns
        if name != KERNEL and turn.late is not None and not turn.late.disturbed
    ]
    return statistics.median(excess) if excess else 0.0


def describe(pairs: Sequence[SustainedPair]) -> tuple[str, ...]:
    """Notes on how the bursts ran, a line each."""
    turns = [turn for pair in pairs for turn in pair.turns[KERNEL]]
    bursts = [burst for turn in turns for burst in turn.counted]
    lines = []
    if unsettled := sum(not turn.settled for turn in turns):
        lines.append(f"not settled in {unsettled} of {len(turns)} turns")
    if disturbed := sum(burst.disturbed for burst in bursts):
        lines.append(f"{disturbed} of {len(bursts)} bursts disturbed by CPU contention")
    if pairs[0].on_gpu and all(burst.enqueue_us > _HOST_SHARE * burst.claimed_us for burst in bursts):
        lines.append("host-bound: the host enqueues calls no faster than the device runs them")
    if not bursts[0].trusted and (cost := statistics.median(burst.cost_us for burst in bursts)):
        length = statistics.median(burst.wall_us for burst in bursts)
        lines.append(
            f"by the judge's clock, less {cost:.0f} µs for the order and its reply, in bursts of {length / 1e3:.1f} ms"
        )
    readings = [reading for turn in turns for reading in turn.readings]
    slowed = [reading for reading in readings if is_lowered(reading)]
    if slowed:
        why = ", ".join(dict.fromkeys(reason for one in slowed for reason in one.slowed_by))
        lines.append(f"throttled: {why} in {len(slowed)} of {len(readings)} bursts")
    return tuple(lines)


def raw(by_workload: Mapping[str, Sequence[SustainedPair]]) -> bytes:
    """All bursts as JSON, workload by workload."""
    return msgspec.json.encode({"unit": "us", "regime": "sustained", "workloads": by_workload})
