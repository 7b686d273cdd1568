"""The workload × kernel table of a session: sorted by any column, with the best kernel of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import DataTable, Static

from engine.domain import queries
from engine.domain.state import SessionState
from tui import actions
from tui.bridge import Bridge
from tui.footer_key import footer_keys
from tui.screens.bridge_screen import BridgeScreen
from tui.viewmodel.cells import Cell, Ink, cut, width
from tui.viewmodel.workload_table import MEAN, legend, workload_table
from tui.widgets.key_footer import KeyFooter

_NAME_SHARE = 3
"""The names of kernels, which stay in sight, take at most one part in so many."""
_LEAST_NAME = 12
_KEYS = footer_keys("workloads.sort", "workloads.back")


class WorkloadsScreen(BridgeScreen):
    """``choose`` is called with the kernel that was chosen."""

    PLACE: ClassVar[actions.Place] = actions.Place.WORKLOADS
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.WORKLOADS)]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (12, "-high")]  # noqa: RUF012  # an instance variable of Screen
    CSS = """
    WorkloadsScreen {
        #title { width: 100%; height: 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
        #legend { width: 100%; height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        &.-short #legend { display: none; }
        #table { height: 1fr; padding: 0 1; background: $background; }
    }
    """

    def __init__(self, bridge: Bridge, choose: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        super().__init__(bridge, clock)
        self._choose = choose
        self._sorted_by = MEAN
        self._heads: tuple[str, ...] = ()
        self._kernels: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static("", id="title")
        table: DataTable[Text] = DataTable(id="table", cursor_type="cell", zebra_stripes=False, fixed_columns=1)
        yield table
        yield Static("", id="legend", markup=False)
        yield KeyFooter(_KEYS)

    def on_resize(self) -> None:
        if self.state is not None:
            self._draw(self.state)

    def watch_state(self, state: SessionState | None) -> None:
        if state is not None:
            self._draw(state)

    def _draw(self, state: SessionState) -> None:
        found = workload_table(state, self._sorted_by)
        problem, judged = queries.problem_and_workload(state)
        several = len(found.heads) > 1
        order = f"sorted by {found.sorted_by}" if several else "the only workload of this session"
        words = f" {problem}, {judged}: speedup over {queries.ranking_baseline(state)}, {order}"
        self.query_one("#title", Static).update(Content.styled(words, "bold"))
        self.query_one("#legend", Static).update(legend(state))
        table = self.query_one("#table", DataTable)
        at = table.cursor_coordinate
        table.clear(columns=True)
        longest = max((width(row.name.text) for row in found.rows), default=0)
        room = min(longest, max(_LEAST_NAME, self.app.size.width // _NAME_SHARE))
        table.add_column(Text("kernel", "bold"), width=max(room, len("kernel")))
        for place, head in enumerate(found.heads):
            title = "speedup" if not several else f"{head} ▾" if head == found.sorted_by else head
            wide = max([width(title), *(width(row.cells[place].text) for row in found.rows)])
            table.add_column(Text(title, "bold"), key=head, width=wide)
        for row in found.rows:
            table.add_row(_text(replace(row.name, text=cut(row.name.text, room))), *map(_text, row.cells))
        self._heads, self._kernels = found.heads, tuple(row.kernel for row in found.rows)
        table.cursor_coordinate = at

    def action_sort(self) -> None:
        """Sort by the column under the cursor."""
        column = self.query_one("#table", DataTable).cursor_coordinate.column
        self._sort(self._heads[column - 1] if 0 < column <= len(self._heads) else MEAN)

    @on(DataTable.HeaderSelected)
    def _head_picked(self, event: DataTable.HeaderSelected) -> None:
        self._sort(event.column_key.value or MEAN)

    def _sort(self, head: str) -> None:
        self._sorted_by = head if head in self._heads else MEAN
        if self.state is not None:
            self._draw(self.state)

    @on(DataTable.CellSelected)
    def _cell_picked(self, event: DataTable.CellSelected) -> None:
        """Go to the kernel in the tree."""
        self._choose(self._kernels[event.coordinate.row])
        self.dismiss()

    def action_back(self) -> None:
        """Return to the tree."""
        self.dismiss()


def _text(cell: Cell) -> Text:
    style = "bold" if cell.ink is Ink.BEST else "dim" if cell.ink in (Ink.FAINT, Ink.UNDECIDED) else ""
    return Text(cell.text, style)
