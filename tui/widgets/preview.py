"""The preview on the home screen: prepared lines beside the session's speedup by round, where there is room for it."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content

from engine.domain.state import SessionState
from tui.viewmodel.cells import Line
from tui.widgets.charts import SpeedupChart
from tui.widgets.lines import LinesView

_CHART_FROM = (76, 12)
"""Columns and rows from which the chart is shown."""


class Preview(Container):
    """Lines for the present width, and a chart of a session that has kernels."""

    DEFAULT_CSS = """
    Preview {
        layout: horizontal;
        border: round $border-blurred;
        border-title-color: $text-muted;
        border-title-style: bold;
        background: $background;
        & > LinesView { width: 1fr; height: 1fr; background: $background; }
        & > SpeedupChart { width: 1fr; height: 1fr; border: none; background: $background; display: none; }
        &.-charted > SpeedupChart { display: block; }
    }
    """

    _make: Callable[[int], tuple[Line, ...]] | None = None
    _has_chart = False

    def compose(self) -> ComposeResult:
        page = LinesView()
        page.can_focus = False
        yield page
        yield SpeedupChart()

    def show(self, title: str, make: Callable[[int], tuple[Line, ...]], state: SessionState | None = None) -> None:
        """Show these lines, made for a width; with ``state``, the session's speedup beside them."""
        self.border_title = Content(title)
        self._make = make
        self._has_chart = state is not None and bool(state.kernels)
        if state is not None:
            self.query_one(SpeedupChart).state = state
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        columns, rows = _CHART_FROM
        charted = self._has_chart and self.size.width >= columns and self.size.height >= rows
        self.set_class(charted, "-charted")
        if self._make is not None:
            self.query_one(LinesView).lines = self._make(max(10, self.size.width // (2 if charted else 1) - 2))
