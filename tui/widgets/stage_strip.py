"""What is building, verifying, queued and measured, and the latest word on each piece of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.reactive import reactive

from engine.domain.state import SessionState
from tui.viewmodel import stages
from tui.viewmodel.cells import BLANK, Line
from tui.widgets.lines import Panel


class StageStrip(Panel):
    """Two lines: counts, and words on what is under way."""

    DEFAULT_CSS = """
    StageStrip { height: 2; background: $panel; }
    """

    state: reactive[SessionState | None] = reactive(None)
    progress: reactive[Mapping[str, str]] = reactive(dict)

    def watch_state(self) -> None:
        self.redraw()

    def watch_progress(self) -> None:
        self.redraw()

    def make_lines(self, width: int) -> Sequence[Line]:
        return stages.strip(self.state, self.progress, width) if self.state is not None else (BLANK, BLANK)
