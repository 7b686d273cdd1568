"""The times of bursts: calls back to back, by the judge's clock. Pure arithmetic, in microseconds. No torch.

A *burst* is one order for many calls. A *turn* is one contestant's bursts: one on inputs that its process has not seen, then
until the time of a call has settled, then those that count. On a CPU each of these has inputs of its own; on a GPU they come
back, and in the last turn there is one more burst on inputs drawn again, and of a kernel the same once more on these. Each
contestant has two turns in a process pair, A-B-B-A. A burst lasts many times as long as an order and its reply take, so that
the judge's clock needs no help of the runner's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from engine.domain import stats
from engine.domain.model import Interval
from engine.domain.regimes import ClockAndPower
from engine.trial.judge.call_times import Timing
from engine.trial.judge.conditions import UnderLoad
from engine.trial.judge.timing import KERNEL

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

    def calls(self, last: Burst) -> int:
        """Calls of the burst after ``last``."""
        return max(1, min(_MOST_CALLS, round(self.burst_us / last.most_us)))

    def within(self, bursts: int, burst_us: float) -> int:
        """So many bursts, or as many as the budget allows."""
        return max(2, min(bursts, int(self.budget_us / max(burst_us, 1.0))))

    def shared(self, workloads: int) -> Pace:
        """The pace on each workload of a suite."""
        few = max(1, min(workloads, 4))
        return replace(self, burst_us=self.burst_us / few, budget_us=self.budget_us / few)

    @property
    def strict(self) -> Pace:
        """The pace where a clock is lowered."""
        return replace(self, unthrottled=None)


PACES = {
    "cuda": Pace(40e3, 6, 16, 4, 1e6, 0.004, unthrottled=Unthrottled(5, 0.02)),
    "cpu": Pace(10e3, 4, 12, 5, 0.3e6, 0.03, repeats=False),
}
"""A GPU's power limit takes about 0.1 s to lower the clock: at least 0.2 s of load come before the time counts."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Calls back to back."""

    calls: int
    wall_us: float
    """By the judge's clock, less the cost of an empty call; no less than the runner claims."""
    claimed_us: float
    enqueue_us: float
    disturbed: bool = False
    cost_us: float = 0.0

    @classmethod
    def timed(cls, calls: int, timing: Timing, cost_us: float) -> Burst:
        """A burst from the timing of its order."""
        wall = max(_LEAST_US, timing.wall_us - cost_us, timing.claimed_us)
        return cls(calls, wall, timing.claimed_us, timing.enqueue_us, timing.disturbed, cost_us)

    @property
    def call_us(self) -> float:
        """The time of one call."""
        return self.wall_us / self.calls

    @property
    def most_us(self) -> float:
        """The most that one call can have taken: a short burst may take less than its order and reply usually do."""
        return (self.wall_us + self.cost_us) / self.calls


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
    def call_us(self) -> float:
        """The time of one call: the median over the undisturbed bursts, or over all if those are too few."""
        quiet = [one.call_us for one in self.counted if not one.disturbed]
        return statistics.median(quiet if len(quiet) >= _FEWEST else [one.call_us for one in self.counted])


@dataclass(frozen=True, slots=True)
class SustainedPair:
    """One process pair: each contestant's turns."""

    turns: Mapping[str, Sequence[ContestantTurn]]
    moving_us: float = 0.0
    """The time that the operands of one call take to move at the device's bandwidth; 0 where the caches cannot hold them."""
    on_gpu: bool = False
    """There inputs come back."""

    def log_us(self, name: str) -> float:
        """The logarithm of the time of one call, over the turns."""
        return statistics.fmean(math.log(turn.call_us) for turn in self.turns[name])

    @property
    def calm(self) -> bool:
        """Whether every turn of the kernel has enough undisturbed bursts."""
        return all(sum(not one.disturbed for one in turn.counted) >= _FEWEST for turn in self.turns[KERNEL])


def is_steady(call_us: Sequence[float], pace: Pace) -> bool:
    """Whether the time of a call has settled: the last bursts take as long as those before them."""
    return _agree(call_us, pace.least, pace.steady)


def is_unthrottled(call_us: Sequence[float], readings: Sequence[UnderLoad | None], pace: Pace) -> bool:
    """Whether the time of a call has settled because nothing has lowered a clock: not before it would have.

    ``readings``: of the device during each burst.
    """
    enough = pace.unthrottled
    if enough is None or any(reading is None or reading.slowed_by for reading in readings[-(enough.least // 2) :]):
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
    for bursts, share, cold in ((early, _FRESH_SHARE, _COLD_TIMES), (late, _LATE_SHARE, _LATE_COLD_TIMES)):
        took, calls = _fastest(bursts)
        if bursts and not took:
            return "" if sure else "not corroborated: every burst on fresh inputs was disturbed by CPU contention"
        cold_us = cold * pairs[0].moving_us
        if took <= times * ((1 + share) * usual + cold_us + burst_us / calls) or (sure and _quiet(bursts) < _FEWEST):
            continue
        if took > times * ((1 + share) * again_us + cold_us):
            return (
                f"calls on inputs seen before take {usual:.1f} µs, on fresh ones {took:.1f} µs: does it reuse earlier results?"
            )
        if not sure:
            return (
                f"not corroborated: after a pause, calls on inputs seen before take {again_us:.1f} µs, back to back "
                f"{usual:.1f} µs: whether they reuse earlier results would not show"
            )
    return ""


def _quiet(bursts: Sequence[Burst]) -> int:
    return sum(not one.disturbed for one in bursts)


def _fastest(bursts: Sequence[Burst]) -> tuple[float, int]:
    """The time of a call in the fastest undisturbed burst, and its calls; (0, 1) if there is none."""
    return min(((one.call_us, one.calls) for one in bursts if not one.disturbed), default=(0.0, 1))


def _context_us(pairs: Sequence[SustainedPair]) -> float:
    """What a burst of another contestant takes longer because its inputs were drawn just before; the median."""
    excess = [
        (turn.late.call_us - turn.call_us) * turn.late.calls
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
    readings = [reading for turn in turns for reading in turn.readings]
    slowed = [reading for reading in readings if reading.slowed_by]
    if slowed:
        why = ", ".join(dict.fromkeys(reason for one in slowed for reason in one.slowed_by))
        lines.append(f"throttled: {why} in {len(slowed)} of {len(readings)} bursts")
    return tuple(lines)


def raw(by_workload: Mapping[str, Sequence[SustainedPair]]) -> bytes:
    """All bursts as JSON, workload by workload."""
    return msgspec.json.encode({"unit": "us", "regime": "sustained", "workloads": by_workload})
