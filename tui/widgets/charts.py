"""The charts: the incumbent's speedup by round, the device's roofline, and for a suite the heat map of its workloads.

A focused chart zooms with + and -, moves with the arrow keys, and shows the whole again with 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer

from engine.domain.state import SessionState
from tui.viewmodel import charts, heat_map
from tui.viewmodel.cells import BLANK, width
from tui.viewmodel.charts import ChartPage
from tui.viewmodel.plot import WHOLE, PlotWindow
from tui.widgets.lines import is_displayed
from tui.widgets.painter import PaintedWidget

_WIDE = 96
_LEGEND_EDGES = 4
"""Columns of the border beside a legend."""
_HEAT_HEADS = 2
"""Rows of the heat map above its workloads."""
_LOW = 18
"""Below this height, only one of two charts is shown."""
_MANY = 256
"""Above this number of kernels, drawing a chart takes long."""
_MOST_SHARE = 0.1
"""How much of the time such a chart may be drawn."""


class PlotView(PaintedWidget, can_focus=True):
    """A chart that is drawn when its state, its window or its size changes, while it is visible."""

    DEFAULT_CSS = """
    PlotView {
        min-height: 4;
        border: round $border-blurred;
        border-title-color: $foreground;
        border-title-style: bold;
        border-subtitle-color: $text-muted;
        background: $surface;
        color: $foreground;
        &:focus { border: round $border; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", show=False, id="chart.zoom-in"),
        Binding("minus", "zoom(-1)", "Zoom out", show=False, id="chart.zoom-out"),
        Binding("left,h", "pan(-1, 0)", "Left", show=False, id="chart.left"),
        Binding("right,l", "pan(1, 0)", "Right", show=False, id="chart.right"),
        Binding("up", "pan(0, 1)", "Up", show=False, id="chart.up"),
        Binding("down", "pan(0, -1)", "Down", show=False, id="chart.down"),
        Binding("0,home", "whole", "Whole chart", show=False, id="chart.whole"),
    ]

    state: reactive[SessionState | None] = reactive(None, repaint=False)
    selected: reactive[str] = reactive("", repaint=False)
    view: reactive[PlotWindow] = reactive(WHOLE, repaint=False)

    _due: Timer | None = None
    _rest_until = 0.0
    _is_due = False
    _chart: ChartPage | None = None

    def watch_state(self, before: SessionState | None, after: SessionState | None) -> None:
        if before is None or after is None or before.kernels is not after.kernels or before.rounds is not after.rounds:
            self._draw_soon()

    def watch_selected(self) -> None:
        self._draw_soon()

    def watch_view(self) -> None:
        self.draw()

    def _draw_soon(self) -> None:
        """Draw immediately; in a large session after the rows and pages, or later."""
        left = self._rest_until - time.monotonic()
        if self.state is None or len(self.state.kernels) <= _MANY:
            self.draw()
        elif left <= 0:
            self._draw_next()
        elif self._due is None:
            self._due = self.set_timer(left, self.draw)

    def _draw_next(self) -> None:
        """Draw once for all that changes now, when it is settled whether the chart has room."""
        if not self._is_due:
            self._is_due = True
            self.call_after_refresh(self.draw)

    def on_show(self) -> None:
        self._draw_next()

    def on_resize(self) -> None:
        self._draw_next()

    def draw(self) -> None:
        """Draw the state if there is one and room for it."""
        self._is_due = False
        if self._due is not None:
            self._due.stop()
            self._due = None
        if not is_displayed(self) or self.state is None or self.size.width < 12 or self.size.height < 1:
            return
        begun = time.monotonic()
        chart = self.make(self.state, self.size.width, self.size.height)
        ended = time.monotonic()
        self._rest_until = ended + (ended - begun) / _MOST_SHARE
        zoomed = " · 0: whole" if self.view != WHOLE else ""
        self.border_title = Content(f"{chart.title}{zoomed}")
        room = self.size.width - _LEGEND_EDGES
        self.border_subtitle = Content(next((legend for legend in chart.legends if width(legend) <= room), ""))
        if self._chart is None or chart.lines != self._chart.lines:
            self._chart = chart
            self.refresh()

    def make(self, state: SessionState, room: int, height: int) -> ChartPage:
        """The chart in this many cells."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        lines = self._chart.lines if self._chart is not None else ()
        return self.painter.strip(lines[y] if y < len(lines) else BLANK, self.size.width, self.base_style)

    def action_zoom(self, steps: int) -> None:
        """Zoom in or out."""
        self.view = self.view.zoomed(steps)

    def action_pan(self, right: int, up: int) -> None:
        """Move the window."""
        self.view = self.view.moved(right, up)

    def action_whole(self) -> None:
        """Show the whole chart."""
        self.view = WHOLE


class SpeedupChart(PlotView):
    """Speedup by round: the incumbent as steps, each kernel as a dot, the baseline as a line at 1×."""

    def make(self, state: SessionState, room: int, height: int) -> ChartPage:
        return charts.speedup_chart(state, self.selected, self.view, room, height)


class RooflineChart(PlotView):
    """Operations per second under the device's measured ceilings."""

    def make(self, state: SessionState, room: int, height: int) -> ChartPage:
        return charts.roofline_chart(state, self.selected, self.view, room, height)


class HeatMap(PlotView):
    """Speedups of a suite by workload and kernel; left and right show other kernels, up and down other workloads."""

    first: reactive[int] = reactive(0, repaint=False)
    top: reactive[int] = reactive(0, repaint=False)

    def make(self, state: SessionState, room: int, height: int) -> ChartPage:
        return heat_map.heat_map(state, self.selected, self.first, self.top, room, height)

    def watch_first(self) -> None:
        self.draw()

    def watch_top(self) -> None:
        self.draw()

    def action_zoom(self, steps: int) -> None:
        """A table of figures has no zoom."""

    def action_pan(self, right: int, up: int) -> None:
        """Show other kernels, or other workloads."""
        if self.state is not None:
            self.first = max(0, min(len(self.state.kernels) - 1, self.first + right))
            hidden = len(heat_map.workload_names(self.state)) - (self.size.height - _HEAT_HEADS)
            self.top = max(0, min(hidden, self.top - up))

    def action_whole(self) -> None:
        """Show the fastest kernels and the first workloads."""
        self.first = self.top = 0


class Charts(Container):
    """The charts side by side where there is room, else one above the other, else one at a time."""

    DEFAULT_CSS = """
    Charts {
        layout: vertical;
        background: $surface;
        &.-wide { layout: horizontal; }
        & > PlotView { width: 1fr; height: 1fr; }
        & > .-hidden { display: none; }
    }
    """

    state: reactive[SessionState | None] = reactive(None, repaint=False)
    selected: reactive[str] = reactive("", repaint=False)
    shown: reactive[int] = reactive(0, repaint=False)
    """Which chart, where only one is shown."""

    def compose(self) -> ComposeResult:
        yield SpeedupChart()
        yield RooflineChart()
        yield HeatMap()

    @property
    def _all(self) -> Sequence[PlotView]:
        suite = self.state is not None and heat_map.has_heat_map(self.state)
        return [chart for chart in self.query(PlotView) if suite or not isinstance(chart, HeatMap)]

    @property
    def _one_at_a_time(self) -> bool:
        return self.size.width < _WIDE and self.size.height < _LOW

    def show_next(self) -> bool:
        """Show the next chart where only one is shown; ``False`` after the last one."""
        if not self._one_at_a_time or self.shown + 1 >= len(self._all):
            self.shown = 0
            return False
        self.shown += 1
        return True

    def watch_state(self, state: SessionState | None) -> None:
        for chart in self.query(PlotView):
            chart.state = state
        self._arrange()

    def watch_selected(self, selected: str) -> None:
        for chart in self.query(PlotView):
            chart.selected = selected

    def watch_shown(self) -> None:
        self._arrange()

    def on_mount(self) -> None:
        self.watch_state(self.state)
        self.watch_selected(self.selected)

    def on_resize(self) -> None:
        self.set_class(self.size.width >= _WIDE, "-wide")
        self._arrange()

    def _arrange(self) -> None:
        offered = self._all
        for chart in self.query(PlotView):
            alone = not self._one_at_a_time or (chart in offered and offered.index(chart) == self.shown % len(offered))
            chart.set_class(chart not in offered or not alone, "-hidden")
