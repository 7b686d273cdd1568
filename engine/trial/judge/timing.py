"""The times of process pairs: which calls count, what is charged to a kernel, whether the judge's clock corroborates it.

Pure arithmetic on timings, in microseconds. No torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from engine.domain import stats
from engine.trial.judge.conditions import PairConditions
from engine.trial.judge.runner_client import Timing

WARM_UP = 2
"""Calls of a fresh process that are checked but not counted: first touch of pages, lazy loading."""
KERNEL = "kernel"
NULL = "null"


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Timings of one process pair by contestant, index by index.

    ``null`` is the null kernel on the same path. Of its calls only the undisturbed ones count, even if others of their sample
    were disturbed (a disturbed null call would leave room for hidden time), or all if those are too few.
    """

    times: Mapping[str, Sequence[Timing]]
    disturbed: int = 0
    """Samples discarded because other work used the processor."""
    calm: bool = True
    """Whether there were enough undisturbed calls, and enough undisturbed null calls to compare with."""
    audits: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Calls without a hold: the judge's clock sees everything that a call does. None on a CPU, where no call is held."""
    at_once: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Unannounced calls of the judged kernels and the null kernel: the order was sent before they were resumed. None on a GPU,
    where every call is like that."""
    conditions: PairConditions = PairConditions()  # noqa: RUF009 - frozen

    @property
    def kernel(self) -> Sequence[Timing]:
        return self.times[KERNEL]

    def audited(self, name: str) -> Sequence[Timing]:
        """The calls that the judge's clock can be compared with."""
        return self.audits.get(name, self.times[name])

    def claims(self, name: str) -> list[list[float]]:
        """Claimed times, one block per sample: contestants got the same inputs one right after the other."""
        return [[t.claimed_us] for t in self.times[name]]


_HOST_US = {"host": 50.0, "module": 150.0}
"""Host time of a call that is not charged, by contract. For a module beside a baseline: ``host``'s plus the baseline's own."""


def with_charges(pair: PairTimes, contracts: Mapping[str, str], baselines: Collection[str]) -> PairTimes:
    """``pair`` with host time and late device work added to the judged kernels' times.

    A held call is timed on the device alone, and the kernel's host code could work during the hold. The additional time of a
    call without a hold, beyond the cost of enqueuing it, is therefore charged; a plan has no host code. What the device still
    did after the call's last event, beyond an empty wait, is charged too, and counts as explained for the judge's clock.
    """
    if not pair.audits:
        return pair
    times, audits = dict(pair.times), dict(pair.audits)
    for name, contract in contracts.items():
        late_us = max(0.0, _idle_us(pair, name) - _idle_us(pair, NULL) - _IDLE_JITTER_US)
        host_us = (
            max(0.0, _unheld_extra_us(pair, name) - _allowed_host_us(pair, baselines, contract))
            if contract in _HOST_US
            else 0.0
        )
        times[name] = [
            replace(t, claimed_us=t.claimed_us + late_us + host_us, charged_us=late_us + host_us) for t in times[name]
        ]
        audits[name] = [replace(t, claimed_us=t.claimed_us + late_us, charged_us=late_us) for t in audits[name]]
    return replace(pair, times=times, audits=audits)


_IDLE_JITTER_US = 3.0


def _idle_us(pair: PairTimes, name: str) -> float:
    """Median time that the device was still busy after the last event."""
    return statistics.median(t.idle_us for t in pair.times[name])


def _allowed_host_us(pair: PairTimes, baselines: Collection[str], contract: str) -> float:
    if contract == "module" and baselines:
        return _HOST_US["host"] + max(_unheld_extra_us(pair, name) for name in baselines)
    return _HOST_US[contract]


def _unheld_extra_us(pair: PairTimes, name: str) -> float:
    """Additional median time of a call without a hold."""
    without = statistics.median(t.claimed_us for t in pair.audits[name])
    return without - statistics.median(t.claimed_us for t in pair.times[name])


def columns(rows: Sequence[Mapping[str, Timing]]) -> dict[str, list[Timing]]:
    """Rows as columns by contestant."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def pair_times(rows: Sequence[Mapping[str, Timing]], samples: int) -> PairTimes:
    """The times of one pair from its rows (warm-ups first): the undisturbed rows if there are enough, else all."""
    counted, undisturbed = rows[WARM_UP:], undisturbed_rows(rows)
    fewest = min(samples, _FEWEST)
    kept = undisturbed if len(undisturbed) >= fewest else counted
    times = {name: [row[name] for row in kept] for name in kept[0]}
    quiet = [row[NULL] for row in counted if not row[NULL].disturbed]
    calm = kept is undisturbed and len(quiet) >= fewest
    times[NULL] = quiet if calm else [row[NULL] for row in counted]
    return PairTimes(times, len(counted) - len(undisturbed), calm)


_FEWEST = 3
"""With fewer undisturbed samples all samples count."""


def undisturbed_rows(rows: Sequence[Mapping[str, Timing]]) -> list[Mapping[str, Timing]]:
    """Rows after the warm-ups in which no contestant but perhaps the null kernel was disturbed."""
    return [row for row in rows[WARM_UP:] if not any(t.disturbed for name, t in row.items() if name != NULL)]


_AHEAD_SHARE, _AHEAD_US = 0.25, 60.0


def ahead_us(pairs: Sequence[PairTimes]) -> float:
    """Time by which the fastest unannounced call exceeds what the claim allows; ≤ 0: none.

    Allowed are the null kernel's median, 1.25 times the median claim, and 60 µs. A kernel that works between its resumption and
    the order cannot do so in an unannounced call, and exceeds this.
    """
    kernel = [t for p in pairs for t in p.at_once.get(KERNEL, ())]
    null_us = [t.wall_us for p in pairs for t in p.at_once.get(NULL, ())]
    if not kernel:
        return 0.0
    claimed = statistics.median(t.claimed_us for p in pairs for t in p.kernel)
    took = min(t.wall_us for t in kernel) - statistics.median(null_us)
    return took - ((1 + _AHEAD_SHARE) * claimed + _AHEAD_US)


_SHARE = 0.1
_SLACK_US = 20.0


def corroborated(pairs: Sequence[PairTimes]) -> bool:
    """Whether the judge's clock confirms the kernel's claimed times."""
    return hidden_us(pairs) <= 0


def hidden_us(pairs: Sequence[PairTimes]) -> float:
    """Time of the kernel's round trips that its claims do not explain; ≤ 0: corroborated.

    Unexplained is (wall − claimed) of the kernel minus that of the null kernel in the same samples, minus a tenth of the median
    claim, three times the null kernel's jitter and 20 µs. Medians are compared; under CPU contention, which hits random calls,
    lower quartiles. Only the half of the kernel's calls with the smallest claims counts: these determine its median, and honest
    calls must not vouch for them.
    """
    calm = all(p.calm for p in pairs)
    kernel = sorted((t for p in pairs for t in p.audited(KERNEL)), key=lambda t: t.claimed_us)
    null_us = [t.wall_us - t.claimed_us for p in pairs for t in p.audited(NULL)]
    claimed = statistics.median(t.claimed_us for t in kernel)
    beside = _centre([t.wall_us - t.claimed_us for t in kernel[: len(kernel) // 2 + 1]], calm=calm)
    usual = _centre(null_us, calm=calm)
    jitter = statistics.median(abs(n - usual) for n in (null_us if calm else sorted(null_us)[: len(null_us) // 2 + 1]))
    return beside - (usual + _SHARE * claimed + 3 * jitter + _SLACK_US)


def _centre(values: Sequence[float], *, calm: bool) -> float:
    return statistics.median(values) if calm else sorted(values)[len(values) // 4]


_SAMPLES = ((50.0, 30), (300.0, 14), (math.inf, 6))
"""(time in microseconds, samples per pair below it): short kernels vary more and cost less."""
_PATIENCE_US = 1e6
"""Device time budget for the samples of one pair."""


def samples_for(pairs: Sequence[PairTimes], name: str) -> int:
    """Number of samples of the next pair, by the times so far; few for a slow kernel."""
    if not pairs:
        return _SAMPLES[-1][1]
    median = statistics.median(t.claimed_us for t in pairs[-1].times[name])
    wanted = next(samples for below, samples in _SAMPLES if median < below)
    return max(2, min(wanted, int(_PATIENCE_US / max(median, 1.0))))


def log_ratios(pairs: Sequence[PairTimes], slower: str, faster: str) -> list[float]:
    """log(``slower`` ÷ ``faster``) of each process pair."""
    return [stats.pair_log_ratio(p.claims(slower), p.claims(faster)) for p in pairs]


def host_share(times: Sequence[Timing]) -> list[str]:
    """Notes on the host's share in these times; empty if it has none."""
    claimed = statistics.median(t.claimed_us for t in times)
    enqueue = statistics.median(t.enqueue_us for t in times)
    charged = statistics.median(t.charged_us for t in times)
    lines = []
    if enqueue > claimed:
        lines.append(f"host-bound: {enqueue:.0f} µs to enqueue {claimed:.0f} µs of device work")
    if charged > 0:
        lines.append(f"includes {charged:.0f} µs of host overhead and late device work")
    return lines


def raw(pairs: Sequence[PairTimes]) -> bytes:
    """All samples as JSON, from which every figure can be recomputed."""
    columns = ["claimed", "wall", "idle", "enqueue"]
    rows, audits, at_once = (
        [_samples(one) for one in kind]
        for kind in ([p.times for p in pairs], [p.audits for p in pairs], [p.at_once for p in pairs])
    )
    conditions = [pair.conditions for pair in pairs]
    return msgspec.json.encode(
        {"unit": "us", "columns": columns, "pairs": rows, "audits": audits, "at_once": at_once, "conditions": conditions}
    )


def _samples(times: Mapping[str, Sequence[Timing]]) -> dict[str, list[list[float]]]:
    return {name: [[t.claimed_us, t.wall_us, t.idle_us, t.enqueue_us] for t in some] for name, some in times.items()}
