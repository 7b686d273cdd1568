"""A rerun: the figures a session recorded beside those measured on this machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import corroboration, queries, stats
from engine.domain import work as w
from engine.domain.corroboration import MEASURED, NOT_CORROBORATED, QUARANTINED
from engine.domain.model import Interval, Measurement
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState
from engine.report.text.lines import Line, Span, Tone, duration_interval, one_line, shortened, table, times, tunables

_TITLE = 40


@dataclass(frozen=True, slots=True)
class Figures:
    """A measurement in brief, with 95% intervals."""

    time_us: Interval
    speedup: Interval | None
    corroborated: bool
    quarantined: bool
    conditions: tuple[str, ...]
    doubts: tuple[str, ...]
    sustained: Interval | None = None
    """The speedup of calls back to back; ``null`` if it was not measured."""

    def in_regime(self, regime: Regime) -> Interval | None:
        return self.sustained if regime is Regime.SUSTAINED else self.speedup


@dataclass(frozen=True, slots=True)
class Rerun:
    """One kernel as recorded and as measured here."""

    kernel: str
    idea: str
    status: str
    """``measured``, ``not_corroborated``, ``quarantined``, or how it failed here."""
    reason: str | None
    corroborated: bool
    """Whether the judge's clock confirms the time here."""
    quarantined: bool
    conditions: tuple[str, ...]
    doubts: tuple[str, ...]
    """Every doubt about the kernel here."""
    recorded: Figures | None
    here: Figures | None
    """``None`` if it failed or is quarantined here."""
    claimed: Figures | None
    """What a quarantined kernel claims here."""
    carries_over: bool | None
    """Whether a recorded significant speedup is significant and corroborated here too. ``None`` if none was recorded, or the
    recorded one is doubted."""
    regime: str = Regime.SINGLE.value
    """The regime of the speedups that ``carries_over`` compares: ``single`` or ``sustained``."""

    @property
    def doubted(self) -> bool:
        return self.status in (NOT_CORROBORATED, QUARANTINED)


def compare(
    state: SessionState, kernel: Kernel, final: w.Measured | w.Suspected | w.Failed, deciding: Regime = Regime.SINGLE
) -> Rerun:
    """Compare a kernel's recorded figures with its figures here, in the deciding regime where both have it."""
    base = queries.ranking_baseline(state)
    recorded = _figures(kernel.measurement, base, kernel.evidence, quarantined=corroboration.is_quarantined(kernel))
    failure = final.failure if isinstance(final, w.Failed) else None
    evidence = final.evidence if isinstance(final, w.Suspected) else ()
    quarantined = isinstance(final, w.Suspected)
    found = _figures(final.measurement, base, evidence, quarantined=quarantined) if not isinstance(final, w.Failed) else None
    doubts = found.doubts if found is not None else evidence
    here = found if not quarantined else None
    regime = deciding if all(one is not None and one.sustained is not None for one in (recorded, here)) else Regime.SINGLE
    won = recorded is not None and _is_faster(recorded, regime) and not corroboration.is_doubted(kernel)
    again = here is not None and _is_faster(here, regime) and not doubts
    return Rerun(
        kernel.id, queries.title(state, kernel),
        failure.kind.value if failure else QUARANTINED if quarantined else NOT_CORROBORATED if doubts else MEASURED,
        one_line(failure.reason) if failure else one_line("; ".join(doubts)) or None,
        found is not None and found.corroborated, quarantined, found.conditions if found is not None else (), doubts,
        recorded, here, found if quarantined else None, again if won else None, regime.value,
    )  # fmt: skip


def _is_faster(figures: Figures, regime: Regime) -> bool:
    speedup = figures.in_regime(regime)
    return speedup is not None and stats.significant(speedup) == "faster"


def _figures(measured: Measurement | None, base: str, evidence: Sequence[str], *, quarantined: bool) -> Figures | None:
    if measured is None:
        return None
    doubts = corroboration.combined(evidence, measured)
    return Figures(
        measured.time_us, measured.speedup.get(base), measured.corroborated, quarantined, measured.conditions, doubts,
        measured.sustained.speedup.get(base) if measured.sustained is not None else None,
    )  # fmt: skip


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
        tone = Tone.WARN if one.quarantined else Tone.BAD
        return [*row, Span(f"{one.status.replace('_', ' ')}: {one.reason or ''}", tone)]
    if one.doubted:
        return [*row, *_figure_cells(one.here), Span(one.reason or "", Tone.WARN)]
    return [*row, *_figure_cells(one.here), _reproduction_words(one)]


def _figure_cells(figures: Figures | None) -> list[Span]:
    if figures is None:
        return [Span("not measured"), Span("")]
    both = (figures.speedup and times(figures.speedup), figures.sustained and f"sustained {times(figures.sustained)}")
    return [Span(duration_interval(figures.time_us)), Span(", ".join(words for words in both if words))]


def _reproduction_words(one: Rerun) -> Span:
    match one.carries_over:
        case True:
            return Span("speedup reproduced", Tone.GOOD)
        case False:
            here = one.here.in_regime(Regime(one.regime)) if one.here else None
            slower = here is not None and stats.significant(here) == "slower"
            return Span("slower here" if slower else "no significant speedup here", Tone.WARN)
        case None:
            doubted = one.recorded is not None and one.recorded.doubts
            return Span("recorded speedup not corroborated" if doubted else "no significant speedup recorded", Tone.FAINT)
