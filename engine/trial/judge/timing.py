"""The times of one process pair: which calls count, what is charged to a kernel, what the judge's clock corroborates.

Pure arithmetic on timings. No torch.
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

    ``null`` is the null kernel on the same path. Of its calls the undisturbed ones count, whatever happened to the others of
    their sample (a disturbed one would leave room for hidden time), or all where those are too few.
    """

    times: Mapping[str, Sequence[Timing]]
    disturbed: int = 0
    """Samples set aside because other work had the processor."""
    calm: bool = True
    """Whether there were enough undisturbed calls, and enough undisturbed null calls to compare with."""
    audits: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Calls without holding the device, so that the judge's clock sees all that a call does. None on a CPU, where no call is
    held."""
    at_once: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Further calls of the judged kernels and the null kernel, with the order sent before they were resumed. None on a GPU,
    where every call is like that."""
    conditions: PairConditions = PairConditions()  # noqa: RUF009 - frozen
    """The conditions around them."""

    @property
    def kernel(self) -> Sequence[Timing]:
        return self.times[KERNEL]

    def audited(self, name: str) -> Sequence[Timing]:
        """The calls that the judge's clock can be compared with."""
        return self.audits.get(name, self.times[name])

    def claims(self, name: str) -> list[list[float]]:
        """Claimed times, each a block of its own: contestants got the same inputs one right after the other."""
        return [[t.claimed_us] for t in self.times[name]]


_HOST_US = {"host": 50.0, "module": 150.0}
"""Host time of a call that is not charged to foreign code; of a module, what the baseline takes where there is one."""


def with_charges(pair: PairTimes, contracts: Mapping[str, str], baselines: Collection[str]) -> PairTimes:
    """``pair`` with host time and late device work added to the judged kernels' times.

    A held call is timed on the device alone, and foreign host code could use the wait for its work. So what a call takes longer
    without a hold, beyond the cost of enqueuing it, is charged; a plan has no host code. What the device still did after the
    call's last event, beyond what an empty wait takes, is charged too, and the judge's clock then finds it explained.
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
    """Microseconds that the device was still busy after the last event."""
    return statistics.median(t.idle_us for t in pair.times[name])


def _allowed_host_us(pair: PairTimes, baselines: Collection[str], contract: str) -> float:
    if contract == "module" and baselines:
        return _HOST_US["host"] + max(_unheld_extra_us(pair, name) for name in baselines)
    return _HOST_US[contract]


def _unheld_extra_us(pair: PairTimes, name: str) -> float:
    """Microseconds that a call takes longer without a hold."""
    without = statistics.median(t.claimed_us for t in pair.audits[name])
    return without - statistics.median(t.claimed_us for t in pair.times[name])


def columns(rows: Sequence[Mapping[str, Timing]]) -> dict[str, list[Timing]]:
    """Rows as columns by contestant."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def pair_times(rows: Sequence[Mapping[str, Timing]], samples: int) -> PairTimes:
    """The times of one pair from its rows, of which warm-ups are the first: the undisturbed ones where there are enough."""
    counted, undisturbed = rows[WARM_UP:], undisturbed_rows(rows)
    fewest = min(samples, _FEWEST)
    kept = undisturbed if len(undisturbed) >= fewest else counted
    times = {name: [row[name] for row in kept] for name in kept[0]}
    quiet = [row[NULL] for row in counted if not row[NULL].disturbed]
    calm = kept is undisturbed and len(quiet) >= fewest
    times[NULL] = quiet if calm else [row[NULL] for row in counted]
    return PairTimes(times, len(counted) - len(undisturbed), calm)


_FEWEST = 3
"""The fewest undisturbed samples that replace all samples."""


def undisturbed_rows(rows: Sequence[Mapping[str, Timing]]) -> list[Mapping[str, Timing]]:
    """Rows after the warm-ups in which nobody but the null kernel was disturbed."""
    return [row for row in rows[WARM_UP:] if not any(t.disturbed for name, t in row.items() if name != NULL)]


_AHEAD_SHARE, _AHEAD_US = 0.25, 60.0


def ahead_us(pairs: Sequence[PairTimes]) -> float:
    """Microseconds that the fastest call without a moment between resumption and order exceeds the claim and what can be
    explained.

    Not above 0 where all is explained. A kernel that works in that moment shows here.
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
    """Microseconds by which the kernel's round trips cost more than can be explained; not above 0 where all is explained.

    The null kernel of the same samples shows what a call costs besides the kernel. A tenth of the claim and the null kernel's
    jitter are allowed on top. Medians are compared; with other work on the machine, which strikes calls at random, lower
    quartiles. Only the half of the kernel's calls with the smallest claims counts: they make its median, and honest calls must
    not vouch for them.
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
"""(time in microseconds, samples of a pair below it): short kernels scatter more and cost less."""
_PATIENCE_US = 1e6
"""Device time that the samples of one pair may take."""


def samples_for(pairs: Sequence[PairTimes], name: str) -> int:
    """How many samples the next pair takes, by the times so far; few for a slow kernel."""
    if not pairs:
        return _SAMPLES[-1][1]
    median = statistics.median(t.claimed_us for t in pairs[-1].times[name])
    wanted = next(samples for below, samples in _SAMPLES if median < below)
    return max(2, min(wanted, int(_PATIENCE_US / max(median, 1.0))))


def log_ratios(pairs: Sequence[PairTimes], slower: str, faster: str) -> list[float]:
    """log(``slower`` ÷ ``faster``) of each process pair."""
    return [stats.pair_log_ratio(p.claims(slower), p.claims(faster)) for p in pairs]


def host_share(times: Sequence[Timing]) -> list[str]:
    """The host's share in these device times, in words; nothing where it has none."""
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
    """All samples as JSON, so that every figure can be recomputed."""
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
