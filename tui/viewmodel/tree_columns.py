"""The columns of the kernel tree: which are shown at a width, how wide, and what the user chose. Pure.

Columns are added by priority while they fit: 80 columns show the essentials, 200 show everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tui.viewmodel import kernels
from tui.viewmodel.cells import Cell, Ink, Line, line, pad, width
from tui.viewmodel.tree_rows import Sort

GAP = 2
GUTTER = 3
"""Width of the badges left of the tree."""


class Column(StrEnum):
    """The columns, in order."""

    NAME = "kernel"
    OUTCOME = "outcome"
    SPEEDUP = "speedup"
    BAR = "bar"
    INTERVAL = "interval"
    TIME = "time"
    SOL = "sol"
    CLASS = "class"
    TUNABLES = "tunables"
    AUTHOR = "author"
    REMARKS = "remarks"


_LEAST_NAME = 16
_GRANTS: tuple[tuple[Column, int], ...] = (
    (Column.OUTCOME, 1),
    (Column.SPEEDUP, 9),
    (Column.NAME, 28),
    (Column.TIME, 8),
    (Column.NAME, 34),
    (Column.OUTCOME, kernels.OUTCOME_WIDTH),
    (Column.BAR, 9),
    (Column.INTERVAL, 16),
    (Column.SOL, 5),
    (Column.TUNABLES, 14),
    (Column.NAME, 44),
    (Column.AUTHOR, 12),
    (Column.NAME, 52),
    (Column.REMARKS, 20),
    (Column.BAR, 16),
    (Column.CLASS, 5),
    (Column.BAR, 32),
)
"""(column, width) by priority; a repeated column grows to the new width. An outcome of width 1 is its symbol."""

SORTS: Mapping[Column, Sort] = {
    Column.NAME: Sort.BORN, Column.OUTCOME: Sort.OUTCOME, Column.SPEEDUP: Sort.RANK, Column.BAR: Sort.RANK,
    Column.INTERVAL: Sort.RANK, Column.TIME: Sort.TIME, Column.SOL: Sort.SOL, Column.CLASS: Sort.CLASS,
    Column.TUNABLES: Sort.TUNABLES, Column.AUTHOR: Sort.AUTHOR,
}  # fmt: skip
"""The order that a click on the column's name chooses."""

MEASURED = (Column.SPEEDUP, Column.BAR, Column.INTERVAL, Column.TIME, Column.SOL, Column.CLASS)
"""Columns of measured kernels; other kernels show their reason there."""
RIGHT = frozenset({Column.TIME, Column.SOL})
"""Columns whose content stands at the right."""
LEAST_WIDTHS: Mapping[Column, int] = {
    Column.NAME: _LEAST_NAME, Column.OUTCOME: 1, Column.SPEEDUP: 9, Column.BAR: 4, Column.INTERVAL: 16, Column.TIME: 8,
    Column.SOL: 5, Column.CLASS: 5, Column.TUNABLES: 6, Column.AUTHOR: 4, Column.REMARKS: 8,
}  # fmt: skip
"""A figure is never cut: its column is no narrower than this."""
_MOST_WIDTH = 200


class Shown(StrEnum):
    """When a column is shown."""

    ROOM = "room"
    """While there is room for it."""
    ALWAYS = "always"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """What the user chose; columns that are not named are shown while there is room, at their usual width."""

    shown: Mapping[Column, Shown] = field(default_factory=dict)
    widths: Mapping[Column, int] = field(default_factory=dict)

    def when(self, column: Column) -> Shown:
        """When the column is shown; the name always is."""
        return Shown.ALWAYS if column is Column.NAME else self.shown.get(column, Shown.ROOM)

    def show(self, column: Column, when: Shown) -> ColumnChoice:
        """The choice with this column shown at other times."""
        return self if column is Column.NAME else replace(self, shown={**self.shown, column: when})

    def resize(self, column: Column, room: int) -> ColumnChoice:
        """The choice with another width of this column, at least its least width."""
        return replace(self, widths={**self.widths, column: min(_MOST_WIDTH, max(LEAST_WIDTHS[column], room))})


AUTOMATIC = ColumnChoice()


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The columns that are shown, with their widths."""

    widths: Mapping[Column, int]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for column in Column if column in self.widths)


def layout(room: int, choice: ColumnChoice = AUTOMATIC) -> ColumnLayout:
    """The columns for this many terminal cells; the name gets the remaining room."""
    widths: dict[Column, int] = {Column.NAME: max(1, min(_LEAST_NAME, room - GUTTER))}
    left = room - GUTTER - widths[Column.NAME]
    for column, granted in _grants(choice):
        needed = granted - widths[column] if column in widths else granted + GAP
        if needed > left:
            if choice.when(column) is Shown.ALWAYS and column is not Column.NAME:
                continue
            break
        widths[column] = granted
        left -= needed
    widths[Column.NAME] += max(0, left)
    return ColumnLayout(widths)


def _grants(choice: ColumnChoice) -> Iterable[tuple[Column, int]]:
    """The grants with the user's widths: columns that are always shown first, hidden ones left out."""
    seen: set[Column] = set()
    granted: list[tuple[Column, int]] = []
    for column, usual in _GRANTS:
        if choice.when(column) is Shown.HIDDEN or (column in seen and column in choice.widths):
            continue
        seen.add(column)
        granted.append((column, choice.widths.get(column, usual)))
    first = [column for column in seen if column is not Column.NAME and choice.when(column) is Shown.ALWAYS]
    once = {column: next(room for one, room in granted if one is column) for column in Column if column in first}
    return (*once.items(), *(grant for grant in granted if grant not in once.items()))


def sort_by(column: Column, present: Sort) -> Sort:
    """The order after choosing a column: once more returns to the tree; the name goes between age and best branch."""
    wanted = SORTS.get(column, present)
    if wanted is not present or column not in SORTS:
        return wanted
    return Sort.BRANCH if wanted is Sort.BORN else Sort.BORN


def head(shown: ColumnLayout, baseline: str, sort: Sort = Sort.BORN) -> Line:
    """The header line: the names of the columns, ``▾`` at the one that orders a list. The speedup's reaches over its bar."""
    names = {Column.SPEEDUP: f"  × {baseline}", Column.INTERVAL: "95% interval", Column.SOL: "SOL"}
    cells = [Cell(" " * GUTTER)]
    columns = shown.columns
    for place, column in enumerate(columns):
        over_bar = column is Column.SPEEDUP and columns[place + 1 : place + 2] == (Column.BAR,)
        if column is Column.BAR and columns[place - 1] is Column.SPEEDUP:
            continue
        room = shown.widths[column] + (GAP + shown.widths[Column.BAR] if over_bar else 0)
        text = "" if column is Column.BAR else names.get(column, column.value)
        text = text if width(text) <= room else "  ×" if column is Column.SPEEDUP else ""
        orders = sort is not Sort.BORN and SORTS.get(column) is sort and column is not Column.INTERVAL
        text = f"{text} ▾" if orders and width(text) + 2 <= room else text
        cells.append(Cell(" " * (GAP if place else 0) + pad(text, room, right=column in RIGHT), Ink.LABEL))
    return line(*cells)


def column_edge(shown: ColumnLayout, x: int) -> Column | None:
    """The column whose right edge is at this cell of the header line, one cell to either side; ``None`` elsewhere."""
    at = GUTTER
    for place, column in enumerate(shown.columns):
        at += shown.widths[column] + (GAP if place else 0)
        if at <= x < at + GAP:
            return column
    return None


def column_at(shown: ColumnLayout, x: int) -> Column | None:
    """The column under this cell of a line; ``None`` for the gutter."""
    at = GUTTER
    for place, column in enumerate(shown.columns):
        at += shown.widths[column] + (GAP if place else 0)
        if GUTTER <= x < at:
            return column
    return None
