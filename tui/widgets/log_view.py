"""What happened, in words, the newest at the bottom; follows the end until one scrolls away from it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain.events import Entry
from engine.domain.state import SessionState
from tui.viewmodel import story
from tui.viewmodel.cells import Line, folded
from tui.widgets.lines import LinesView, is_shown

_MOST_LINES = 4000


class LogView(LinesView):
    """Told entry by entry. After a seek it is shown anew, otherwise added to. Long lines are broken to the width."""

    DEFAULT_CSS = """
    LogView { overflow-x: hidden; scrollbar-gutter: stable; }
    """

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._story = story.BEGINNING
        self._told: tuple[Line, ...] = ()
        self._untold: list[Entry] = []
        self._follows = True

    def show(self, entries: Sequence[Entry], before: SessionState | None = None) -> None:
        """Everything anew: these entries and nothing else. ``before`` is the state that they begin from."""
        self._story, self._told, self._untold = story.after(before), (), list(entries)
        self._follows = True
        self.lines = ()
        self._tell()

    def push(self, entries: Sequence[Entry]) -> None:
        """What came since."""
        self._untold.extend(entries)
        self._tell()

    def _tell(self) -> None:
        """Put what is untold into words; while hidden it waits, and of a long wait only the end is ever told."""
        if not self._untold or not is_shown(self):
            return
        if self.lines:
            self._follows = self.scroll_offset.y >= self.max_scroll_y - 1
        self._story, lines = story.told(self._story, self._untold)
        self._untold = []
        whole = (*self._told, *lines)
        self._told = whole[-_MOST_LINES:]
        if len(whole) > _MOST_LINES:
            self._lay_out()
        else:
            self.lines = (*self.lines, *self._folded(lines))
            self._catch_up()

    def on_resize(self) -> None:
        self._lay_out()

    def on_show(self) -> None:
        self._tell()
        self._catch_up()

    def _lay_out(self) -> None:
        self.lines = self._folded(self._told)
        self._catch_up()

    def _folded(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        room = self.scrollable_content_region.width or 80
        return tuple(part for line in lines for part in folded(line, room, story.INDENT))

    def _catch_up(self) -> None:
        if self._follows:
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True)
