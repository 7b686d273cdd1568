"""Verdicts over a suite: what is judged on several workloads becomes one figure, with each workload's beside it. Pure.

A suite of one is its workload: nothing is combined, and there are no figures by workload.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from engine.domain.model import (
    FailedWorkload,
    Interval,
    Measurement,
    Number,
    PrecisionClass,
    Problem,
    SpeedOfLight,
    Verification,
    Workload,
    WorkloadErrors,
    WorkloadRatio,
    WorkloadTime,
)
from engine.domain.preparation import Preparation, WorkloadPreparation
from engine.domain.regimes import ClockAndPower, Sustained

_WORST_FIRST = (PrecisionClass.NONE, PrecisionClass.HALF, PrecisionClass.TF32, PrecisionClass.FP32, PrecisionClass.EXACT)
MIXED = "mixed"
"""The limit of a suite whose workloads have different ones."""


def failed_workload(names: Sequence[str], workload: str, *, first: bool) -> FailedWorkload:
    """Where among a suite's workloads, in its order, a kernel failed; ``first``: it was not tried on those after it."""
    here = names.index(workload)
    before, after = tuple(names[:here]), tuple(names[here + 1 :])
    return FailedWorkload(workload, before, after) if first else FailedWorkload(workload, before + after)


def among(names: Sequence[str], places: Collection[int]) -> str:
    """`` on A, B``: the workloads at these places; empty for all of them."""
    return f" on {', '.join(names[place] for place in sorted(places))}" if len(places) < len(names) else ""


def step(place: int, name: str, workloads: int) -> str:
    """``workload 3 of 8, NAME: `` before words on what is done; empty for a single workload."""
    return f"workload {place + 1} of {workloads}, {name}: " if workloads > 1 else ""


def geometric_mean(values: Sequence[Interval]) -> Interval:
    """The geometric mean of intervals whose errors are independent; of one interval, itself."""
    if len(values) == 1:
        return values[0]
    centre = _mean_log([one.value for one in values])
    below = math.sqrt(sum(_log_ratio(one.value, one.low) ** 2 for one in values)) / len(values)
    above = math.sqrt(sum(_log_ratio(one.high, one.value) ** 2 for one in values)) / len(values)
    return Interval(math.exp(centre), math.exp(centre - below), math.exp(centre + above))


def measurement(parts: Mapping[str, Measurement], means: Mapping[str, Interval] | None = None) -> Measurement:
    """One measurement of those on a suite's workloads, by name in its order.

    ``means``: the speedups over the suite where the judge has computed them from process pairs.
    """
    (_, first), *others = parts.items()
    if not others:
        return first
    every = tuple(parts.values())
    common = [name for name in first.speedup if all(name in one.speedup for one in every)]
    speedup = {name: geometric_mean([one.speedup[name] for one in every]) for name in common}
    return replace(
        first,
        time_us=geometric_mean([one.time_us for one in every]),
        samples=sum(one.samples for one in every),
        processes=max(one.processes for one in every),
        speedup={**speedup, **(means or {})},
        light=_light(every),
        corroborated=all(one.corroborated for one in every),
        conditions=tuple(line for line in first.conditions if all(line in one.conditions for one in every)),
        doubts=tuple(f"{name}: {doubt}" for name, one in parts.items() for doubt in one.doubts),
        by_workload=tuple(WorkloadTime(name, one.time_us, one.speedup, one.light) for name, one in parts.items()),
    )


def sustained(parts: Mapping[str, Sustained], means: Mapping[str, Interval]) -> Sustained:
    """One sustained measurement of those on a suite's workloads, with the speedups over the suite from process pairs.

    Clocks and powers are means over the workloads.
    """
    (_, first), *others = parts.items()
    if not others:
        return first
    every = tuple(parts.values())
    return replace(
        first,
        time_us=geometric_mean([one.time_us for one in every]),
        speedup=means,
        calls=sum(one.calls for one in every),
        processes=max(one.processes for one in every),
        kernel=_mean_clock([one.kernel for one in every]),
        baseline=_mean_clock([one.baseline for one in every]),
        corroborated=all(one.corroborated for one in every),
        conditions=tuple(line for line in first.conditions if all(line in one.conditions for one in every)),
        doubts=tuple(f"{name}: {doubt}" for name, one in parts.items() for doubt in one.doubts),
        by_workload=tuple(WorkloadTime(name, one.time_us, one.speedup) for name, one in parts.items()),
    )


def _mean_clock(parts: Sequence[ClockAndPower]) -> ClockAndPower:
    clocks = [one.sm_mhz for one in parts if one.sm_mhz is not None]
    watts = [one.watts for one in parts if one.watts is not None]
    return ClockAndPower(fmean(clocks) if clocks else None, fmean(watts) if watts else None)


def _light(parts: Sequence[Measurement]) -> SpeedOfLight | None:
    found = [one.light for one in parts if one.light is not None]
    if len(found) < len(parts):
        return None
    floor, fraction = math.exp(_mean_log([one.floor_us for one in found])), math.exp(_mean_log([one.fraction for one in found]))
    return SpeedOfLight(_bound([one.bound for one in found]), floor, fraction)


def _bound(bounds: Sequence[str]) -> str:
    return bounds[0] if len(set(bounds)) == 1 else MIXED


def verification(parts: Mapping[str, Verification]) -> Verification:
    """One verification of those on a suite's workloads: the errors closest to their limits, the lowest precision class."""
    (_, first), *others = parts.items()
    if not others:
        return first
    every = tuple(parts.values())
    frobenius = max(every, key=lambda one: _share(one.rel_fro, one.rel_fro_limit))
    element = max(every, key=lambda one: _share(one.max_scaled, one.max_scaled_limit))
    formats = [one.format_verdict for one in every if one.format_verdict is not None]
    return replace(
        first,
        trials=sum(one.trials for one in every),
        rel_fro=frobenius.rel_fro,
        rel_fro_limit=frobenius.rel_fro_limit,
        max_abs=max(one.max_abs for one in every),
        max_scaled=element.max_scaled,
        max_scaled_limit=element.max_scaled_limit,
        precision_class=min((one.precision_class for one in every), key=_WORST_FIRST.index),
        holdouts=", ".join(dict.fromkeys(one.holdouts for one in every if one.holdouts != "none")) or "none",
        jitter=max(one.jitter for one in every),
        caveats=tuple(dict.fromkeys(caveat for one in every for caveat in one.caveats)),
        format_verdict=next((one for one in formats if not one.passed), formats[0] if formats else None),
        by_workload=tuple(_errors(name, one) for name, one in parts.items()),
    )


def _errors(name: str, one: Verification) -> WorkloadErrors:
    return WorkloadErrors(
        name, one.trials, one.rel_fro, one.rel_fro_limit, one.max_scaled, one.max_scaled_limit, one.precision_class
    )


def _share(error: float, limit: float) -> float:
    return error / limit if limit > 0 else error


def preparation(parts: Mapping[str, Preparation]) -> Preparation:
    """One preparation of those of a suite's workloads. It is verifiable only if each is."""
    (_, first), *others = parts.items()
    if not others:
        return first
    every = tuple(parts.values())
    worthless = next((one.gate for one in every if not one.gate.verifiable), first.gate)
    notes = dict.fromkeys(note for one in every for note in one.gate.notes)
    return replace(
        first,
        gate=replace(worthless, notes=tuple(notes)),
        baselines={name: measurement({w: one.baselines[name] for w, one in parts.items()}) for name in _common(every)},
        same=geometric_mean([one.same for one in every]),
        floor_us=math.exp(_mean_log([one.floor_us for one in every])),
        bound=_bound([one.bound for one in every]),
        notes=tuple(dict.fromkeys(note for one in every for note in one.notes)),
        by_workload=tuple(
            WorkloadPreparation(
                name, {b: m.time_us for b, m in one.baselines.items()}, one.floor_us, one.bound, one.same, one.signature
            )
            for name, one in parts.items()
        ),
    )


def _common(parts: Sequence[Preparation]) -> list[str]:
    return [name for name in parts[0].baselines if all(name in one.baselines for one in parts)]


def worst(measured: Measurement, baseline: str) -> WorkloadTime | None:
    """The workload of a suite on which the kernel gains least over the baseline; ``None`` for a single workload."""
    rated = [one for one in measured.by_workload if baseline in one.speedup]
    return min(rated, key=lambda one: one.speedup[baseline].value, default=None)


def spread(measured: Measurement, baseline: str) -> tuple[float, float] | None:
    """The least and the greatest speedup over a suite's workloads; ``None`` for a single workload."""
    values = [one.speedup[baseline].value for one in measured.by_workload if baseline in one.speedup]
    return (min(values), max(values)) if values else None


def losing(ratios: Sequence[WorkloadRatio]) -> tuple[WorkloadRatio, ...]:
    """The workloads on which the first kernel of a race is slower, by the whole interval, the slowest first."""
    return tuple(sorted((one for one in ratios if one.ratio.high < 1.0), key=lambda one: one.ratio.value))


def workloads_of(problem: Problem, suite: str, workload: str) -> tuple[Workload, ...]:
    """The workloads of a session: those of its suite, or its one workload. Unknown names are left out."""
    names = problem.suites.get(suite, (workload,)) if suite else (workload,)
    return tuple(found for name in names if (found := problem.workload(name)) is not None)


def label(suite: str, workload: str) -> str:
    """What kernels are judged on, for display: the suite's name, or the workload's."""
    return f"suite {suite}" if suite else workload


def distinct(workloads: Sequence[Workload]) -> dict[str, dict[str, Number]]:
    """Workload → the settings in which the suite's workloads differ; all settings of a single one."""
    every = [dict(one.settings) for one in workloads]
    shared = [name for name in (every[0] if every else ()) if len({one.get(name) for one in every}) == 1 and len(every) > 1]
    return {one.name: {k: v for k, v in one.settings.items() if k not in shared} for one in workloads}


def _mean_log(values: Sequence[float]) -> float:
    return fmean(map(_log, values))


def _log_ratio(one: float, other: float) -> float:
    return _log(one) - _log(other)


def _log(value: float) -> float:
    """The logarithm; of an absurd value that a runner reports, a finite one."""
    return math.log(min(max(value, 1 / _MOST), _MOST))


_MOST = 1e300
