"""A row of the kernel tree as cells: the content of the columns that are shown. Pure.

A figure is shown whole, in a shorter form, or not at all: half a number reads as another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.domain import corroboration, queries
from engine.domain.model import Interval
from engine.domain.state import Kernel, SessionState, Stage
from engine.domain.work import Sanitize
from engine.report.text import races
from engine.report.text.suite import spread_words
from tui.viewmodel import fmt, kernels, siblings
from tui.viewmodel.cells import Cell, Ink, Line, cut_whole, line, one_line, pad_cells, width
from tui.viewmodel.tree_columns import GAP, GUTTER, MEASURED, RIGHT, Column, ColumnLayout
from tui.viewmodel.tree_facts import changed_kernels, tree_facts
from tui.viewmodel.tree_rows import NodeRow

_LEAST_TITLE = 8


@dataclass(frozen=True, slots=True, eq=False)
class TreeContext:
    """Facts shared by all rows of a tree, computed once per state."""

    state: SessionState
    incumbent: str
    baseline: str
    top: float
    """Right end of the speedup bars."""
    _labels: dict[tuple[str | None, str], dict[str, siblings.Label]] = field(default_factory=dict)

    def label(self, kernel: Kernel) -> siblings.Label:
        """The kernel's tunables, those that tell it from its siblings apart; computed once per group of siblings."""
        group = (kernel.parent, kernel.idea)
        if group not in self._labels:
            self._labels[group] = siblings.labels(self.state, kernel)
        return self._labels[group][kernel.id]


def tree_context(state: SessionState, before: TreeContext | None = None) -> TreeContext:
    """The context of a state. ``before``: that of an earlier state, whose labels are kept if they are still right."""
    found = tree_facts(state)
    incumbent = found.incumbent.id if found.incumbent is not None else ""
    labels = before._labels if before is not None and _same_labels(before.state, state) else {}
    return TreeContext(state, incumbent, queries.ranking_baseline(state), max(1.0, found.fastest) * 1.04, labels)


def _same_labels(before: SessionState, after: SessionState) -> bool:
    """Whether the kernels, their ideas and their tunables are the same."""
    if before.ideas is not after.ideas or len(before.kernels) != len(after.kernels):
        return False
    changed = changed_kernels(before.kernels, after.kernels)
    return changed is not None and all(kernel.tunables is before.kernels[kernel.id].tunables for kernel in changed)


def signature(view: TreeContext, row: NodeRow) -> tuple[object, ...]:
    """Everything that the row's line depends on, except the layout."""
    state, kernel = view.state, view.state.kernels[row.kernel]
    at_work = kernels.work_key(kernel) in state.running or Sanitize(kernel.id, kernel.attempt).key in state.running
    found = tree_facts(state)
    raced = (row.kernel in found.racing, row.kernel in found.undecided, races.standing(state, kernel))
    idea = state.ideas.get(kernel.idea)
    pinned = row.kernel in state.pinned
    title = idea.text if idea is not None else None
    first = tuple(view.label(kernel).first.items())
    return (kernel, row, row.kernel == view.incumbent, view.top, at_work, raced, pinned, title, first, state.epoch)


def row_line(view: TreeContext, row: NodeRow, shown: ColumnLayout, *, marked: str = "") -> Line:
    """The row as one line of the layout's width."""
    kernel = view.state.kernels[row.kernel]
    label = view.label(kernel)
    cells: list[Cell] = [*_gutter(view, row, marked), *_name(view, row, kernel, label, shown)]
    outcome = kernels.outcome(view.state, kernel)
    ratio = queries.speedup(view.state, kernel)
    figures = _figures(view, kernel, ratio, shown) if ratio is not None else None
    symbol = shown.widths.get(Column.OUTCOME, kernels.OUTCOME_WIDTH) < kernels.OUTCOME_WIDTH
    spanned = [column for column in shown.columns if column in MEASURED]
    for column in shown.columns[1:]:
        room = shown.widths[column]
        if column in spanned and figures is None:
            if column is spanned[0]:
                span = sum(shown.widths[c] + GAP for c in spanned) - GAP
                cells += (Cell(" " * GAP), *_reason(kernel, outcome if symbol else None, span))
            continue
        content = figures[column] if figures is not None and column in figures else _words(view, kernel, row, column, room)
        if column is Column.OUTCOME:
            content = (Cell(outcome.glyph, outcome.ink) if symbol else outcome.cell_within(room),)
        elif column is Column.TUNABLES:
            content = (Cell(_whole_tunables(label.rest, room), Ink.FAINT),)
        cells += (Cell(" " * GAP), *pad_cells(content, room, right=column in RIGHT))
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
    """The row's strokes in at most a third of the room of the name: of deep nodes the nearest levels, after an ellipsis."""
    most = max(2, min(len(row.guides), room // 3 // 2 * 2))
    full = 2 * row.depth
    return row.guides if full <= most else f"… {row.guides[2 - most :] if most > 2 else ''}"


def fold_place(row: NodeRow, shown: ColumnLayout) -> int:
    """Where the row's fold glyph stands, in cells from the left edge."""
    return GUTTER + len(shown_guides(row, shown.widths[Column.NAME]))


def _name(view: TreeContext, row: NodeRow, kernel: Kernel, label: siblings.Label, shown: ColumnLayout) -> tuple[Cell, ...]:
    """Strokes, fold glyph and id; the tunables that tell the kernel from its siblings; the title; its other tunables where
    they have no column."""
    room = shown.widths[Column.NAME]
    dim = row.pruned or row.context or kernel.stage in (Stage.FAILED, Stage.CANCELLED)
    ink = Ink.FAINT if dim else Ink.BEST if row.kernel == view.incumbent else Ink.STRONG
    hidden = f" +{row.hidden}" if row.hidden else ""
    lead = (
        Cell(shown_guides(row, room), Ink.RULE),
        Cell(fold_glyph(row), _fold_ink(row)),
        Cell(f"{kernel.id} ", ink),
        Cell(f"{kernels.SEED} " if kernel.seed else "", Ink.PIN),
    )
    left = room - sum(width(c.text) for c in lead) - len(hidden)
    title = kernels.title(view.state, kernel)
    first = _whole_tunables(label.first, left)
    first += " " if first and width(first) < left else ""
    left -= width(first)
    spare = left - min(width(title), _LEAST_TITLE)
    rest = f" {fmt.tunables(label.rest)}" if label.rest and Column.TUNABLES not in shown.widths else ""
    rest = rest if width(rest) <= spare else ""
    title_ink = Ink.FAINT if dim or first else Ink.BEST if row.kernel == view.incumbent else Ink.PLAIN
    named = (Cell(first, Ink.FAINT if dim else Ink.PLAIN), Cell(cut_whole(title, left - width(rest)), title_ink))
    cells = [c for c in (*lead, *named, Cell(rest, Ink.FAINT)) if c.text]
    return (*pad_cells(cells, room - len(hidden)), *([Cell(hidden, Ink.ACCENT)] if hidden else []))


def _whole_tunables(tunables: Mapping[str, int], room: int) -> str:
    """``BLOCK=128 UNROLL=4``, or ``128·4``, or as many as fit with an ellipsis; no value is cut."""
    if not tunables:
        return ""
    full, values = fmt.tunables(tunables), "·".join(str(value) for value in tunables.values())
    for words in (full, values):
        if width(words) <= room:
            return words
    pairs = [f"{name}={value}" for name, value in tunables.items()]
    for many in range(len(pairs) - 1, 0, -1):
        words = f"{' '.join(pairs[:many])} …"
        if width(words) <= room:
            return words
    return ""


def _reason(kernel: Kernel, outcome: kernels.Outcome | None, room: int) -> tuple[Cell, ...]:
    """Why the kernel has no figures; after its ``outcome`` in words where that has no room in its column."""
    words = _reason_words(kernel)
    if outcome is None:
        return pad_cells((Cell(cut_whole(words, room), Ink.FAINT),), room)
    word = Cell(cut_whole(outcome.word, room), outcome.ink)
    more = cut_whole(f": {words}", room - width(word.text)) if words and room >= width(outcome.word) + 4 else ""
    return pad_cells((word, Cell(more if more != ":…" else "", Ink.FAINT)), room)


def _reason_words(kernel: Kernel) -> str:
    if kernel.stage is Stage.FAILED and kernel.failure is not None:
        return one_line(kernel.failure.reason)
    if kernel.stage is Stage.QUARANTINED:
        return one_line("; ".join(kernel.evidence))
    return one_line(kernel.reason).removeprefix("cancelled ") if kernel.stage is Stage.CANCELLED else ""


def _figures(view: TreeContext, kernel: Kernel, ratio: Interval, shown: ColumnLayout) -> dict[Column, tuple[Cell, ...]]:
    measured = kernel.measurement
    assert measured is not None
    precision = kernel.verification.precision_class.value if kernel.verification else ""
    speedup = kernels.speedup(kernel, ratio)
    forms = {
        Column.SPEEDUP: fmt.speedup_forms(ratio, doubted=corroboration.is_doubted(kernel)),
        Column.INTERVAL: fmt.interval_forms(ratio),
        Column.TIME: (fmt.duration(measured.time_us.value),),
        Column.SOL: (fmt.percent(measured.light.fraction),) if measured.light else ("",),
        Column.CLASS: (precision,),
    }
    inks = {Column.SPEEDUP: speedup.ink, Column.INTERVAL: Ink.FAINT}
    found: dict[Column, tuple[Cell, ...]] = {
        column: (Cell(fmt.fitting(words, shown.widths.get(column, 0)), inks.get(column, Ink.PLAIN)),)
        for column, words in forms.items()
    }
    bar_room = shown.widths.get(Column.BAR, 0)
    found[Column.BAR] = fmt.bar(ratio, view.top, bar_room, doubted=corroboration.is_doubted(kernel))
    return found


def _words(view: TreeContext, kernel: Kernel, row: NodeRow, column: Column, room: int) -> tuple[Cell, ...]:
    match column:
        case Column.AUTHOR:
            return (
                Cell(
                    cut_whole(kernels.author(kernel.author.name), room), Ink.ACCENT if kernel.author.is_engineer else Ink.FAINT
                ),
            )
        case Column.REMARKS:
            return (Cell(cut_whole(", ".join(remarks(view, kernel, row)), room), Ink.FAINT),)
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
