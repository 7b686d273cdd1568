"""The two regimes of a kernel in words and as the figures of ``eval --json``: which decides, and where they disagree. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain import regimes, stats
from engine.domain.model import Interval, Measurement
from engine.domain.regimes import ClockAndPower, Regime, Sustained
from engine.report.text.lines import TOO_WIDE, Span, Tone, duration_interval, one_line, ratio, speedup_tone, times

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class SingleFigures:
    """One call at a time, with cold caches."""

    time_us: Interval
    speedup: Mapping[str, Interval]
    device: ClockAndPower | None
    """Between calls; ``null`` where unknown."""


@dataclass(frozen=True, slots=True)
class SustainedFigures:
    """Calls back to back, once clock and power have settled."""

    time_us: Interval
    speedup: Mapping[str, Interval]
    """Over the ranking baseline, which runs back to back too."""
    device: ClockAndPower
    """During the kernel's calls."""
    baseline_device: ClockAndPower
    """During the baseline's."""
    calls: int
    processes: int
    corroborated: bool
    conditions: tuple[str, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegimeFigures:
    """Both regimes of a measured kernel."""

    deciding: str
    """``single`` or ``sustained``: the regime that decides for this problem and setting."""
    single: SingleFigures
    sustained: SustainedFigures | None
    """``null`` if it was not measured."""
    disagreement: str
    """One sentence where the two regimes contradict each other; else empty."""


def regime_figures(measured: Measurement, baseline: str, deciding: Regime) -> RegimeFigures:
    """Both regimes of a measurement."""
    found = measured.sustained
    sustained = None
    if found is not None:
        sustained = SustainedFigures(
            found.time_us, found.speedup, found.kernel, found.baseline, found.calls, found.processes, found.corroborated,
            found.conditions, found.doubts,
        )  # fmt: skip
    single = SingleFigures(measured.time_us, measured.speedup, measured.clock)
    return RegimeFigures(deciding.value, single, sustained, disagreement(measured, baseline, deciding))


def disagreement(measured: Measurement, baseline: str, deciding: Regime) -> str:
    """One sentence where the speedups of the two regimes contradict each other; else empty."""
    found = measured.sustained
    one, other = measured.speedup.get(baseline), found.speedup.get(baseline) if found is not None else None
    if found is None or one is None or other is None or not regimes.disagree(one, other):
        return ""
    clock = found.kernel.sm_mhz
    at = f" at {clock:.0f} MHz" if clock is not None else ""
    return (
        f"The regimes disagree: single calls are {ratio(one.value)}× over {baseline}, calls back to back{at} "
        f"{ratio(other.value)}×; {deciding.value} decides."
    )


def clock_words(found: ClockAndPower | None) -> str:
    """``1410 MHz, 690 W``; empty where nothing is known."""
    if found is None:
        return ""
    parts = (found.sm_mhz and f"{found.sm_mhz:.0f} MHz", found.watts and f"{found.watts:.0f} W")
    return ", ".join(part for part in parts if part)


def difference(ratio: Interval) -> str:
    """``faster``, ``slower`` or ``no measurable difference``."""
    word = stats.significant(ratio)
    return "no measurable difference" if word == "undecided" else word


def difference_words(ratio: Interval) -> str:
    """``difference``, or why there is none to report."""
    return difference(ratio) if stats.is_measurable(ratio) else TOO_WIDE


def sustained_words(found: Sustained, baseline: str) -> str:
    """``1.02× [1.01, 1.03] over eager: faster, 152 µs [151, 153], 1410 MHz, 690 W (eager 1395 MHz, 697 W)``."""
    one = found.speedup.get(baseline)
    over = f"{times(one)} over {baseline}: {difference_words(one)}" if one is not None else ""
    own, other = clock_words(found.kernel), clock_words(found.baseline)
    device = f"{own} ({baseline} {other})" if own and other else own
    return ", ".join(filter(None, (over, duration_interval(found.time_us), device)))


def regime_rows(measured: Measurement, baseline: str, figures: RegimeFigures | None) -> list[tuple[str, Span | str]]:
    """The sustained regime by name, with its conditions and doubts; with ``figures``, which regime decides."""
    found = measured.sustained
    if found is None:
        return []
    tone = Tone.PLAIN if baseline not in found.speedup else speedup_tone(found.speedup[baseline])
    rows: list[tuple[str, Span | str]] = [("sustained", Span(sustained_words(found, baseline), tone))]
    rows.append(("", ", ".join((*found.conditions, *(["not corroborated"] if not found.corroborated else [])))))
    rows += [("doubt", Span(one_line(doubt), Tone.WARN)) for doubt in found.doubts]
    if figures is not None and figures.disagreement:
        rows.append(("decides", Span(figures.disagreement, Tone.WARN)))
    elif figures is not None:
        compared = baseline in measured.speedup and baseline in found.speedup
        rows.append(("decides", f"{figures.deciding}: the regimes agree" if compared else figures.deciding))
    return rows
