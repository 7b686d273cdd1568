"""The session's head: problem, device, round, budget used, incumbent with its interval, who decides."""

from __future__ import annotations

from collections.abc import Sequence

from textual.reactive import reactive

from engine.domain.state import SessionState
from tui.viewmodel import heading
from tui.viewmodel.cells import BLANK, Line
from tui.widgets.lines import Panel


class SessionHeader(Panel):
    """Two lines. What the state cannot know (how it is watched, the time, the device's load) is set by the screen."""

    DEFAULT_CSS = """
    SessionHeader { height: 2; background: $panel; }
    """

    state: reactive[SessionState | None] = reactive(None)
    note: reactive[str] = reactive("")
    stopped: reactive[bool] = reactive(False)
    deadline: reactive[float | None] = reactive(None)
    now: reactive[float] = reactive(0.0)
    telemetry: reactive[str] = reactive("")

    def watch_state(self) -> None:
        self.redraw()

    def watch_note(self) -> None:
        self.redraw()

    def watch_stopped(self) -> None:
        self.redraw()

    def watch_deadline(self) -> None:
        self.redraw()

    def watch_now(self) -> None:
        if self.deadline is not None:
            self.redraw()

    def watch_telemetry(self) -> None:
        self.redraw()

    def make_lines(self, width: int) -> Sequence[Line]:
        if self.state is None:
            return (BLANK, BLANK)
        standing = heading.Standing(self.note, self.stopped, self.deadline, self.now, self.telemetry)
        return heading.lines(self.state, standing, width)
