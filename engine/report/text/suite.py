"""A verdict over a suite, workload by workload. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.domain import suite
from engine.domain.model import Measurement, Verification, WorkloadChoice, WorkloadRatio, WorkloadTuning
from engine.report.text.lines import (
    Line,
    Span,
    Tone,
    counted,
    duration_interval,
    line,
    percent,
    ratio,
    speedup_tone,
    table,
    times,
    tunables,
)

WORST = "worst"


def mean_words(measured: Measurement, baseline: str) -> str:
    """``geometric mean of 8 workloads, worst decode_1 0.91×``; empty for a single workload."""
    slowest = suite.worst(measured, baseline)
    if slowest is None:
        return ""
    worst = f"worst {slowest.workload} {ratio(slowest.speedup[baseline].value)}×"
    return f"geometric mean of {counted(len(measured.by_workload), 'workload')}, {worst}"


def spread_words(measured: Measurement, baseline: str) -> str:
    """``0.91–2.10× on 8 workloads``; empty for a single workload."""
    found = suite.spread(measured, baseline)
    if found is None:
        return ""
    least, most = map(ratio, found)
    return f"{least}–{most}× on {counted(len(measured.by_workload), 'workload')}"


def choice_words(choice: WorkloadChoice | None) -> str:
    """``k7 THREADS=512``: the kernel of a dispatch for a workload, and its tunables there."""
    return " ".join(filter(None, (choice.member, tunables(choice.tunables)))) if choice is not None else ""


def tuning_words(found: Sequence[WorkloadTuning]) -> str:
    """``decode_1 THREADS=512 1.12×, decode_8 THREADS=128 1.05×``: the workloads on which other values are faster."""
    gained = [one for one in found if one.ratio.low > 1.0]
    return ", ".join(f"{one.workload} {tunables(one.tunables)} {times(one.ratio)}" for one in gained)


def suite_lines(
    measured: Measurement | None, checked: Verification | None, baseline: str, choices: Sequence[WorkloadChoice] = ()
) -> list[Line]:
    """One row a workload: its error, time, speedup over ``baseline`` and fraction of SOL; nothing for a single workload.

    ``choices``: of a dispatch, what runs on each workload.
    """
    chosen = {one.workload: choice_words(one) for one in choices}
    errors = {one.workload: one for one in checked.by_workload} if checked is not None else {}
    timed = {one.workload: one for one in measured.by_workload} if measured is not None else {}
    names = list(timed or errors)
    if not names:
        return []
    slowest = suite.worst(measured, baseline) if measured is not None else None
    rows: list[list[Span]] = [
        [Span(title, Tone.FAINT) for title in ("workload", "error", "time", f"speedup over {baseline}", "SOL", "")]
    ]
    if chosen:
        rows[0].append(Span("kernel", Tone.FAINT))
    for name in names:
        error, time = errors.get(name), timed.get(name)
        speedup = time.speedup.get(baseline) if time is not None else None
        worst = slowest is not None and slowest.workload == name
        rows.append([
            Span(name, Tone.STRONG),
            Span(f"{error.rel_fro:.1e}" if error is not None else ""),
            Span(duration_interval(time.time_us) if time is not None else ""),
            Span(times(speedup), speedup_tone(speedup)) if speedup is not None else Span(""),
            Span(percent(time.light.fraction) if time is not None and time.light is not None else ""),
            Span(WORST, Tone.WARN) if worst else Span(""),
            *([Span(chosen.get(name, ""))] if chosen else []),
        ])  # fmt: skip
    return [line("  ", *row) for row in table(rows)]


def race_rows(ratios: Sequence[WorkloadRatio]) -> Iterator[tuple[str, Span | str]]:
    """Where the first kernel of a race loses; nothing where it loses nowhere."""
    if lost := suite.losing(ratios):
        named = ", ".join(f"{one.workload} {times(one.ratio)}" for one in lost)
        yield "slower on", Span(named, Tone.WARN)
