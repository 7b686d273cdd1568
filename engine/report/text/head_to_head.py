"""A race of two kernels outside a session: the object that ``eval --against --json`` prints, and its text. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.domain import corroboration, stats
from engine.domain.corroboration import NOT_CORROBORATED
from engine.domain.model import Interval, Measurement
from engine.domain.regimes import Regime
from engine.report.text.lines import Line, Span, Tone, counted, fields, line, speedup_tone, times
from engine.report.text.regimes import difference, difference_words
from engine.report.text.verdict import NO_RESULT, Verdict, doubt_rows


@dataclass(frozen=True, slots=True)
class HeadToHead:
    """A race of two kernels: the speedup of the first over the second."""

    kernel: str
    speedup: Interval
    difference: str
    """``faster``, ``slower``, ``no measurable difference``, or ``not corroborated``: faster only by a doubted claim."""
    processes: int
    corroborated: bool
    conditions: tuple[str, ...]
    doubts: tuple[str, ...]
    regime: str = Regime.SINGLE.value
    """``single`` or ``sustained``."""


def head_to_head(other: str, measured: Measurement, regime: Regime = Regime.SINGLE) -> HeadToHead:
    """The result of a race of two kernels."""
    ratio, doubts = measured.speedup["other"], corroboration.of_measurement(measured)
    words = NO_RESULT[NOT_CORROBORATED] if doubts and stats.significant(ratio) == "faster" else difference(ratio)
    return HeadToHead(other, ratio, words, measured.processes, measured.corroborated, measured.conditions, doubts, regime.value)


def head_to_head_lines(found: Verdict, compared: HeadToHead) -> list[Line]:
    """The comparison as text."""
    how = ", back to back" if compared.regime == Regime.SUSTAINED else ""
    words = f"{times(compared.speedup)} over {compared.kernel}, {counted(compared.processes, 'process pair')}{how}: "
    tone = Tone.WARN if compared.doubts else speedup_tone(compared.speedup)
    result = compared.difference if stats.is_measurable(compared.speedup) else difference_words(compared.speedup)
    head = line(Span(found.kernel, Tone.STRONG), f" {words}", Span(result, tone))
    return [head, *(line("  ", *spans) for spans in fields(doubt_rows(compared.doubts)))]
