"""The keys that act now, in a panel at the bottom: pressing one closes the panel and acts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tui import actions
from tui.screens.dialogs import Dialog

_COLUMN = 22
_SCROLLING = ("up", "down", "pageup", "pagedown")


class _KeyColumns(Columns):
    """Columns of labels; at least one where the terminal is narrower (rich 14 divides by the number of columns)."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options.update(max_width=max(_COLUMN + 1, options.max_width)))


class KeyPanel(Dialog[str | None]):
    """Answers with the key that was pressed; ``None`` for Escape."""

    gives_way = True
    CSS = """
    KeyPanel {
        align: center bottom;
        background: transparent;
        & > VerticalScroll {
            height: auto; max-height: 70%; border-top: solid $border; background: $panel; padding: 0 1;
            border-title-style: bold;
        }
    }
    """

    def __init__(self, place: actions.Place | None, able: Collection[actions.Action], keymap: Mapping[str, str]) -> None:
        """``able``: the actions that are available now."""
        super().__init__()
        self._place = place
        self._able = able
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        with VerticalScroll() as panel:
            panel.border_title = Content("Keys · press one to use it · Esc: close")
            yield Static(self._keys())

    def _keys(self) -> Group:
        parts: list[Text | Columns] = []
        for title, found in actions.actions_by_group(self._place):
            here = [self._label(action) for action in found if action in self._able and action.id != "app.keys"]
            if here:
                parts += [Text(title, "dim"), _KeyColumns(here, width=_COLUMN, padding=(0, 1))]
        return Group(*parts)

    def _label(self, action: actions.Action) -> Text:
        key = actions.key_names(self._keymap.get(action.id, action.key)).split(", ")[0]
        return Text.assemble((f"{key:>4}", "bold"), f" {action.label}", no_wrap=True, overflow="ellipsis")

    def on_key(self, event: events.Key) -> None:
        if event.key in _SCROLLING:
            return
        event.stop()
        event.prevent_default()
        self.dismiss(None if event.key == "escape" else event.key)
