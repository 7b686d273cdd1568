"""A row of the kernel tree as cells: the columns that fit a width, and their content. Pure.

Columns are added by priority while they fit: 80 columns show the essentials, 200 show everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain import corroboration, queries
from engine.domain.model import Interval
from engine.domain.state import Kernel, SessionState, Stage
from engine.domain.work import Sanitize
from engine.report.text import races
from engine.report.text.suite import spread_words
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut, line, one_line, pad, pad_cells, width
from tui.viewmodel.tree_facts import tree_facts
from tui.viewmodel.tree_rows import NodeRow

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


_GRANTS: tuple[tuple[Column, int], ...] = (
    (Column.NAME, 20),
    (Column.OUTCOME, kernels.OUTCOME_WIDTH),
    (Column.SPEEDUP, 8),
    (Column.NAME, 23),
    (Column.BAR, 9),
    (Column.NAME, 36),
    (Column.INTERVAL, 14),
    (Column.TIME, 8),
    (Column.TUNABLES, 18),
    (Column.SOL, 5),
    (Column.AUTHOR, 12),
    (Column.NAME, 52),
    (Column.REMARKS, 20),
    (Column.BAR, 16),
    (Column.CLASS, 5),
    (Column.BAR, 32),
)
"""(column, width) by priority; a repeated column grows to the new width."""

_MEASURED = (Column.SPEEDUP, Column.BAR, Column.INTERVAL, Column.TIME, Column.SOL, Column.CLASS)
"""Columns of measured kernels; other kernels show their reason there."""
_LEAST_TITLE = 12
_RIGHT = frozenset({Column.TIME, Column.SOL})


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The columns that are shown, with their widths."""

    widths: Mapping[Column, int]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for column in Column if column in self.widths)


def layout(room: int) -> ColumnLayout:
    """The columns for this many terminal cells; the name gets the remaining room."""
    widths: dict[Column, int] = {Column.NAME: max(1, min(20, room - GUTTER))}
    left = room - GUTTER - widths[Column.NAME]
    for column, granted in _GRANTS:
        needed = granted - widths[column] if column in widths else granted + GAP
        if needed > left:
            break
        widths[column] = granted
        left -= needed
    widths[Column.NAME] += max(0, left)
    return ColumnLayout(widths)


@dataclass(frozen=True, slots=True, eq=False)
class TreeContext:
    """Facts shared by all rows of a tree, computed once per state."""

    state: SessionState
    incumbent: str
    baseline: str
    top: float
    """Right end of the speedup bars."""


def tree_context(state: SessionState) -> TreeContext:
    """The context of a state."""
    found = tree_facts(state)
    incumbent = found.incumbent.id if found.incumbent is not None else ""
    return TreeContext(state, incumbent, queries.ranking_baseline(state), max(1.0, found.fastest) * 1.04)


def signature(view: TreeContext, row: NodeRow) -> tuple[object, ...]:
    """Everything that the row's line depends on, except the layout."""
    state, kernel = view.state, view.state.kernels[row.kernel]
    at_work = kernels.work_key(kernel) in state.started or Sanitize(kernel.id, kernel.attempt).key in state.started
    found = tree_facts(state)
    raced = (row.kernel in found.racing, row.kernel in found.undecided, races.standing(state, kernel))
    idea = state.ideas.get(kernel.idea)
    pinned = row.kernel in state.pinned
    title = idea.text if idea is not None else None
    return (kernel, row, row.kernel == view.incumbent, view.top, at_work, raced, pinned, title, state.epoch)


def head(shown: ColumnLayout, baseline: str) -> Line:
    """The header line: the names of the columns."""
    names = {Column.SPEEDUP: f"× {baseline}", Column.INTERVAL: "95% interval", Column.SOL: "SOL"}
    cells = [Cell(" " * GUTTER)]
    for place, column in enumerate(shown.columns):
        room = shown.widths[column] + (GAP if place else 0)
        if column is Column.BAR or (column is Column.SPEEDUP and Column.BAR not in shown.widths):
            cells.append(Cell(pad("", room) if column is Column.BAR else pad("  " + names[column], room), Ink.LABEL))
            continue
        text = names.get(column, column.value)
        if column in _RIGHT:
            cells.append(Cell(pad(text, room, right=True), Ink.LABEL))
        else:
            cells.append(Cell(pad("  " * bool(place) + text, room), Ink.LABEL))
    return line(*cells)


def row_line(view: TreeContext, row: NodeRow, shown: ColumnLayout, *, marked: str = "") -> Line:
    """The row as one line of the layout's width."""
    kernel = view.state.kernels[row.kernel]
    cells: list[Cell] = [*_gutter(view, row, marked), *_name(view, row, kernel, shown)]
    outcome = kernels.outcome(view.state, kernel)
    ratio = queries.speedup(view.state, kernel)
    figures = _figures(view, kernel, ratio, shown) if ratio is not None else None
    reason = _reason(kernel)
    for column in shown.columns[1:]:
        room = shown.widths[column]
        if column in _MEASURED and figures is None:
            span = sum(shown.widths[c] + GAP for c in _MEASURED if c in shown.widths)
            if column is Column.SPEEDUP:
                cells += (Cell(" " * GAP), *pad_cells((Cell(reason, Ink.FAINT),), span - GAP))
            continue
        content = figures[column] if figures is not None and column in figures else _words(view, kernel, row, column, room)
        if column is Column.OUTCOME:
            content = (outcome.cell,)
        cells += (Cell(" " * GAP), *pad_cells(content, room, right=column in _RIGHT))
    return line(*cells)


def _gutter(view: TreeContext, row: NodeRow, marked: str) -> tuple[Cell, ...]:
    """Badges in fixed places: incumbent or marked, then pinned or pruned."""
    first = Cell(" ")
    if row.kernel == view.incumbent:
        first = Cell(kernels.INCUMBENT, Ink.BEST)
    elif row.kernel == marked:
        first = Cell(kernels.MARKED, Ink.MARK)
    second = Cell(" ")
    if row.kernel == marked and row.kernel == view.incumbent:
        second = Cell(kernels.MARKED, Ink.MARK)
    elif row.kernel in view.state.pinned:
        second = Cell(kernels.PINNED, Ink.PIN)
    elif row.pruned:
        second = Cell(kernels.PRUNED, Ink.FAINT)
    return (first, second, Cell(" "))


def fold_glyph(row: NodeRow) -> str:
    """``▾`` open, ``▸`` folded, a stroke for a leaf."""
    if row.children:
        return "▸ " if row.folded else "▾ "
    return "─ " if row.guides else "· "


def _fold_ink(row: NodeRow) -> Ink:
    return Ink.ACCENT if row.folded else Ink.LABEL if row.children else Ink.RULE


def shown_guides(row: NodeRow, room: int) -> str:
    """The row's strokes in at most half the room of the name: of deep nodes the nearest levels, after an ellipsis."""
    most = max(2, min(len(row.guides), room // 2 // 2 * 2))
    full = 2 * row.depth
    return row.guides if full <= most else f"… {row.guides[2 - most :] if most > 2 else ''}"


def fold_place(row: NodeRow, shown: ColumnLayout) -> int:
    """Where the row's fold glyph stands, in cells from the left edge."""
    return GUTTER + len(shown_guides(row, shown.widths[Column.NAME]))


def _name(view: TreeContext, row: NodeRow, kernel: Kernel, shown: ColumnLayout) -> tuple[Cell, ...]:
    """Strokes, fold glyph, id and title; the tunables as well where they have no column, since they tell variants apart."""
    room = shown.widths[Column.NAME]
    guides = shown_guides(row, room)
    dim = row.pruned or row.context or kernel.stage in (Stage.FAILED, Stage.CANCELLED)
    is_incumbent = row.kernel == view.incumbent
    hidden = f" +{row.hidden}" if row.hidden else ""
    lead = (
        Cell(guides, Ink.RULE),
        Cell(fold_glyph(row), _fold_ink(row)),
        Cell(f"{kernel.id} ", Ink.FAINT if dim else Ink.BEST if is_incumbent else Ink.STRONG),
        Cell(f"{kernels.SEED} " if kernel.seed else "", Ink.PIN),
    )
    left = room - sum(width(c.text) for c in lead) - len(hidden)
    title = kernels.title(view.state, kernel)
    spare = left - min(width(title), _LEAST_TITLE)
    chosen = "" if Column.TUNABLES in shown.widths else _variant(kernel, spare)
    title_cell = Cell(cut(title, left - width(chosen)), Ink.FAINT if dim else Ink.BEST if is_incumbent else Ink.PLAIN)
    tail = (Cell(chosen, Ink.FAINT), Cell(hidden, Ink.ACCENT))
    return pad_cells([c for c in (*lead, title_cell, *tail) if c.text], room)


def _variant(kernel: Kernel, room: int) -> str:
    """The tunables; their values only if they do not fit; nothing if those do not fit either."""
    if not kernel.tunables:
        return ""
    every = (fmt.tunables(kernel.tunables), "·".join(str(value) for value in kernel.tunables.values()))
    return next((f" {words}" for words in every if width(words) < room), "")


def _reason(kernel: Kernel) -> str:
    if kernel.stage is Stage.FAILED and kernel.failure is not None:
        return one_line(kernel.failure.reason)
    if kernel.stage is Stage.QUARANTINED:
        return one_line("; ".join(kernel.evidence))
    return one_line(kernel.reason) if kernel.stage is Stage.CANCELLED else ""


def _figures(view: TreeContext, kernel: Kernel, ratio: Interval, shown: ColumnLayout) -> dict[Column, tuple[Cell, ...]]:
    measured = kernel.measurement
    assert measured is not None
    sol = fmt.percent(measured.light.fraction) if measured.light else ""
    precision = kernel.verification.precision_class.value if kernel.verification else ""
    return {
        Column.SPEEDUP: (kernels.speedup(kernel, ratio),),
        Column.BAR: fmt.bar(ratio, view.top, shown.widths.get(Column.BAR, 0), doubted=corroboration.is_doubted(kernel)),
        Column.INTERVAL: (Cell(fmt.interval_ends(ratio), Ink.FAINT),),
        Column.TIME: (Cell(fmt.duration(measured.time_us.value)),),
        Column.SOL: (Cell(sol),),
        Column.CLASS: (Cell(precision),),
    }


def _words(view: TreeContext, kernel: Kernel, row: NodeRow, column: Column, room: int) -> tuple[Cell, ...]:
    match column:
        case Column.TUNABLES:
            return (Cell(cut(fmt.tunables(kernel.tunables), room), Ink.FAINT),)
        case Column.AUTHOR:
            return (
                Cell(cut(kernels.author(kernel.author.name), room), Ink.ACCENT if kernel.author.is_engineer else Ink.FAINT),
            )
        case Column.REMARKS:
            return (Cell(", ".join(remarks(view, kernel, row)), Ink.FAINT),)
        case _:
            return ()


def remarks(view: TreeContext, kernel: Kernel, row: NodeRow) -> list[str]:
    """The badges as words, and warnings about the measurement."""
    measured = kernel.measurement
    holding = {
        spread_words(measured, view.baseline) if measured is not None else "": True,
        "incumbent": kernel.id == view.incumbent,
        "not corroborated": measured is not None and not measured.corroborated,
        races.standing(view.state, kernel): True,
        "pinned": kernel.id in view.state.pinned,
        "pruned": row.pruned,
        "seed": kernel.seed,
        "accepted": bool(kernel.accepted),
        "module contract": kernel.contract == "module",
        f"attempt {kernel.attempt + 1}": kernel.attempt > 0,
    }
    return [words for words, holds in holding.items() if holds and words]
