"""Notes on kernels, ideas, rounds and the session, newest first."""

from __future__ import annotations

from textual.reactive import reactive

from engine.domain.state import SessionState
from tui.viewmodel import notes
from tui.widgets.lines import LinesView


class NoteList(LinesView):
    """All notes, or those on one target."""

    DEFAULT_CSS = """
    NoteList { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    state: reactive[SessionState | None] = reactive(None)
    target: reactive[str | None] = reactive(None)

    def watch_state(self, before: SessionState | None, after: SessionState | None) -> None:
        if before is None or after is None or before.notes is not after.notes or before.opened is not after.opened:
            self._fill()

    def watch_target(self) -> None:
        self._fill()

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        self.lines = (
            notes.page(self.state, self.target, max(20, self.scrollable_content_region.width)) if self.state is not None else ()
        )
