"""Help: the keys of the screen below, from the registry of actions, and the legend of its symbols."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import ClassVar

from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui import actions
from tui.screens.dialogs import MOTIONS, Dialog
from tui.widgets.session_table import legend as legend_of_sessions
from tui.widgets.session_table import theme_colour

_BESIDE = 70
"""The width from which keys, names and descriptions have a column each."""
_CHARTS = "In a focused chart + and - zoom, the arrow keys move it, and 0 shows all of it."
_LISTS = "Arrow keys move, Tab focuses the next pane, Enter opens. The mouse works everywhere."


class HelpScreen(Dialog[None]):
    """Keys by heading, then symbols, colours and abbreviations."""

    gives_way = True
    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,f1,enter", "close", "Close"), *MOTIONS]

    def __init__(
        self, place: actions.Place | None, able: Collection[actions.Action], keymap: Mapping[str, str], keymap_file: str
    ) -> None:
        """``able``: the actions that are available now; the others are hidden."""
        super().__init__()
        self._place = place
        self._able = able
        self._keymap = keymap
        self._keymap_file = keymap_file
        self._is_below = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page") as page:
            page.border_title = "Keys and symbols"
            page.border_subtitle = "Esc: close"
            self._is_below = self._has_little_room
            yield Static(self._keys(below=self._is_below), id="keys")
            yield Static(_LISTS, markup=False, classes="hint")
            if self._place is actions.Place.SESSION:
                yield Static(_CHARTS, markup=False, classes="hint")
            own = f'To change a key, add a line such as  "gate.approve" = "y"  to {self._keymap_file}'
            yield Static(own, markup=False, classes="hint")
            yield Static(self._home_legend() if self._place is actions.Place.HOME else self._legend(), id="legend")

    def on_mount(self) -> None:
        self.query_one("#page").focus()

    @property
    def _has_little_room(self) -> bool:
        """Whether what an action does stands below its name."""
        return self.app.size.width < _BESIDE

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill)  # a text that changes while it is laid out keeps its height

    def _fill(self) -> None:
        if self._has_little_room is not self._is_below:
            self._is_below = self._has_little_room
            self.query_one("#keys", Static).update(self._keys(below=self._is_below))

    def _keys(self, *, below: bool) -> Table:
        table = Table.grid(padding=(0, 2))
        for title, found in actions.actions_by_group(self._place):
            here = [action for action in found if action in self._able]
            if not here:
                continue
            table.add_row(Text.assemble((title, "bold underline")))
            for action in here:
                keys = actions.key_names(self._keymap.get(action.id, action.key))
                if below:
                    table.add_row(Text.assemble((keys, "bold"), f"  {action.label}"))
                    table.add_row(Padding(Text(action.help, "dim"), (0, 0, 0, 3)))
                else:
                    table.add_row(Text(f"  {keys}", "bold"), Text(action.label), Text(action.help, "dim"))
            table.add_row()
        return table

    def _home_legend(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row()
        table.add_row(Text.assemble(("Sessions", "bold underline")))
        for symbol, words in legend_of_sessions(partial(theme_colour, self.app.theme_variables)):
            table.add_row(Text.assemble("  ", symbol), Text(words, "dim"))
        return table

    def _legend(self) -> Table:
        from tui.viewmodel.cells import line  # home's help is shown before the engine is imported
        from tui.viewmodel.legend import legend
        from tui.widgets.painter import Painter

        table, painter = Table.grid(padding=(0, 2)), Painter(self)
        for title, entries in legend():
            table.add_row()
            table.add_row(Text.assemble((title, "bold underline")))
            for symbol, words in entries:
                drawn = painter.segments(line(symbol), Style())
                table.add_row(Text.assemble("  ", *((one.text, one.style or "") for one in drawn)), Text(words, "dim"))
        return table

    def action_close(self) -> None:
        """Return to the screen below."""
        self.dismiss(None)
