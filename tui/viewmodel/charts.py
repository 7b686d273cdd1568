"""The charts as lines: the incumbent's speedup by rounds, and the device's roofline. Figures: ``report.facts.charts``. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from engine.domain import queries
from engine.domain.state import SessionState
from engine.report.facts import charts
from engine.report.facts.ticks import Span, log_ticks, round_ticks
from tui.viewmodel import fmt, plot
from tui.viewmodel.cells import Cell, Ink, Line, fold_line, line, width
from tui.viewmodel.pages import empty_page
from tui.viewmodel.plot import Canvas, Plane, PlotAxis, PlotWindow
from tui.viewmodel.tree_facts import tree_facts

_SPREAD = 0.32
"""Horizontal spread of the dots of one round, in rounds."""
_CEILING_INKS = (Ink.ACCENT, Ink.VERIFY, Ink.BUILD, Ink.REPAIR)
_SOLID, _HOLLOW, _SELECTED, _BEST_MEASURED = "●", "○", "◆", "◇"
_LEAST = 5
"""Rows below which a plot is replaced by its figures."""
_DECADES = 1.0
"""How far beyond intensities and ridges the roofline reaches, in powers of ten."""


@dataclass(frozen=True, slots=True)
class ChartPage:
    """A chart: its title, its lines, and a legend in several lengths, the longest first."""

    title: str
    lines: tuple[Line, ...]
    legends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dot:
    """A kernel in a chart."""

    kernel: str
    x: float
    y: float
    precise: bool
    """Measured with process pairs, and corroborated; others are drawn hollow."""


def speedup_chart(state: SessionState, selected: str, view: PlotWindow, room: int, height: int) -> ChartPage:
    """Speedup by round: the incumbent as steps, every kernel as a dot, the baseline as a line at 1×.

    The line follows the races. The greatest value that was measured, which chance may have favoured, is only a dot.
    """
    found = charts.climb(state)
    title = f"speedup × {found.baseline} by round"
    dots = _climb_dots(found)
    if not dots:
        return ChartPage(title, empty_page("no kernel is measured yet"))
    if height < _LEAST:
        return ChartPage(title, _climb_words(found, dots, room)[-height:])
    # a kernel that is added by hand may come before its round opens: after round 4 of 4 it stands at "4+"
    rounds = sorted({*state.rounds, *(dot.round for dot in found.dots)})
    top = max(1.1, max(dot.y for dot in dots) * 1.1)
    whole = (min(rounds) - 0.5, max(rounds) + 0.5), _through_one(min(dot.y for dot in dots), top, height - 2)
    x, y = view.spans(*whole)
    marks = sorted({1.0, *round_ticks(y, _most_ticks(height))}, key=lambda mark: mark != 1.0)
    y_axis = PlotAxis(tuple((mark, f"{mark:.4g}×") for mark in marks if max(0.0, y[0]) <= mark <= y[1]), "")
    last = queries.last_round(state)
    x_axis = PlotAxis(tuple((float(number), str(number) if number <= last else f"{last}+") for number in rounds), "")
    canvas = Canvas(plot.plane_of(x, y, y_axis, room, height))
    canvas.along(1.0, *whole[0], "┄", Ink.RULE)
    _steps(canvas, tuple(_incumbent_steps(found, dots)), whole[0][1])
    best = max((dot for dot in dots if dot.precise), key=lambda dot: dot.y, default=None)
    led = queries.incumbent(state)
    _draw_dots(canvas, dots, selected)
    if best is not None and led is not None and best.kernel not in (led.id, selected):
        canvas.mark(best.x, best.y, _BEST_MEASURED, Ink.WARN)
    return ChartPage(title, plot.framed(canvas, x_axis, y_axis), _legends(state, _CLIMB_LEGENDS))


def _through_one(least: float, top: float, rows: int) -> Span:
    """The span of the speedups, from 0 where there are rows enough, with 1× in the middle of a row: what lies on the line is
    within half a row of it, and what is clearly slower lies below it. A few rows are too coarse for that."""
    if rows < _SOME_ROWS:
        return 0.0, top
    least = 0.0 if rows >= _MANY_ROWS else min(1.0, least)
    steps = {below: max((1.0 - least) / below, (top - 1.0) / (rows - 1 - below)) for below in range(1, rows - 1)}
    below = min(steps, key=lambda one: steps[one])
    return 1.0 - below * steps[below], 1.0 + (rows - 1 - below) * steps[below]


_SOME_ROWS, _MANY_ROWS = 5, 9
_HIGHEST = 1e9
"""Where a greater speedup is drawn, e.g. an infinite one, which a runner's claim can make it."""
_CLIMB_LEGENDS = (
    "╭─ incumbent, by races   ◇ best measured   ● measured   ○ screened   ◆ selected",
    "╭─ incumbent  ◇ best measured  ● measured  ○ screened  ◆ selected",
    "╭─ incumbent  ◇ best  ○ screened  ◆ selected",
    "╭─ incumbent  ◇ best  ◆ selected",
)


def _legends(state: SessionState, legends: tuple[str, ...]) -> tuple[str, ...]:
    """With kernels whose time is not corroborated, which are hollow too."""
    if not tree_facts(state).doubted:
        return legends
    return tuple(one.replace("screened", "screened or not corroborated") for one in legends)


_ROOF_LEGENDS = ("● measured   ○ screened   ◆ selected", "○ screened  ◆ selected")


def _climb_words(found: charts.Climb, dots: Sequence[Dot], room: int) -> tuple[Line, ...]:
    """The incumbents without a plot, where there is no room for one."""
    steps = [step.speedup for step in found.incumbents]
    best = max(dots, key=lambda dot: dot.y)
    words = f" {' → '.join(f'{fmt.digits(step)}×' for step in steps)}" if steps else ""
    steps_lines = fold_line(line(Cell(words, Ink.BEST)), room, 1)
    return (*steps_lines, line(Cell(f" {_BEST_MEASURED} {best.kernel} {fmt.digits(best.y)}×", Ink.WARN)))


def _climb_dots(found: charts.Climb) -> tuple[Dot, ...]:
    """Every measured kernel by its round; kernels of one round side by side, oldest first."""
    dots: list[Dot] = []
    measured = sorted((dot for dot in found.dots if dot.speedup is not None), key=lambda dot: dot.round)
    for number, group in groupby(measured, key=lambda dot: dot.round):
        here = list(group)
        for place, dot in enumerate(here):
            aside = 0.0 if len(here) == 1 else _SPREAD * (2 * place / (len(here) - 1) - 1)
            dots.append(Dot(dot.kernel, number + aside, min(dot.speedup or 0.0, _HIGHEST), dot.precise))
    return tuple(dots)


def _incumbent_steps(found: charts.Climb, dots: Sequence[Dot]) -> Iterator[tuple[float, float]]:
    """(where it took the lead, its speedup) of each incumbent, from left to right."""
    places = {dot.kernel: dot.x for dot in dots}
    last = -math.inf
    for step in found.incumbents:
        if step.kernel in places:
            last = max(last, places[step.kernel])
            yield last, min(step.speedup, _HIGHEST)


def _steps(canvas: Canvas, steps: Sequence[tuple[float, float]], right: float) -> None:
    """Connected lines: along a reign, then up or down to the next speedup."""
    for (x, y), (end, level) in pairwise([*steps, (right, math.nan)]):
        canvas.along(y, x, end, "─", Ink.BEST)
        before, after = canvas.plane.row(y), canvas.plane.row(y if math.isnan(level) else level)
        if before != after:
            canvas.up(end, y, level, "│", Ink.BEST)
            rises = after < before
            canvas.mark(end, y, "╯" if rises else "╮", Ink.BEST)
            canvas.mark(end, level, "╭" if rises else "╰", Ink.BEST)


def _draw_dots(canvas: Canvas, dots: Sequence[Dot], selected: str) -> None:
    """Hollow dots for kernels that are screened or not corroborated, solid ones for the others, the selected one on top."""
    for dot in sorted(dots, key=lambda dot: (dot.kernel == selected, dot.precise)):
        if dot.kernel == selected:
            canvas.mark(dot.x, dot.y, _SELECTED, Ink.MARK)
        else:
            canvas.mark(dot.x, dot.y, *((_SOLID, Ink.FASTER) if dot.precise else (_HOLLOW, Ink.UNDECIDED)))


def roofline_chart(state: SessionState, selected: str, view: PlotWindow, room: int, height: int) -> ChartPage:
    """Operations per second under the device's measured ceilings; both axes are logarithmic."""
    found = charts.roofline(state)
    if found is None:
        why = "no peaks measured" if state.preparation is not None else "available after the preparation"
        return ChartPage("roofline", empty_page(why))
    if height < _LEAST:
        ends = "".join(f" · {name} {fmt.scaled(peak)}FLOP/s" for name, peak in reversed(found.peaks))
        words = line(Cell(f" {fmt.scaled(found.copy)}B/s{ends}", Ink.FAINT))
        return ChartPage("roofline", tuple(fold_line(words, room, 1)[:height]))
    figures = f"{fmt.digits(found.intensity)} FLOP/byte" if found.counted else "one operation per output"
    dots = tuple(Dot(d.kernel, math.log10(found.intensity), math.log10(d.rate), d.precise) for d in found.dots)
    peaks = [(name, math.log10(peak)) for name, peak in found.peaks]
    copy = math.log10(found.copy)
    x, y = view.spans(*_roof_spans(found, peaks, copy, dots))
    y_axis = PlotAxis(tuple((value, fmt.scaled(10.0**value)) for value in log_ticks(y, _most_ticks(height))), "FLOP/s")
    x_axis = PlotAxis(tuple((value, f"{10.0**value:.4g}") for value in log_ticks(x, 12)), "FLOP/byte")
    canvas = Canvas(plot.plane_of(x, y, y_axis, room, height))
    here = math.log10(found.intensity)
    canvas.up(here, y[0], min(copy + here, peaks[-1][1]), "┊", Ink.RULE)
    canvas.curve(lambda at: copy + at, x[0], peaks[-1][1] - copy, Ink.BEST)
    for place, (_, peak) in enumerate(peaks):
        beside = canvas.plane.x_at(canvas.plane.column(peak - copy) + 1)
        canvas.along(peak, beside, x[1], "─", _CEILING_INKS[min(place, len(_CEILING_INKS) - 1)])
    _draw_dots(canvas, dots, selected)
    _label_ceilings(canvas, found.peaks)
    _label_copy(canvas, f"{fmt.scaled(found.copy)}B/s", copy)
    frame = plot.framed(canvas, x_axis, y_axis)
    return ChartPage(f"roofline: {figures}, bound by {found.bound}", frame, _legends(state, _ROOF_LEGENDS))


def _roof_spans(
    found: charts.Roofline, peaks: Sequence[tuple[str, float]], copy: float, dots: Sequence[Dot]
) -> tuple[Span, Span]:
    places = [math.log10(found.intensity), *(peak - copy for _, peak in peaks)]
    left, right = min(places) - _DECADES, max(places) + _DECADES
    heights = [copy + left, peaks[-1][1], *(dot.y for dot in dots)]
    return (left, right), (min(heights) - 0.2, max(heights) + 0.5)


def _label_ceilings(canvas: Canvas, peaks: Sequence[tuple[str, float]]) -> None:
    """Name each ceiling above its line, or below it; those in one row share a label."""
    plane = canvas.plane
    rows = sorted((plane.row(math.log10(peak)), place, name, peak) for place, (name, peak) in enumerate(peaks))
    for row, group in groupby(rows, key=lambda entry: entry[0]):
        here = list(group)
        ink = _CEILING_INKS[min(here[-1][1], len(_CEILING_INKS) - 1)]
        for words in _ceiling_words([(name, peak) for _, _, name, peak in here]):
            if canvas.text(words, _places_beside(plane, row, width(words)), ink):
                break


def _ceiling_words(peaks: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Labels of ceilings in one row, slowest first: the longest first, then without units, then without the slowest."""
    for start in range(len(peaks)):
        *others, (last, peak) = peaks[start:]
        end = f"{last} {fmt.scaled(peak)}"
        yield " · ".join([*(f"{name} {fmt.scaled(rate)}FLOP/s" for name, rate in others), f"{end}FLOP/s"])
        yield " · ".join([*(f"{name} {fmt.scaled(rate)}" for name, rate in others), f"{end}FLOP/s"])
        yield " · ".join([*(f"{name} {fmt.scaled(rate)}" for name, rate in others), end])


def _places_beside(plane: Plane, row: int, length: int) -> Iterator[tuple[int, int]]:
    """Places above and below a row, from the right end to the left."""
    for column in range(plane.columns - length - 1, plane.columns // 3, -4):
        yield column, row - 1
        yield column, row + 1


def _label_copy(canvas: Canvas, words: str, copy: float) -> None:
    """Name the slope, above it."""
    plane = canvas.plane
    columns = range(plane.columns // 3, plane.columns)
    canvas.text(words, ((at - width(words) - 1, plane.row(copy + plane.x_at(at)) - 1) for at in columns), Ink.BEST)


def _most_ticks(height: int) -> int:
    """How many ticks fit on the y axis."""
    return max(1, min(8, (height - 3) // 2))
