"""Formats figures for the screen: times, ratios, shares, counts, bars, intervals, histograms.

Formats that the engine's reports define (``engine.report.text.lines``) are reused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from engine.domain.figure_text import at_places, digit_figures, interval_places
from engine.domain.figures import Interval
from engine.domain.stats import is_measurable
from engine.report.text.lines import NOT_MEASURABLE as NOT_MEASURABLE
from engine.report.text.lines import counted as counted
from engine.report.text.lines import digits as digits
from engine.report.text.lines import duration as duration
from engine.report.text.lines import duration_interval as duration_interval
from engine.report.text.lines import percent as percent
from engine.report.text.lines import policy_words as policy_words
from engine.report.text.lines import ratio as ratio_digits
from engine.report.text.lines import ratio_figures as ratio_figures
from engine.report.text.lines import scaled as scaled
from engine.report.text.lines import times as times
from engine.report.text.lines import tunables as tunables
from tui.viewmodel.cells import Cell, Ground, Ink, merge_cells, width

EIGHTHS = " ▏▎▍▌▋▊▉█"
NO_FIGURE = "–"
"""Stands for a speedup that is not measurable."""
LEVELS = " ▁▂▃▄▅▆▇█"


def capitalised(words: str) -> str:
    """The words as the beginning of a sentence."""
    return words[:1].upper() + words[1:]


def ratio(value: float) -> str:
    """``1.52×``; two decimals below a hundred, three significant digits below a tenth."""
    return f"{ratio_digits(value)}×"


def ratio_of(interval: Interval) -> str:
    """``1.52×``, or a dash where the interval says nothing."""
    return ratio(interval.value) if is_measurable(interval) else NO_FIGURE


def interval_ends(interval: Interval) -> str:
    """The ends of a ratio's interval: ``[1.49, 1.55]``."""
    _, low, high = ratio_figures(interval)
    return f"[{low}, {high}]"


def headline_figures(interval: Interval) -> tuple[str, str, str]:
    """A ratio and the ends of its interval with three significant digits; more where the ends would read alike."""
    value, low, high = digit_figures(interval)
    return (value, low, high) if low != high else ratio_figures(interval)


def about(seconds: float) -> str:
    """A coarse time: ``≈ 40 s``, ``≈ 3 min``, ``≈ 1 h 20 min``."""
    if seconds < 60:
        return f"≈ {max(10, math.ceil(seconds / 10) * 10)} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"≈ {minutes} min"
    minutes = math.ceil(minutes / 10) * 10
    return f"≈ {minutes // 60} h {minutes % 60:02d} min"


def speedup_ink(interval: Interval) -> Ink:
    """Faster or slower than the baseline only if the whole interval is."""
    if interval.low > 1.0:
        return Ink.FASTER
    return Ink.SLOWER if interval.high < 1.0 else Ink.UNDECIDED


_SIGNS = {Ink.FASTER: "▲", Ink.SLOWER: "▼", Ink.UNDECIDED: "≈"}
_BANDS = {
    Ink.FASTER: (Ink.FASTER_BAR, Ink.FASTER_BAND, Ground.FASTER_BAND),
    Ink.SLOWER: (Ink.SLOWER_BAR, Ink.SLOWER_BAND, Ground.SLOWER_BAND),
    Ink.UNDECIDED: (Ink.UNDECIDED_BAR, Ink.UNDECIDED_BAND, Ground.UNDECIDED_BAND),
}


def speedup(interval: Interval, *, doubted: bool = False) -> Cell:
    """``▲ 1.52×``; ``▼`` slower, ``≈`` undecided, ``?`` not corroborated; ``≈ not measurable`` if the interval says nothing."""
    ink = speedup_ink(interval)
    if not is_measurable(interval):
        return Cell(f"≈ {NOT_MEASURABLE}", ink)
    figure = f"{ratio_figures(interval)[0]}×"
    return Cell(f"? {figure}", Ink.UNDECIDED) if doubted else Cell(f"{_SIGNS[ink]} {figure}", ink)


def speedup_forms(interval: Interval, *, doubted: bool = False) -> tuple[str, ...]:
    """``speedup``'s text, then shorter forms of it."""
    text = speedup(interval, doubted=doubted).text
    if not is_measurable(interval):
        return (text, f"≈ {NO_FIGURE}")
    return (text, *(f"{text[:2]}{value}×" for value, _, _ in _fewer_decimals(interval)))


def interval_forms(interval: Interval) -> tuple[str, ...]:
    """``interval_ends``, then shorter forms of it."""
    return (interval_ends(interval), *(f"[{low}, {high}]" for _, low, high in _fewer_decimals(interval)))


def _fewer_decimals(interval: Interval) -> Iterator[tuple[str, str, str]]:
    """The figures of a ratio with fewer and fewer decimals, as long as its low end does not read as 0."""
    fewer = reversed(range(interval_places(interval)))
    yield from (at_places(interval, places) for places in fewer if round(interval.low, places) > 0)


def fitting(forms: Sequence[str], room: int) -> str:
    """The first form that fits; none of a figure is shown if none does."""
    return next((form for form in forms if width(form) <= room), "")


def bar(interval: Interval, top: float, room: int, *, doubted: bool = False) -> tuple[Cell, ...]:
    """A bar of ``room`` cells from 0 to ``top``: solid up to the interval's low end, a lighter band from there to its high end.

    A thin line marks the baseline (1×) if the bar does not reach it. The bar of a doubted time has the ink of an undecided one.
    """
    if room <= 0 or top <= 0:
        return ()
    ink = Ink.UNDECIDED if doubted else speedup_ink(interval)
    solid, reach = (min(room * 8, max(0, round(end / top * room * 8))) for end in (interval.low, interval.high))
    baseline = round(room / top)
    return merge_cells(_bar_cell(ink, solid - 8 * x, max(reach, 1) - 8 * x, x == baseline) for x in range(room))


def _bar_cell(ink: Ink, solid: int, reach: int, marked: bool) -> Cell:
    """One cell of a bar; ``solid`` and ``reach``: eighths of the cell covered by the two parts."""
    bar_ink, band_ink, band = _BANDS[ink]
    if solid >= 8:
        return Cell("█", bar_ink)
    if solid > 0:
        return Cell(EIGHTHS[solid], bar_ink, band if reach >= 8 else Ground.NONE)
    if reach > 0:
        return Cell(EIGHTHS[min(8, reach)], band_ink)
    return Cell("▏", Ink.RULE) if marked else Cell(" ")


def meter(share: float, room: int, ink: Ink = Ink.ACCENT) -> tuple[Cell, ...]:
    """A share, 0 … 1, as a bar on a track."""
    eighths = min(room * 8, max(0, round(share * room * 8)))
    full, part = divmod(eighths, 8)
    cells = (
        Cell("█" * full, ink),
        Cell(EIGHTHS[part] if part else "", ink, Ground.TRACK),
        Cell(" " * (room - full - (1 if part else 0)), ink, Ground.TRACK),
    )
    return tuple(cell for cell in cells if cell.text)


def interval_line(interval: Interval, low: float, high: float, room: int, ink: Ink) -> tuple[Cell, ...]:
    """``├──●──┤`` on a scale from ``low`` to ``high``, ``room`` cells wide; ends outside, infinite ones too, are arrows."""
    if room < 3:
        return (Cell("●".ljust(room), ink),)
    span = max(high - low, 1e-300)

    def place(value: float, rounded: Callable[[float], int] = round) -> int:
        return min(room - 1, rounded((min(max(value, low), high) - low) / span * (room - 1)))

    middle = place(interval.value)
    left = min(place(interval.low, math.floor), max(0, middle - 1))
    right = max(place(interval.high, math.ceil), min(room - 1, middle + 1))
    marks = [" "] * room
    for x in range(left, right + 1):
        marks[x] = "─"
    marks[left] = "◂" if interval.low < low else "├"
    marks[right] = "▸" if interval.high > high else "┤"
    marks[middle] = "●"
    return (Cell("".join(marks), ink),)


def histogram(values: Sequence[float], room: int, height: int = 4) -> tuple[list[str], float, float]:
    """A histogram as ``height`` rows of text from the top, with both ends of the scale.

    If a few outliers would squeeze the rest into one column, the scale ends at the 99th percentile and the last column counts
    what lies beyond.
    """
    if not values or room <= 0:
        return [], 0.0, 0.0
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    tail = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    if tail > low and high - low > 4 * (tail - low):
        high = tail
    span = high - low
    counts = [0] * room
    for value in ordered:
        counts[min(room - 1, int((value - low) / span * room)) if span > 0 else room // 2] += 1
    most = max(counts)
    rows = []
    for row in reversed(range(height)):
        levels = (count / most * height * 8 - row * 8 for count in counts)
        rows.append("".join(LEVELS[min(8, max(0, math.ceil(level)))] for level in levels))
    return rows, low, high


def sparkline(values: Sequence[float]) -> str:
    """One column per value, scaled between the smallest and the largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low
    return "".join(LEVELS[1 + round((value - low) / span * 7)] if span > 0 else LEVELS[4] for value in values)


def binary_bytes(size: float) -> str:
    """``48 KiB``, ``1.5 MiB``, ``16 B``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            value = size / scale
            return f"{value:.0f} {unit}" if value == int(value) or value >= 100 else f"{value:.1f} {unit}"
    return f"{size:.0f} B"


def elapsed(seconds: float) -> str:
    """``0.8 s``, ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(at: float) -> str:
    """Time of day in UTC: ``14:03:07``."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def day(at: float) -> str:
    """The day in UTC: ``2026-11-20``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def moment(at: float, since: float) -> str:
    """Time of day, preceded by the date if that differs from the date of ``since``."""
    return clock(at) if day(at) == day(since) else f"{day(at)} {clock(at)}"


def sol(fraction: float) -> str:
    """A share of the speed of light: ``61% SOL``."""
    return f"{percent(fraction)} SOL"


def error(value: float) -> str:
    """``9.0e-08``; ``0`` for zero."""
    return "0" if value == 0 else f"{value:.1e}"


def tokens(count: int) -> str:
    """``840``, ``12.3k``, ``1.24M``: a count of tokens in at most five characters."""
    if count < 1000:
        return str(count)
    return f"{digits(count / 1000)}k" if count < 999_500 else f"{digits(count / 1e6)}M"


def dollars(amount: float) -> str:
    """``$0.42``; three decimals below ten cents."""
    return f"${amount:.2f}" if amount >= 0.095 or amount == 0 else f"${amount:.3f}"


def change(before: float, after: float, *, fewer_is_better: bool = True, unit: str = "") -> Cell:
    """The change of a count: ``▼ 12``, coloured by whether fewer is better; ``=`` without a change."""
    if after == before:
        return Cell("=", Ink.FAINT)
    better = (after < before) is fewer_is_better
    words = f"{'▼' if after < before else '▲'} {abs(after - before):g}{unit}"
    return Cell(words, Ink.GOOD if better else Ink.WARN)
