"""What the calls of one process pair come to: which count, what is charged to a kernel, what the judge's clock bears out, and
what of them is said and kept.

Pure arithmetic on timings. No torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from engine.domain import stats
from engine.trial.seat import Timing
from engine.trial.surroundings import Seen

WARM_UP = 2
"""Calls of a fresh process that are checked but not counted: first touch of pages, lazy loading."""
KERNEL = "kernel"
NULL = "null"


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
    audits: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Calls for which the device was not held, so that the judge's clock sees all that a call does; none on a CPU, where every
    call is one of those."""
    at_once: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    """Calls beside those of ``times`` in which those under judgement and the null kernel had their order before they were
    woken; none on a GPU, where that is so in every call."""
    seen: Seen = Seen()  # noqa: RUF009 - frozen
    """What went on around them."""

    @property
    def kernel(self) -> Sequence[Timing]:
        return self.times[KERNEL]

    def audited(self, name: str) -> Sequence[Timing]:
        """The calls that the judge's clock can be held against."""
        return self.audits.get(name, self.times[name])

    def claims(self, name: str) -> list[list[float]]:
        """Claimed times, each a block of its own: contestants saw the same inputs one right after the other."""
        return [[t.claimed_us] for t in self.times[name]]


_HOST_US = {"host": 50.0, "module": 150.0}
"""Host time of a call that foreign code is believed without proof; of a module, what the baseline takes where there is one."""


def charged(pair: PairTimes, contracts: Mapping[str, str], baselines: Collection[str]) -> PairTimes:
    """Held, a call is timed on the device alone, and foreign host code could use the wait for its work. What it took longer
    when the device was not held, beyond what enqueuing a call takes, is charged to it; a plan has no host code. So is what the
    device still did after the call's last event, beyond what waiting for nothing takes; that is then explained wherever the
    judge's clock sees it."""
    if not pair.audits:
        return pair
    times, audits = dict(pair.times), dict(pair.audits)
    for name, contract in contracts.items():
        late = max(0.0, _idle_us(pair, name) - _idle_us(pair, NULL) - _IDLE_JITTER_US)
        shown = max(0.0, _shown_us(pair, name) - _believed_us(pair, baselines, contract)) if contract in _HOST_US else 0.0
        times[name] = [replace(t, claimed_us=t.claimed_us + late + shown, charged_us=late + shown) for t in times[name]]
        audits[name] = [replace(t, claimed_us=t.claimed_us + late, charged_us=late) for t in audits[name]]
    return replace(pair, times=times, audits=audits)


_IDLE_JITTER_US = 3.0


def _idle_us(pair: PairTimes, name: str) -> float:
    """Microseconds that the device was still busy after the last event."""
    return statistics.median(t.idle_us for t in pair.times[name])


def _believed_us(pair: PairTimes, baselines: Collection[str], contract: str) -> float:
    if contract == "module" and baselines:
        return _HOST_US["host"] + max(_shown_us(pair, name) for name in baselines)
    return _HOST_US[contract]


def _shown_us(pair: PairTimes, name: str) -> float:
    """Microseconds that a call takes longer where the device is not held."""
    without = statistics.median(t.claimed_us for t in pair.audits[name])
    return without - statistics.median(t.claimed_us for t in pair.times[name])


def columns(rows: Sequence[Mapping[str, Timing]]) -> dict[str, list[Timing]]:
    """The same by contestant."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def together(rows: Sequence[Mapping[str, Timing]], samples: int) -> PairTimes:
    """What the samples of one pair come to, warm-ups first: the undisturbed ones where there are enough of them."""
    counted, undisturbed = rows[WARM_UP:], clean(rows)
    fewest = min(samples, _FEWEST)
    kept = undisturbed if len(undisturbed) >= fewest else counted
    times = {name: [row[name] for row in kept] for name in kept[0]}
    quiet = [row[NULL] for row in counted if not row[NULL].disturbed]
    calm = kept is undisturbed and len(quiet) >= fewest
    times[NULL] = quiet if calm else [row[NULL] for row in counted]
    return PairTimes(times, len(counted) - len(undisturbed), calm)


_FEWEST = 3
"""Undisturbed samples that are better than all samples."""


def clean(rows: Sequence[Mapping[str, Timing]]) -> list[Mapping[str, Timing]]:
    """Those after the warm-ups during which nothing disturbed anyone but the null kernel."""
    return [row for row in rows[WARM_UP:] if not any(t.disturbed for name, t in row.items() if name != NULL)]


_AHEAD_SHARE, _AHEAD_US = 0.25, 60.0


def ahead_us(pairs: Sequence[PairTimes]) -> float:
    """Microseconds that the quickest call took longer which left no moment between waking and the order, than the kernel
    claims and than can be explained; not above nought where all is explained. Who works in that moment shows it here."""
    kernel = [t for p in pairs for t in p.at_once.get(KERNEL, ())]
    null = [t.wall_us for p in pairs for t in p.at_once.get(NULL, ())]
    if not kernel:
        return 0.0
    claimed = statistics.median(t.claimed_us for p in pairs for t in p.kernel)
    took = min(t.wall_us for t in kernel) - statistics.median(null)
    return took - ((1 + _AHEAD_SHARE) * claimed + _AHEAD_US)


_SHARE = 0.1
_SLACK_US = 20.0


def corroborated(pairs: Sequence[PairTimes]) -> bool:
    """Whether the judge's clock bears out the claimed times of the kernel."""
    return hidden_us(pairs) <= 0


def hidden_us(pairs: Sequence[PairTimes]) -> float:
    """Microseconds by which the kernel's round trips cost more than can be explained; not above nought where all is explained.

    What a call costs beside the kernel is known from the null kernel in the same samples; a tenth of the claim and the null
    kernel's own jitter may be on top. Medians are compared, and beside other work, which strikes calls at random and hides
    time as well as it seems to show some, lower quartiles. Of the kernel's calls only the half with the smallest claims is
    looked at: those make its median, and one that is honest in some calls must not have them vouch for the others.
    """
    calm = all(p.calm for p in pairs)
    kernel = sorted((t for p in pairs for t in p.audited(KERNEL)), key=lambda t: t.claimed_us)
    null = [t.wall_us - t.claimed_us for p in pairs for t in p.audited(NULL)]
    claimed = statistics.median(t.claimed_us for t in kernel)
    beside = _centre([t.wall_us - t.claimed_us for t in kernel[: len(kernel) // 2 + 1]], calm=calm)
    usual = _centre(null, calm=calm)
    jitter = statistics.median(abs(n - usual) for n in (null if calm else sorted(null)[: len(null) // 2 + 1]))
    return beside - (usual + _SHARE * claimed + 3 * jitter + _SLACK_US)


def _centre(values: Sequence[float], *, calm: bool) -> float:
    return statistics.median(values) if calm else sorted(values)[len(values) // 4]


_SAMPLES = ((50.0, 30), (300.0, 14), (math.inf, 6))
"""Samples of a process pair by the time in microseconds: short kernels scatter more and cost less."""
_PATIENCE_US = 1e6
"""Device time that the samples in one pair may take."""


def samples_of(pairs: Sequence[PairTimes], name: str) -> int:
    """How many samples the next pair takes, from the times seen so far; few for a kernel that would try one's patience."""
    if not pairs:
        return _SAMPLES[-1][1]
    median = statistics.median(t.claimed_us for t in pairs[-1].times[name])
    wanted = next(samples for below, samples in _SAMPLES if median < below)
    return max(2, min(wanted, int(_PATIENCE_US / max(median, 1.0))))


def log_ratios(pairs: Sequence[PairTimes], slower: str, faster: str) -> list[float]:
    """log(``slower`` ÷ ``faster``) of each process pair."""
    return [stats.pair_log_ratio(p.claims(slower), p.claims(faster)) for p in pairs]


def host_share(times: Sequence[Timing]) -> list[str]:
    """What the host has to do with these times of a device, in words; nothing where it has none."""
    claimed = statistics.median(t.claimed_us for t in times)
    enqueue = statistics.median(t.enqueue_us for t in times)
    charged = statistics.median(t.charged_us for t in times)
    said = []
    if enqueue > claimed:
        said.append(f"host-bound: {enqueue:.0f} us to enqueue what the device does in {claimed:.0f} us")
    if charged > 0:
        said.append(f"{charged:.0f} us of it passed with the device idle, by what is said: counted")
    return said


def raw(pairs: Sequence[PairTimes]) -> bytes:
    """All samples as JSON: a sceptic can compute every figure again."""
    columns = ["claimed", "wall", "idle", "enqueue"]
    rows, audits, at_once = (
        [_samples(one) for one in kind]
        for kind in ([p.times for p in pairs], [p.audits for p in pairs], [p.at_once for p in pairs])
    )
    seen = [pair.seen for pair in pairs]
    return msgspec.json.encode(
        {"unit": "us", "columns": columns, "pairs": rows, "audits": audits, "at_once": at_once, "surroundings": seen}
    )


def _samples(times: Mapping[str, Sequence[Timing]]) -> dict[str, list[list[float]]]:
    return {name: [[t.claimed_us, t.wall_us, t.idle_us, t.enqueue_us] for t in some] for name, some in times.items()}
