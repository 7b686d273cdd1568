"""The panes that are pages of lines: events, notes and usage."""

from __future__ import annotations

from collections.abc import Sequence

from textual.reactive import reactive

from engine.domain.events import Entry
from engine.domain.state import SessionState
from tui.viewmodel import event_log, pages, usage
from tui.viewmodel.cells import Line, fold_line
from tui.widgets.lines import LinesView, is_displayed

_MOST_LINES = 4000


class LogView(LinesView):
    """The events, newest at the bottom; follows the end until the engineer scrolls away. Long lines wrap."""

    DEFAULT_CSS = """
    LogView { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._log = event_log.EMPTY
        self._log_lines: tuple[Line, ...] = ()
        self._pending: list[Entry] = []
        self._follows = True

    def show(self, entries: Sequence[Entry], before: SessionState | None = None) -> None:
        """Show only these entries, after a seek. ``before``: the state before the first of them."""
        self._log, self._log_lines, self._pending = event_log.log_at(before), (), list(entries)
        self._follows = True
        self.lines = ()
        self._append_pending()

    def push(self, entries: Sequence[Entry]) -> None:
        """Add entries."""
        self._pending.extend(entries)
        self._append_pending()

    def _append_pending(self) -> None:
        """Add the lines of the pending entries if the pane is displayed; of many entries only the last are shown."""
        if not self._pending or not is_displayed(self):
            return
        if self.lines:
            self._follows = self.scroll_offset.y >= self.max_scroll_y - 1
        self._log, lines = event_log.append(self._log, self._pending)
        self._pending = []
        whole = (*self._log_lines, *lines)
        self._log_lines = whole[-_MOST_LINES:]
        if len(whole) > _MOST_LINES:
            self._lay_out()
        else:
            self.lines = (*self.lines, *self._wrapped(lines))
            self._scroll_to_end()

    def on_resize(self) -> None:
        self._lay_out()

    def on_show(self) -> None:
        self._append_pending()
        self._scroll_to_end()

    def _lay_out(self) -> None:
        self.lines = self._wrapped(self._log_lines)
        self._scroll_to_end()

    def _wrapped(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        room = self.scrollable_content_region.width or 80
        indent = event_log.indent(room)
        return tuple(part for line in lines for part in fold_line(line, room, indent))

    def _scroll_to_end(self) -> None:
        if self._follows:
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True)


class NoteList(LinesView):
    """Notes on kernels, ideas, rounds and the session, newest first."""

    DEFAULT_CSS = """
    NoteList { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    state: reactive[SessionState | None] = reactive(None, repaint=False)

    def watch_state(self, before: SessionState | None, after: SessionState | None) -> None:
        if before is None or after is None or before.notes is not after.notes or before.opened is not after.opened:
            self._fill()

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        room = max(20, self.scrollable_content_region.width)
        self.lines = pages.notes(self.state, room) if self.state is not None else ()


class UsageView(LinesView):
    """Model calls and cost; made again while displayed, when a call, a limit or a pause changes."""

    DEFAULT_CSS = """
    UsageView { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    state: reactive[SessionState | None] = reactive(None, repaint=False)

    _made: tuple[object, ...] = ()

    def watch_state(self) -> None:
        self._fill()

    def on_resize(self) -> None:
        self._fill()

    def on_show(self) -> None:
        self._fill()

    def _fill(self) -> None:
        state = self.state
        if state is None or not is_displayed(self):
            return
        width = self.scrollable_content_region.width or 80
        shown = (state.calls, state.limits, state.pauses, state.paused, state.capped, width)
        if shown != self._made:
            self._made = shown
            self.lines = usage.page(state, width)
