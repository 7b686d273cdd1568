"""What the baselines take: each measured beside the ranking one, the dear ones once; and speedups over all of them.

The ranking baseline is called in every sample of every kernel. A further one is too, unless it is dear to prepare: then it is
measured once, beside the ranking one, or taken from what earlier sessions kept, and a kernel's speedup over it goes by way of
the ranking one. Imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from engine.domain import stats
from engine.domain.errors import ProblemError
from engine.domain.model import Device, Interval, Measurement
from engine.trial import baselines, surroundings
from engine.trial.pairing import Conditions, Contest, Tally, run_pair
from engine.trial.protocol import Open
from engine.trial.rig import Rig
from engine.trial.seat import Seat, Timing, TrustedLost
from engine.trial.seating import Seating
from engine.trial.times import PairTimes, log_ratios, samples_of

SAME_PAIRS = 4
"""Process pairs of the ranking baseline against itself."""
_ITSELF = "itself"
_DEAR = "compile"
"""What the names of baselines begin with that are measured once: each of their processes compiles the reference anew."""

Say = Callable[[str], None]


class Told(Protocol):
    """Times as a measurement."""

    def __call__(
        self, times: Sequence[Timing], depth: str, processes: int, ratios: Mapping[str, Interval], *, sound: bool,
        conditions: tuple[str, ...],
    ) -> Measurement: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baselines:
    """What came of measuring them: samples, a measurement by name, and what there is to say."""

    pairs: list[PairTimes]
    measured: dict[str, Measurement]
    notes: tuple[str, ...]


def claimable(same: Interval | None) -> float:
    """The largest effect, in logarithms, that a baseline showed against itself: nothing smaller is ever claimed."""
    return max(abs(math.log(same.low)), abs(math.log(same.high))) if same is not None else 0.0


class BaselineRuns:
    """The baselines of one judge."""

    def __init__(self, opened: Open, device: Device, seating: Seating, conditions: Conditions) -> None:
        self._opened = opened
        self._device = device
        self._seating = seating
        self._conditions = conditions
        self.same = Interval(*opened.same) if opened.same is not None else None
        """The ranking baseline against itself."""
        self._kept: dict[str, baselines.Kept] = {}
        self._missing: dict[str, str] = {}
        self._once: dict[str, Measurement] = {}
        self._known = False

    @property
    def claimable(self) -> float:
        """As ``claimable``, of the ranking baseline."""
        return claimable(self.same)

    @property
    def interleaved(self) -> tuple[str, ...]:
        """The baselines that are called in every sample, the ranking one first."""
        return tuple(name for name in self._unkept() if name not in self._once)

    def seats(self, rig: Rig, pair: int) -> dict[str, Seat]:
        """The processes of those for one process pair.

        A session that goes on measured them before: what is kept of that counts, and what does not run here is left out anew.
        """
        if not self._known:
            self._kept = self._valid(self._record().kept)
            self._missing = dict(self._unable(rig))
            self._known = True
        return self._seating.baselines(rig, self.interleaved, pair)

    def over_all(self, ratios: Mapping[str, Interval]) -> dict[str, Interval]:
        """These speedups over the interleaved baselines and, by way of the ranking one, those over the others."""
        ranking = self._opened.baseline
        others = {**{name: kept.measurement for name, kept in self._kept.items()}, **self._once}
        return {**ratios, **{n: baselines.chained(ratios[ranking], m.speedup[ranking]) for n, m in others.items()}}

    def dated(self, names: Iterable[str]) -> list[str]:
        """When those of ``names`` were measured that an earlier session measured."""
        return [f"{name} {kept.words}" for name, kept in self._kept.items() if name in names]

    def measure(self, rig: Rig, told: Told, say: Say) -> Baselines:
        """The ranking baseline, and the others where nothing valid is kept of them; all again where the ranking one moved.

        A further baseline that cannot be run here is left out, with a note that says why.
        """
        opened = self._opened
        record = self._record()
        kept = dict(record.kept)
        notes = [record.note] if record.note else []
        self._once = {}
        self._kept = self._valid(kept)
        known = f", {', '.join(self._kept)} known from before" if self._kept else ""
        say(f"measuring {opened.baseline} against itself and the other baselines{known}")
        pairs, found = self._now(rig, told)
        gone = [name for name, one in kept.items() if baselines.moved(one, found[opened.baseline].time_us, self.claimable)]
        kept = {name: one for name, one in kept.items() if name not in gone}
        if any(name in self._kept for name in gone):
            notes.append(self._moved(gone, found[opened.baseline]))
            say(notes[-1])
            self._kept = {name: one for name, one in self._kept.items() if name not in gone}
            pairs, found = self._now(rig, told)
        self._keep(record, kept, found)
        self._known = True
        self._once = {name: one for name, one in found.items() if name.startswith(_DEAR) and name != opened.baseline}
        measured = {**found, **{name: one.told() for name, one in self._kept.items()}}
        return Baselines(pairs, measured, (*notes, *self._missing.values()))

    def _record(self) -> baselines.Record:
        opened = self._opened
        wanted = baselines.fingerprint(
            opened.problem, opened.workload, self._device, ranking=opened.baseline, tolerance=opened.tolerance, cold=opened.cold
        )
        return baselines.load(Path(opened.cache), wanted)

    def _valid(self, kept: Mapping[str, baselines.Kept]) -> dict[str, baselines.Kept]:
        return {name: kept[name] for name in self._opened.others if name in kept and not self._opened.fresh}

    def _unkept(self) -> tuple[str, ...]:
        names = dict.fromkeys((self._opened.baseline, *self._opened.others))
        return tuple(name for name in names if name not in self._kept and name not in self._missing)

    def _keep(self, record: baselines.Record, kept: dict[str, baselines.Kept], found: Mapping[str, Measurement]) -> None:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        ranking = self._opened.baseline
        for name, one in found.items():
            if name != ranking and self.claimable <= baselines.QUIET:
                kept[name] = baselines.Kept(one, found[ranking].time_us, self.claimable, date)
        if kept or record.kept:
            record.keep(kept)

    def _moved(self, gone: Sequence[str], now: Measurement) -> str:
        one = next(self._kept[name] for name in gone if name in self._kept)
        took = f"{self._opened.baseline} takes {now.time_us.value:.4g} us and took {one.ranking_us.value:.4g} us beside them"
        return f"kept baselines measured again ({', '.join(name for name in gone if name in self._kept)}): {took} ({one.words})"

    def _now(self, rig: Rig, told: Told) -> tuple[list[PairTimes], dict[str, Measurement]]:
        ranking = self._opened.baseline
        self._missing = dict(self._unable(rig))
        pairs = self._pairs(rig)
        self.same = stats.ratio_interval(log_ratios(pairs, ranking, _ITSELF))
        said = surroundings.told([p.seen for p in pairs])
        found: dict[str, Measurement] = {}
        for name in self._unkept():
            ratio = Interval(1.0, 1.0, 1.0)
            if name != ranking:
                ratio = stats.ratio_interval(log_ratios(pairs, ranking, name), self.claimable)
            times = [t for p in pairs for t in p.times[name]]
            found[name] = told(times, "precise", len(pairs), {ranking: ratio}, sound=True, conditions=said)
        return pairs, found

    def _unable(self, rig: Rig) -> Iterable[tuple[str, str]]:
        """The further baselines that do not run here, each with a sentence on why."""
        self._missing = {}
        for name in self._unkept()[1:]:
            seat = self._seating.baselines(rig, (name,), 0)[name]
            try:
                seat.stand_by()
            except (ProblemError, TrustedLost) as error:
                yield name, f"baseline {name} left out: {str(error).removeprefix('the baseline cannot be measured: ')}"

    def _pairs(self, rig: Rig) -> list[PairTimes]:
        """Each baseline next to the ranking one, and the ranking one next to itself, in processes of their own."""
        ranking = self._opened.baseline
        pairs: list[PairTimes] = []
        for index in range(SAME_PAIRS):
            beside = self._seating.baselines(rig, self._unkept(), index)
            itself = self._seating.baselines(rig, (ranking,), index + SAME_PAIRS)[ranking]
            contest = Contest({}, {**beside, _ITSELF: itself}, self._seating.null(rig, "module"))
            self._seating.stand_by()
            pairs.append(run_pair(rig, contest, samples_of(pairs, ranking), self._conditions, Tally()))
            itself.close()
        return pairs
