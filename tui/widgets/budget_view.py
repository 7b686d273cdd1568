"""What models were asked and what it cost, as a page."""

from __future__ import annotations

from textual.reactive import reactive

from engine.domain.state import SessionState
from tui.viewmodel import budget
from tui.widgets.lines import LinesView, is_shown


class BudgetView(LinesView):
    """Made anew when something was spent or a limit changed, and only while it can be seen."""

    DEFAULT_CSS = """
    BudgetView { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    state: reactive[SessionState | None] = reactive(None)

    _made: tuple[object, ...] = ()

    def watch_state(self) -> None:
        self._fill()

    def on_resize(self) -> None:
        self._fill()

    def on_show(self) -> None:
        self._fill()

    def _fill(self) -> None:
        state = self.state
        if state is None or not is_shown(self):
            return
        width = self.scrollable_content_region.width or 80
        shown = (state.calls, state.limits, state.pauses, state.paused, state.capped, width)
        if shown != self._made:
            self._made = shown
            self.lines = budget.page(state, width)
