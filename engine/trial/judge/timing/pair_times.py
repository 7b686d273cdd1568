"""The times of process pairs: which calls and which clock count, and whether the judge's clock corroborates a claim.

Under ``plan`` no host code of the kernel runs, and the times of its trusted launcher count. Under ``host`` and ``module`` a
kernel shares the process with the runner's clock: there the judge's clock counts, less the cost of a null kernel's call on the
same path in the same samples. The runner's claim only explains. Baselines are trusted.

Pure arithmetic on timings, in microseconds. No torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from engine.domain import stats
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.conditions import PairConditions

WARM_UP = 2
"""Calls of a fresh process that are checked but not counted: first touch of pages, lazy loading."""
WARM_UP_AGAIN = 1
"""Those of a process that was called before, as in a suite for the workloads after the first."""
KERNEL = "kernel"
NULL = "null"
"""The null kernel on the path of ``KERNEL``."""
BY_JUDGES_CLOCK = ("host", "module")
"""The contracts under which the judge's clock counts."""
NATIVE = "native"
"""The path of every contract but ``module``."""

_SAMPLES = ((50.0, 30), (300.0, 14), (math.inf, 6))
"""(time in microseconds, samples per pair below it): short kernels vary more and cost less."""
_PATIENCE_US = 1e6
"""Device time budget for the samples of one pair."""
_FEWEST = 3
"""With fewer undisturbed samples all samples count."""
SLOW_US = 1e6
"""From this time of the baselines' second call on, by the judge's clock, a pair has one warm-up, ``SLOW_SAMPLES`` and one
perturbed call: what a first call costs, and what varies, is small beside it, and every call is also checked."""
SLOW_SAMPLES = 2
"""Samples of a pair on a slow problem."""
_SINGLE_VERDICTS = 3
"""The workloads of a suite have as many calls in all as so many single workloads."""

_LEAST_US = 0.1
"""The least time that is counted."""
_IN_RUNNER = 0.25
"""Share of a call's cost that falls into the runner's process on a CPU, where a kernel could save it."""
_RELEASE_SHARE, _RELEASE_US = 0.01, 2.0
"""Share of the usual time, or microseconds, by which a kernel's releases may be longer for no reason. In 14 process pairs on an
H200 medians differed by at most 2 µs of 70 to 140, and by 1 µs of 3074."""
REPORTED = 0.02
"""Uncertainty below this share of the kernel's time is not reported."""
_IDLE_JITTER_US = 3.0
"""What an empty wait for the device varies by."""
_AFTER_TIMES, _AFTER_US = 3.0, 300.0
"""The judge's next operation after a reply may take so many times as long as after a null kernel's, and microseconds more."""
_SHARE, _SLACK_US = 0.1, 20.0
"""Unexplained time that is allowed: a share of the claim, and microseconds."""
_FEWEST_CLAIMS = 9
"""A single process with fewer calls of the kernel is a screen."""
_SCREEN_JITTER = 0.1
"""The least jitter of a screen's null calls, as a share of what they cost: three may happen to be alike. On an H200 the median
deviation of 9 to 21 calls was 9% of the median (quartiles 7 and 11%)."""


def path_of(contract: str) -> str:
    """The path of a contract's calls: ``module`` or ``native``."""
    return "module" if contract == "module" else NATIVE


def null_name(path: str, contracts: Mapping[str, str]) -> str:
    """The name of the null kernel of a path, where these are the contracts of the judged kernels."""
    return NULL if path == path_of(contracts.get(KERNEL, "module")) else f"{NULL}:{path}"


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a call beside the kernel, by the judge's clock, in microseconds: median, and its median deviation."""

    median_us: float = 0.0
    jitter_us: float = 0.0
    release_us: float = 0.0
    """The part of it in which inputs are released."""

    def beside_us(self, timing: Timing) -> float:
        """The judge's clock as if the release of the inputs had taken as long as usual.

        On an H200 it varied by 1% of 3.2 ms, and with it the ratio of two calls of a ReLU (3 ms) by 1.7%. Without, that varied
        by 0.07%, as by the runners' own clocks.
        """
        return timing.wall_us - timing.release_us + self.release_us

    def worked_meanwhile_us(self, times: Sequence[Timing], trusted: Iterable[Sequence[Timing]]) -> float:
        """What a kernel's releases took longer than those of ``trusted`` calls, beyond noise: it worked while its inputs were
        copied.

        It counts, since ``beside_us`` leaves it out. Medians are compared, as of the times: a kernel gains nothing by doing so
        in some calls only. The baselines' calls show what a release takes beside much work that waits behind the gate.
        """
        longest = max([self.release_us, *(_median_release_us(one) for one in trusted)])
        return max(0.0, _median_release_us(times) - longest - max(_RELEASE_SHARE * longest, _RELEASE_US))


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Timings of one process pair by contestant, index by index.

    ``null`` is the null kernel on the same path. Of its calls only the undisturbed ones count, even if others of their sample
    were disturbed (a disturbed null call would leave room for hidden time), or all if those are too few.
    """

    times: Mapping[str, Sequence[Timing]]
    disturbed: int = 0
    """Samples during which other work used the processor. They count only if there are too few others."""
    calm: bool = True
    """Whether there were enough undisturbed calls, and enough undisturbed null calls to compare with."""
    audits: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Calls without a hold: the judge's clock sees everything that a call does. None on a CPU, where no call is held."""
    on_gpu: bool = False
    conditions: PairConditions = PairConditions()  # noqa: RUF009 - frozen
    taken: int = 0
    """All samples after the warm-ups, disturbed and repeated ones included."""
    cost: CallCost = CallCost()
    """What was subtracted from the judge's clock for ``KERNEL``; zero where its clock does not count."""

    @property
    def kernel(self) -> Sequence[Timing]:
        return self.times[KERNEL]

    def audited(self, name: str) -> Sequence[Timing]:
        """The calls that the judge's clock can be compared with."""
        return self.audits.get(name, self.times[name])

    def counted(self, name: str) -> list[list[float]]:
        """The times that count, one block per sample: contestants got the same inputs one right after the other."""
        return [[t.counted_us] for t in self.times[name]]


def with_counted_times(pair: PairTimes, contracts: Mapping[str, str], baselines: Collection[str]) -> PairTimes:
    """``pair`` with the time that counts in each of its timings.

    If the judge's clock counts for one judged kernel, it counts for all of the pair, so that they can be compared. It counts
    for the baselines too on a GPU, where such calls are gated, and beside a module, whose path is theirs: what the cost of an
    empty call leaves out, as resetting buffers, is then in both times.

    The judge's clock adds a fraction of a millisecond to late calls: an ``x.max().item()`` of 124 µs took 367 µs on an H200. A
    late baseline beside a kernel that is not late would look slower than it is. There its own events count.
    """
    if not any(contract in BY_JUDGES_CLOCK for contract in contracts.values()):
        return _with_late_work(pair, contracts)
    times = dict(pair.times)
    costs = {name: _call_cost(times[null_name(path_of(contract), contracts)], pair) for name, contract in contracts.items()}
    for name in baselines if pair.on_gpu or path_of(contracts[KERNEL]) != NATIVE else ():
        costs[name] = costs[KERNEL]
    beside_late = any(_are_late(pair.times[name]) for name in contracts)
    for name, cost in costs.items():
        if name in baselines and not beside_late and _are_late(times[name]):
            continue
        more_us = -cost.median_us
        if name in contracts:
            more_us += cost.worked_meanwhile_us(pair.times[name], [pair.times[baseline] for baseline in baselines])
        times[name] = [replace(t, counted_us=max(_LEAST_US, cost.beside_us(t) + more_us)) for t in times[name]]
    return replace(pair, times=times, cost=costs[KERNEL])


def _median_release_us(times: Sequence[Timing]) -> float:
    return statistics.median(t.release_us for t in times)


def _are_late(times: Sequence[Timing]) -> bool:
    """Whether most of these calls were."""
    return 2 * sum(t.late for t in times) > len(times)


def _call_cost(null: Sequence[Timing], pair: PairTimes) -> CallCost:
    """The cost of a null kernel's calls. On a CPU it works for a known time, which is not part of the cost."""
    usual = CallCost(release_us=_median_release_us(null))
    beside = [usual.beside_us(t) - (0.0 if pair.on_gpu else t.claimed_us) for t in null]
    centre = _centre(beside, calm=pair.calm)
    return replace(usual, median_us=centre, jitter_us=statistics.median(abs(b - centre) for b in beside))


def cost_share(pairs: Sequence[PairTimes]) -> float:
    """Uncertainty of the kernel's time from the cost of a call, as a share of that time; 0 if it is below 2%.

    Counted are its jitter and, on a CPU, the part of a call's cost that falls into the runner's process, where a kernel could
    save it. On a GPU no part does.
    """
    if not any(pair.cost.median_us for pair in pairs):
        return 0.0
    in_runner = 0.0 if pairs[0].on_gpu else _IN_RUNNER
    median = statistics.median(t.counted_us for p in pairs for t in p.kernel)
    cost, jitter = (statistics.median(v) for v in zip(*((p.cost.median_us, p.cost.jitter_us) for p in pairs), strict=True))
    unknown = jitter + in_runner * cost
    return unknown / median if unknown > REPORTED * median else 0.0


def _with_late_work(pair: PairTimes, contracts: Mapping[str, str]) -> PairTimes:
    """``pair`` with late device work added to the times of held calls: what the device still did after the call's last event,
    beyond an empty wait. It counts as explained for the judge's clock."""
    if not pair.audits:
        return pair
    times, audits = dict(pair.times), dict(pair.audits)
    for name in contracts:
        late_us = max(0.0, _idle_us(pair, name) - _idle_us(pair, NULL) - _IDLE_JITTER_US)
        times[name] = [replace(t, counted_us=t.claimed_us + late_us) for t in times[name]]
        audits[name] = [replace(t, claimed_us=t.claimed_us + late_us, counted_us=t.claimed_us + late_us) for t in audits[name]]
    return replace(pair, times=times, audits=audits)


def _idle_us(pair: PairTimes, name: str) -> float:
    """Median time that the device was still busy after the last event."""
    return statistics.median(t.idle_us for t in pair.times[name])


def columns(rows: Sequence[Mapping[str, Timing]]) -> dict[str, list[Timing]]:
    """Rows as columns by contestant."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def pair_times(counted: Sequence[Mapping[str, Timing]], samples: int) -> PairTimes:
    """The times of one pair from its rows after the warm-ups: the undisturbed rows if there are enough, else all."""
    undisturbed = undisturbed_rows(counted)
    fewest = min(samples, _FEWEST)
    kept = undisturbed if len(undisturbed) >= fewest else counted
    times = {name: [row[name] for row in kept] for name in kept[0]}
    calm = kept is undisturbed
    for name in filter(is_null, kept[0]):
        quiet = [row[name] for row in counted if not row[name].disturbed]
        enough = len(quiet) >= fewest
        calm &= enough
        times[name] = quiet if enough else [row[name] for row in counted]
    return PairTimes(times, len(counted) - len(undisturbed), calm, taken=len(counted))


def is_null(name: str) -> bool:
    """Whether a contestant is a null kernel."""
    return name.partition(":")[0] == NULL


def undisturbed_rows(rows: Sequence[Mapping[str, Timing]]) -> list[Mapping[str, Timing]]:
    """Rows in which no contestant but perhaps the null kernel was disturbed."""
    return [row for row in rows if not any(t.disturbed for name, t in row.items() if not is_null(name))]


def without_marks(rows: Sequence[Mapping[str, Timing]]) -> list[dict[str, Timing]]:
    """The same rows, none of them disturbed: nothing beside the trial used the cores, and its threads waited for each other."""
    return [{name: replace(timing, disturbed=False) for name, timing in row.items()} for row in rows]


def hidden_us(pairs: Sequence[PairTimes]) -> float:
    """Time of the kernel's round trips that its claims do not explain; ≤ 0: corroborated.

    Unexplained is (wall − claimed) of the kernel minus that of the null kernel in the same samples, minus a tenth of the median
    claim, three times the null kernel's jitter and 20 µs. Medians are compared; under CPU contention, which hits random calls,
    lower quartiles. Only the half of the kernel's calls with the smallest claims counts: these determine its median, and honest
    calls must not vouch for them. Of a single process with fewer than nine calls, a screen, the smallest counts: the median of
    two would doubt honest kernels for one late reply, and what leads has more processes. The jitter of so few is at least
    ``_SCREEN_JITTER``.
    """
    calm = all(p.calm for p in pairs)
    kernel = sorted((t for p in pairs for t in p.audited(KERNEL)), key=lambda t: t.claimed_us)
    null_us = [t.wall_us - t.claimed_us for p in pairs for t in p.audited(NULL)]
    claimed = statistics.median(t.claimed_us for t in kernel)
    unclaimed = [t.wall_us - t.claimed_us for t in kernel[: len(kernel) // 2 + 1]]
    screened = len(pairs) == 1 and len(kernel) < _FEWEST_CLAIMS
    beside = min(unclaimed) if screened else _centre(unclaimed, calm=calm)
    usual = _centre(null_us, calm=calm)
    jitter = statistics.median(abs(n - usual) for n in (null_us if calm else sorted(null_us)[: len(null_us) // 2 + 1]))
    jitter = max(jitter, _SCREEN_JITTER * usual) if screened else jitter
    return beside - (usual + _SHARE * claimed + 3 * jitter + _SLACK_US)


def busy_after(after_us: float, rest_us: float) -> str:
    """A doubt if the judge's next operation on the device took far longer than after a null kernel (``rest_us``)."""
    if after_us <= _AFTER_TIMES * rest_us + _AFTER_US:
        return ""
    return f"the device was still busy after the reply: the judge's next operation took {after_us:.0f} µs"


def _centre(values: Sequence[float], *, calm: bool) -> float:
    return statistics.median(values) if calm else sorted(values)[len(values) // 4]


def is_slow(row: Mapping[str, Timing], baselines: Collection[str]) -> bool:
    """Whether the problem is so slow that fewer calls are made. A kernel that waits must not save itself checks: the baselines
    decide, and where there are none, the fastest kernel."""
    names = [n for n in row if n in baselines] or [n for n in row if not is_null(n)]
    return min(row[name].wall_us for name in names) >= SLOW_US


def samples_for(pairs: Sequence[PairTimes], name: str) -> int:
    """Number of samples of the next pair, by the times so far; few for a slow kernel."""
    if not pairs:
        return _SAMPLES[-1][1]
    median = statistics.median(t.counted_us for t in pairs[-1].times[name])
    wanted = next(samples for below, samples in _SAMPLES if median < below)
    return max(2, min(wanted, int(_PATIENCE_US / max(median, 1.0))))


def shared_samples(samples: int, workloads: int) -> int:
    """Samples on each workload of a suite: with the warm-ups as many in all as on three single workloads, and at least three.

    A suite is to cost at most four times one workload's verdict, and each workload is also loaded and checked.
    """
    shared = _SINGLE_VERDICTS * (WARM_UP + samples) // workloads - WARM_UP_AGAIN
    return min(samples, max(_FEWEST, shared))


def log_ratios(pairs: Sequence[PairTimes], slower: str, faster: str) -> list[float]:
    """log(``slower`` ÷ ``faster``) of each process pair."""
    return [stats.pair_log_ratio(p.counted(slower), p.counted(faster)) for p in pairs]


def explained(pairs: Sequence[PairTimes]) -> list[str]:
    """Notes on how the kernel's time came about; empty if there is nothing to say."""
    times = [t for p in pairs for t in p.kernel]
    claimed, counted, enqueue = (
        statistics.median(v) for v in zip(*((t.claimed_us, t.counted_us, t.enqueue_us) for t in times), strict=True)
    )
    lines = []
    if enqueue > claimed:
        lines.append(f"host-bound: {enqueue:.0f} µs to enqueue {claimed:.0f} µs of device work")
    if cost := statistics.median(p.cost.median_us for p in pairs):
        jitter = statistics.median(p.cost.jitter_us for p in pairs)
        clocks = f"by the judge's clock, less {cost:.0f} ± {jitter:.0f} µs for the call"
        lines.append(f"{clocks}; the kernel's process reports {claimed:.1f} µs")
        if _are_late(times):
            lines.append("not enqueued whole before it starts: the judge's clock adds up to half a millisecond to each call")
    elif counted > claimed:
        lines.append(f"includes {counted - claimed:.0f} µs of late device work")
    return lines


def raw(by_workload: Mapping[str, Sequence[PairTimes]]) -> bytes:
    """All samples as JSON, from which every figure can be recomputed; of a suite, workload by workload."""
    unit: dict[str, object] = {"unit": "us", "columns": ["claimed", "wall", "idle", "enqueue", "counted", "release"]}
    tables = {name: _tables(pairs) for name, pairs in by_workload.items()}
    if len(tables) == 1:
        (own,) = tables.values()
        return msgspec.json.encode({**unit, **own})
    return msgspec.json.encode({**unit, "workloads": tables})


def _tables(pairs: Sequence[PairTimes]) -> dict[str, object]:
    rows, audits = ([_samples(one) for one in kind] for kind in ([p.times for p in pairs], [p.audits for p in pairs]))
    return {"pairs": rows, "audits": audits, "conditions": [pair.conditions for pair in pairs]}


def _samples(times: Mapping[str, Sequence[Timing]]) -> dict[str, list[list[float]]]:
    return {
        name: [[t.claimed_us, t.wall_us, t.idle_us, t.enqueue_us, t.counted_us, t.release_us] for t in some]
        for name, some in times.items()
    }
