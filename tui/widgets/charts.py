"""Two charts: the incumbent's speedup by round with a dot for every kernel, and the device's roofline."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual_plotext import PlotextPlot

from engine.domain.state import SessionState
from tui.viewmodel import charts, fmt
from tui.widgets.lines import is_displayed
from tui.widgets.painter import Painter

_WIDE = 96
_EVERY_SECONDS = 0.5
_GRID = 256
"""Grid cells per axis; of several dots in one cell, one is drawn."""
_CEILINGS = ("ink-accent", "stage-verify", "stage-build", "stage-repair")
_LEGEND = "● measured   ○ screened   ◆ selected"
Colour = tuple[int, int, int]


class _Chart(PlotextPlot):
    """A plot that is redrawn when its state, the theme or its size changes, while it is visible."""

    DEFAULT_CSS = """
    _Chart {
        min-height: 8;
        border: round $border-blurred;
        border-title-color: $foreground;
        border-title-style: bold;
        border-subtitle-color: $text-muted;
        background: $surface;
    }
    """

    state: reactive[SessionState | None] = reactive(None)
    selected: reactive[str] = reactive("")

    _due: Timer | None = None
    _drawn_at = 0.0

    def on_mount(self) -> None:
        self.border_subtitle = Content(_LEGEND)

    def watch_state(self, before: SessionState | None, after: SessionState | None) -> None:
        if before is None or after is None or before.kernels is not after.kernels or before.rounds is not after.rounds:
            self._replot_soon()

    def watch_selected(self) -> None:
        self._replot_soon()

    def _replot_soon(self) -> None:
        """Redraw immediately, or at most twice a second in a large session."""
        many = self.state is not None and len(self.state.kernels) > _GRID
        left = self._drawn_at + _EVERY_SECONDS - time.monotonic()
        if left <= 0 or not many:
            self.replot()
        elif self._due is None:
            self._due = self.set_timer(left, self.replot)

    def on_show(self) -> None:
        self.replot()

    def on_resize(self) -> None:
        self.replot()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.replot()

    def replot(self) -> None:
        """Draw the state if there is one and room for it."""
        if self._due is not None:
            self._due.stop()
            self._due = None
        if not is_displayed(self) or self.state is None or self.size.width < 20 or self.size.height < 5:
            return
        self._drawn_at = time.monotonic()
        plot: Any = self.plt
        plot.clear_data()
        plot.clear_figure()
        painter = Painter(self)
        self._draw(plot, self.state, painter)
        for paint in (plot.canvas_color, plot.axes_color):
            paint(painter.rgb("surface"))
        plot.ticks_color(painter.rgb("ink-faint"))
        plot.xaxes(True, False)
        plot.yaxes(True, False)
        self.refresh()

    def render(self) -> Text:
        """The plot as drawn by ``replot``, in the colours of the app's theme."""
        plot: Any = self.plt
        plot.plotsize(self.size.width, self.size.height)
        plot._set_size(self.size.width, self.size.height)
        return Text.from_ansi(plot.build())

    @property
    def _most_marks(self) -> int:
        """How many ticks fit on the y axis."""
        return max(1, min(6, (self.size.height - 5) // 2))

    def _draw(self, plot: Any, state: SessionState, painter: Painter) -> None:
        raise NotImplementedError


class SpeedupChart(_Chart):
    """Speedup by round: the incumbent as steps, each kernel as a dot, the baseline as a line at 1×."""

    def _draw(self, plot: Any, state: SessionState, painter: Painter) -> None:
        shown = charts.climb(state)
        self.border_title = Content(f"speedup × {shown.baseline} by round")
        if not shown.dots:
            plot.xlim(0, 1)
            plot.ylim(0, 2)
            return
        high = max(1.1, max(dot.y for dot in shown.dots) * 1.1)
        left, right = min(shown.rounds) - 0.5, max(shown.rounds) + 0.5
        plot.ylim(0, high)
        plot.xlim(left, right)
        plot.xticks([float(n) for n in shown.rounds], [str(n) for n in shown.rounds])
        marks = _marks(high, self._most_marks)
        plot.yticks(marks, [f"{mark:g}×" for mark in marks])
        plot.plot([left, right], [1.0, 1.0], marker="┄", color=painter.rgb("ink-rule"))
        _stairs(plot, shown.line, right, painter.rgb("badge-best"))
        _dots(plot, shown.dots, self.selected, painter)


class RooflineChart(_Chart):
    """Operations per second under the device's measured ceilings; both axes are logarithmic."""

    def _draw(self, plot: Any, state: SessionState, painter: Painter) -> None:
        shown = charts.roofline(state)
        if shown is None:
            prepared = state.preparation is not None
            self.border_title = Content(f"roofline: {'no peaks measured' if prepared else 'available after the preparation'}")
            return
        facts = shown.facts
        figures = f"{fmt.digits(facts.intensity)} FLOP/byte" if facts.counted else "one operation per output"
        self.border_title = Content(f"roofline: {figures}, bound by {facts.bound}")
        for ceiling, variable in zip(
            shown.ceilings, ("ink-accent", "stage-verify", "stage-build", "stage-repair"), strict=False
        ):
            xs, ys = _log([p[0] for p in ceiling.points]), _log([p[1] for p in ceiling.points])
            plot.plot(xs[:2], ys[:2], marker="braille", color=painter.rgb(variable))
            plot.plot(xs[1:], ys[1:], marker="─", color=painter.rgb(variable))
            label = f"{ceiling.name} {fmt.scaled(ceiling.points[-1][1])}FLOP/s "
            ground = painter.rgb("surface")
            plot.text(label, xs[-1], ys[-1] + 0.2, alignment="right", color=painter.rgb(variable), background=ground)
        dots = tuple(charts.Dot(d.kernel, math.log10(d.x), math.log10(d.y), d.precise) for d in shown.dots)
        corners = [p for ceiling in shown.ceilings for p in ceiling.points]
        xs = _log([x for x, _ in corners])
        ys = [*_log([y for _, y in corners]), *(dot.y for dot in dots)]
        plot.xlim(min(xs), max(xs))
        plot.ylim(min(ys) - 0.3, max(ys) + 0.4)
        _log_ticks(plot.xticks, min(xs), max(xs), "{:g}".format, 12)
        _log_ticks(plot.yticks, min(ys) - 0.3, max(ys) + 0.4, fmt.scaled, self._most_marks)
        _dots(plot, dots, self.selected, painter)


def _stairs(plot: Any, steps: Sequence[tuple[float, float]], right: float, colour: Colour) -> None:
    """The incumbent as connected lines: along a round, then up or down to the next speedup."""
    joints: list[tuple[float, float, str]] = []
    for (x, y), (end, level) in itertools.pairwise([*steps, (right, 0.0)]):
        if end > x:
            plot.plot([x, end], [y, y], marker="─", color=colour)
        if end < right and level != y:
            plot.plot([end, end], [y, level], marker="│", color=colour)
            joints += [(end, y, "╯"), (end, level, "╭")] if level > y else [(end, y, "╮"), (end, level, "╰")]
    for x, y, marker in joints:
        plot.scatter([x], [y], marker=marker, color=colour)


def _log(values: Sequence[float]) -> list[float]:
    return [math.log10(value) for value in values]


def _log_ticks(put: Any, low: float, high: float, words: Callable[[float], str], most: int) -> None:
    powers = range(math.ceil(low), math.floor(high) + 1)
    powers = powers[:: -(-len(powers) // most) or 1]
    put([float(p) for p in powers], [words(10.0**p) for p in powers])


def _marks(high: float, most: int) -> list[float]:
    """At most ``most`` round numbers from 0 to ``high``."""
    step = next(s * 10**p for p in range(-1, 9) for s in (1, 2, 5) if high / (s * 10**p) <= most)
    return [step * n for n in range(int(high / step) + 1)]


def _dots(plot: Any, dots: Sequence[charts.Dot], selected: str, painter: Painter) -> None:
    """A hollow dot for a screened kernel, a solid one for a measured kernel, a diamond for the selected one."""
    dots = _thinned(dots, selected)
    groups = (
        ("○", painter.rgb("speedup-undecided"), [d for d in dots if not d.precise and d.kernel != selected]),
        ("●", painter.rgb("speedup-good"), [d for d in dots if d.precise and d.kernel != selected]),
        ("◆", painter.rgb("badge-mark"), [d for d in dots if d.kernel == selected]),
    )
    for marker, colour, group in groups:
        if group:
            plot.scatter([d.x for d in group], [d.y for d in group], marker=marker, color=colour)


def _thinned(dots: Sequence[charts.Dot], selected: str) -> Sequence[charts.Dot]:
    """One dot for each cell of a fine grid, and always the selected one."""
    if len(dots) < _GRID:
        return dots
    width = max(d.x for d in dots) - min(d.x for d in dots) or 1.0
    height = max(d.y for d in dots) - min(d.y for d in dots) or 1.0
    seen = {(int(_GRID * d.x / width), int(_GRID * d.y / height), d.precise, d.kernel == selected): d for d in dots}
    return tuple(seen.values())


class Charts(Container):
    """Both charts, side by side where there is room, else one above the other."""

    DEFAULT_CSS = """
    Charts {
        layout: vertical;
        background: $surface;
        &.-wide { layout: horizontal; }
        & > _Chart { width: 1fr; height: 1fr; }
    }
    """

    state: reactive[SessionState | None] = reactive(None)
    selected: reactive[str] = reactive("")

    def compose(self) -> ComposeResult:
        yield SpeedupChart()
        yield RooflineChart()

    def watch_state(self, state: SessionState | None) -> None:
        for chart in self.query(_Chart):
            chart.state = state

    def watch_selected(self, selected: str) -> None:
        for chart in self.query(_Chart):
            chart.selected = selected

    def on_mount(self) -> None:
        self.watch_state(self.state)
        self.watch_selected(self.selected)

    def on_resize(self) -> None:
        self.set_class(self.size.width >= _WIDE, "-wide")
