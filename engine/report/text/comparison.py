"""A rerun: the figures a session recorded beside those measured on this machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import queries, stats
from engine.domain import work as w
from engine.domain.model import Interval, Measurement
from engine.domain.state import Kernel, SessionState
from engine.report.text.lines import Line, Span, Tone, duration_interval, one_line, shortened, table, times, tunables

_TITLE = 40


@dataclass(frozen=True, slots=True)
class Figures:
    """A measurement in brief, with 95 % intervals."""

    time_us: Interval
    speedup: Interval | None


@dataclass(frozen=True, slots=True)
class Rerun:
    """One kernel as recorded and as measured here."""

    kernel: str
    idea: str
    status: str
    """``measured``, or how it failed here."""
    reason: str | None
    recorded: Figures | None
    here: Figures | None
    carries_over: bool | None
    """Whether a recorded significant speedup is significant here too. ``None`` if none was recorded."""


def compare(state: SessionState, kernel: Kernel, final: w.Verified | w.Measured | w.Failed) -> Rerun:
    """Compare a kernel's recorded figures with its figures here."""
    base = queries.ranking_baseline(state)
    recorded = _figures(kernel.measurement, base)
    failure = final.failure if isinstance(final, w.Failed) else None
    here = _figures(final.measurement, base) if isinstance(final, w.Measured) else None
    won = recorded is not None and recorded.speedup is not None and stats.significant(recorded.speedup) == "faster"
    again = here is not None and here.speedup is not None and stats.significant(here.speedup) == "faster"
    return Rerun(
        kernel.id, queries.title(state, kernel), failure.kind.value if failure else "measured",
        one_line(failure.reason) if failure else None, recorded, here, again if won else None,
    )  # fmt: skip


def _figures(measured: Measurement | None, base: str) -> Figures | None:
    return Figures(measured.time_us, measured.speedup.get(base)) if measured is not None else None


def lines(state: SessionState, reruns: Sequence[Rerun]) -> list[Line]:
    """A table: kernel, recorded, here, and whether the speedup is reproduced."""
    heads = ("kernel", "", "recorded", "", "here", "", "")
    return table([[Span(head, Tone.FAINT) for head in heads], *(_row(state, one) for one in reruns)])


def _row(state: SessionState, one: Rerun) -> list[Span]:
    chosen = state.kernels[one.kernel].tunables
    row = [
        Span(f"{one.kernel} {shortened(one_line(one.idea), _TITLE)}", Tone.STRONG), Span(tunables(chosen), Tone.FAINT),
        *_figure_cells(one.recorded),
    ]  # fmt: skip
    if one.here is None:
        return [*row, Span(f"{one.status.replace('_', ' ')}: {one.reason or ''}", Tone.BAD)]
    return [*row, *_figure_cells(one.here), _reproduction_words(one)]


def _figure_cells(figures: Figures | None) -> list[Span]:
    if figures is None:
        return [Span("not measured"), Span("")]
    return [Span(duration_interval(figures.time_us)), Span(times(figures.speedup) if figures.speedup else "")]


def _reproduction_words(one: Rerun) -> Span:
    match one.carries_over:
        case True:
            return Span("speedup reproduced", Tone.GOOD)
        case False:
            here = one.here.speedup if one.here else None
            slower = here is not None and stats.significant(here) == "slower"
            return Span("slower here" if slower else "no significant speedup here", Tone.WARN)
        case None:
            return Span("no significant speedup recorded", Tone.FAINT)
