"""The strip of a session's workers, above the strip of running work; hidden without a fleet."""

from __future__ import annotations

from collections.abc import Sequence

from textual.reactive import reactive

from engine.domain.state import SessionState
from tui.viewmodel import fleet
from tui.viewmodel.cells import Line
from tui.widgets.lines import Panel


class FleetStrip(Panel):
    """A line a worker, at the time of the state: live, and wherever a replay is."""

    DEFAULT_CSS = """
    FleetStrip { height: auto; background: $panel; border-top: hkey $panel-lighten-2; }
    """

    state: reactive[SessionState | None] = reactive(None)

    def watch_state(self, state: SessionState | None) -> None:
        rows = fleet.height(state)
        self.display = rows > 0
        self.styles.height = rows + 1

    def make_lines(self, width: int) -> Sequence[Line]:
        return fleet.strip(self.state) if self.state is not None else ()
