"""Sessions of one problem side by side: best-so-far curves, equal budgets, and who had the ideas that won."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from engine.report.facts.side_by_side import SideBySide
from engine.report.text.side_by_side import lines
from tui.screens.dialogs import Dialog
from tui.viewmodel.cells import from_report
from tui.widgets.lines import LinesView


class SideBySideScreen(Dialog[None]):
    """What `espalier session compare` prints."""

    CSS_PATH = "side_by_side.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,v,enter", "close", "Close")]

    def __init__(self, found: SideBySide) -> None:
        super().__init__()
        self._found = found

    def compose(self) -> ComposeResult:
        with Vertical(id="page") as page:
            page.border_title = "Sessions side by side"
            page.border_subtitle = "Esc: close"
            yield LinesView()

    def on_mount(self) -> None:
        self.query_one(LinesView).focus()

    def on_resize(self) -> None:
        """As many sessions beside each other as there is room for."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        view = self.query_one(LinesView)
        room = view.scrollable_content_region.width
        view.lines = tuple(from_report(spans) for spans in lines(self._found, room))

    def action_close(self) -> None:
        """Return to the list of sessions."""
        self.dismiss(None)
