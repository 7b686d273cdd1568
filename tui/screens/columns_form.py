"""The dialog for the columns of the tree: which are shown, and how wide. The tree behind it follows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from tui.screens.dialogs import MOTIONS, Dialog
from tui.viewmodel.tree_columns import Column, ColumnChoice, ColumnLayout, Shown

_WORDS = {Shown.ROOM: "while there is room", Shown.ALWAYS: "always", Shown.HIDDEN: "hidden"}
_SIGNS = {Shown.ROOM: "·", Shown.ALWAYS: "✓", Shown.HIDDEN: "✗"}
_NAMES = {Column.SOL: "SOL", Column.INTERVAL: "95% interval", Column.CLASS: "precision class"}
_HINT = "Enter: room, always, hidden · ← →: width · s: sort · Del: usual"
_NARROW = 64
"""Columns of the terminal below which a line has one word for when a column is shown."""


class ColumnsForm(Dialog[ColumnChoice]):
    """Answers with the choice when it is closed; ``changed`` is called with each change."""

    CSS_PATH = "prompts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close_form", "Close"),
        Binding("left,minus", "resize(-1)", "Narrower", show=False),
        Binding("right,plus", "resize(1)", "Wider", show=False),
        Binding("s", "sort", "Sort", show=False),
        Binding("delete,backspace", "usual", "Usual", show=False),
        *MOTIONS,
    ]

    def __init__(
        self,
        chosen: ColumnChoice,
        present: Callable[[], ColumnLayout],
        changed: Callable[[ColumnChoice], None],
        sort: Callable[[Column], None],
    ) -> None:
        """``present``: the columns that are shown, with their widths. ``sort`` is called with the column to sort by."""
        super().__init__()
        self._chosen = chosen
        self._present = present
        self._changed = changed
        self._sort = sort

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content("Columns of the tree")
            box.border_subtitle = Content("Esc: close")
            yield OptionList(*(Option(self._prompt(column), id=column.value) for column in Column))
            yield Label(_HINT, classes="hint")

    def _prompt(self, column: Column) -> Content:
        when = self._chosen.when(column)
        width = self._present().widths.get(column)
        name = _NAMES.get(column, column.value)
        if self.app.size.width < _NARROW:
            brief = f"{when.value:<7}{width if width is not None else '–':>4}"
            return Content.assemble((f"{_SIGNS[when]} {name:<15} ", "bold"), (brief, "$text-muted"))
        shown = f"{width} wide" if width is not None else "not shown"
        kept = ", set by you" if column in self._chosen.widths else ""
        name = f"{_SIGNS[when]} {name:<16}"
        return Content.assemble((name, "bold"), (f"{_WORDS[when]:<22}{shown}{kept}", "$text-muted"))

    def _change(self, chosen: ColumnChoice) -> None:
        self._chosen = chosen
        self._changed(chosen)
        rows = self.query_one(OptionList)
        for place, column in enumerate(Column):
            rows.replace_option_prompt_at_index(place, self._prompt(column))

    @property
    def _column(self) -> Column:
        return tuple(Column)[self.query_one(OptionList).highlighted or 0]

    @on(OptionList.OptionSelected)
    def _cycle(self, event: OptionList.OptionSelected) -> None:
        column, orders = tuple(Column)[event.option_index], tuple(Shown)
        self._change(self._chosen.show(column, orders[(orders.index(self._chosen.when(column)) + 1) % len(orders)]))

    def action_resize(self, by: int) -> None:
        """Make the column wider or narrower."""
        width = self._present().widths.get(self._column)
        if width is not None:
            self._change(self._chosen.resize(self._column, width + by))

    def action_sort(self) -> None:
        """Sort the tree by the column; once more returns to the tree."""
        self._sort(self._column)

    def action_usual(self) -> None:
        """Show the column while there is room, at its usual width."""
        column = self._column
        shown = {one: when for one, when in self._chosen.shown.items() if one is not column}
        widths = {one: width for one, width in self._chosen.widths.items() if one is not column}
        self._change(replace(self._chosen, shown=shown, widths=widths))

    def action_close_form(self) -> None:
        self.dismiss(self._chosen)
