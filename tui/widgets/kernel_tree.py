"""The kernel tree. Renders only visible lines: ten thousand kernels are as fast as one screenful."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.domain.state import SessionState
from tui.viewmodel import tree_cells, tree_columns, tree_rows
from tui.viewmodel.cells import Cell, Ink, Line, line
from tui.viewmodel.tree_columns import Column, ColumnChoice
from tui.viewmodel.tree_rows import NodeRow, Sort, TreeShape
from tui.widgets.painter import PaintedWidget

_STRIPS_KEPT = 512
_NO_MATCH = "   no kernel matches the filter"
_NO_KERNEL = "   no kernel yet: round 0 adds the naive port"


@dataclass(slots=True)
class _DrawnRow:
    """A row as it was drawn, and what it shows."""

    context: tree_cells.TreeContext
    """The latest context that it is known to be right for."""
    signature: tuple[object, ...]
    strip: Strip


class KernelTree(ScrollView, PaintedWidget, can_focus=True):
    """The kernels of a state; one is selected. Owns folding, filter and sort order. The first line names the columns.

    Without kernels it shows ``start``: the steps of the session's start.
    """

    DEFAULT_CSS = """
    KernelTree {
        background: $surface;
        color: $foreground;
        scrollbar-size-vertical: 1;
        & > .kernel-tree--cursor { background: $block-cursor-blurred-background; color: $block-cursor-blurred-foreground; }
        &:focus > .kernel-tree--cursor { background: $block-cursor-background; color: $block-cursor-foreground; }
        & > .kernel-tree--hover { background: $boost; }
        & > .kernel-tree--head { background: $panel; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "kernel-tree--cursor",
        "kernel-tree--hover",
        "kernel-tree--head",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", "Up", show=False, id="tree.up"),
        Binding("down", "cursor_down", "Down", show=False, id="tree.down"),
        Binding("pageup", "page_up", "Page up", show=False, id="tree.page-up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="tree.page-down"),
        Binding("home", "first", "First kernel", show=False, id="tree.first"),
        Binding("end", "last", "Last kernel", show=False, id="tree.last"),
        Binding("left,h", "fold", "Fold, or go to the parent", show=False, id="tree.fold"),
        Binding("right,l", "unfold", "Unfold, or go to the first child", show=False, id="tree.unfold"),
        Binding("enter", "open", "Open the kernel", show=False, id="tree.open"),
    ]

    state: reactive[SessionState | None] = reactive(None, repaint=False)
    selected: reactive[str] = reactive("", repaint=False)
    marked: reactive[str] = reactive("")
    folded: reactive[frozenset[str]] = reactive(frozenset())
    pattern: reactive[str] = reactive("")
    sort: reactive[Sort] = reactive(Sort.BORN)
    start: reactive[tuple[Line, ...]] = reactive(())
    hovered: reactive[int] = reactive(-1, repaint=False)
    columns: reactive[ColumnChoice] = reactive(ColumnChoice())

    @dataclass
    class Selected(Message):
        """The cursor moved to another kernel."""

        kernel: str

    @dataclass
    class Opened(Message):
        """Enter or a double click: show this kernel's pages."""

        kernel: str

    @dataclass
    class ColumnsResized(Message):
        """The mouse changed the width of a column."""

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._rows: tuple[NodeRow, ...] = ()
        self._places: dict[str, int] = {}
        self._shown_for: object = None
        self._tree_context: tree_cells.TreeContext | None = None
        self._dragged: tuple[Column, int, int] | None = None
        """The column whose edge the mouse holds, its width and the mouse's place at the beginning."""
        self._was_dragged = False
        self._cache: dict[tuple[str, int, Style], _DrawnRow] = {}

    # What is shown

    @property
    def visible_kernels(self) -> Sequence[str]:
        """Ids of the rows from top to bottom, without folded and filtered kernels."""
        return tuple(self._places)

    @property
    def matches(self) -> int:
        """How many rows match the filter: their ancestors are shown as well."""
        return sum(1 for row in self._rows if not row.context)

    @property
    def rows(self) -> Sequence[NodeRow]:
        return self._rows

    def watch_state(self, state: SessionState | None) -> None:
        self._tree_context = tree_cells.tree_context(state, self._tree_context) if state is not None else None
        self._arrange()

    def watch_folded(self) -> None:
        self._arrange_around_selected()

    def watch_pattern(self) -> None:
        """Of a filter's matches the selected one, or the next below; ancestors are shown, but are not sought."""
        before = self._places.get(self.selected, 0)
        self._arrange()
        matches = [place for place, row in enumerate(self._rows) if not row.context]
        if matches and self._places.get(self.selected) not in matches:
            self.selected = self._rows[next((place for place in matches if place >= before), matches[0])].kernel
        self._arrange_around_selected()

    def watch_sort(self) -> None:
        self._arrange_around_selected()

    def sort_by(self, column: Column) -> None:
        """Sort by this column, or return to the tree."""
        self.sort = tree_columns.sort_by(column, self.sort)

    def watch_columns(self) -> None:
        self._cache.clear()
        self.refresh()

    @property
    def shown_columns(self) -> tree_columns.ColumnLayout:
        """The columns at the present width, with a blank cell before the scroll bar."""
        return tree_columns.layout(self.scrollable_content_region.width - self.show_vertical_scrollbar, self.columns)

    def _arrange(self) -> None:
        """Recompute the rows if their order may have changed; the selection stays or moves to the nearest row."""
        state = self.state
        shape = TreeShape(self.folded, self.pattern, self.sort)
        plain = not self.pattern.strip() and self.sort is Sort.BORN
        same = (id(state.opened), len(state.kernels), state.pruned, shape) if state is not None and plain else None
        if same is None or same != self._shown_for:
            self._shown_for = same
            before = self._places.get(self.selected, 0)
            self._rows = tree_rows.rows(state, shape) if state is not None else ()
            self._places = {row.kernel: place for place, row in enumerate(self._rows)}
            self.virtual_size = Size(0, len(self._rows) + 1)
            self._keep_selection(before)
            self._cache.clear()
            self.refresh()
        else:
            self._refresh_changed()

    def _arrange_around_selected(self) -> None:
        """Recompute the rows; the selected one stays in sight."""
        self._arrange()
        if self.selected in self._places:
            self._show_row(self._places[self.selected])

    def _refresh_changed(self) -> None:
        """Render the visible rows that changed."""
        view = self._tree_context
        width, top = self.scrollable_content_region.width, self.scroll_offset.y
        changed: list[int] = []
        for place, row in enumerate(self._rows[top : top + self.size.height - 1], top):
            known = self._cache.get((row.kernel, width, self._row_style(place)))
            if view is not None and (known is None or not self._is_right(known, view, row)):
                changed.append(place)
        self._refresh_rows(*changed)

    def _is_right(self, drawn: _DrawnRow, view: tree_cells.TreeContext, row: NodeRow) -> bool:
        if drawn.context is not view:
            if drawn.signature != (self.marked, *tree_cells.signature(view, row)):
                return False
            drawn.context = view
        return True

    def _refresh_rows(self, *places: int) -> None:
        if places:
            self.refresh(*(Region(0, place - self.scroll_offset.y + 1, self.size.width, 1) for place in places))

    def _keep_selection(self, before: int) -> None:
        if self.selected in self._places or not self._rows:
            return
        at: str | None = self.selected
        kernels = self.state.kernels if self.state is not None else {}
        while at is not None and at in kernels and at not in self._places:
            at = kernels[at].parent
        self.selected = at if at in self._places and at else self._rows[min(before, len(self._rows) - 1)].kernel

    def watch_selected(self, before: str, selected: str) -> None:
        self._refresh_rows(*(self._places[kernel] for kernel in (before, selected) if kernel in self._places))
        if selected in self._places:
            self._show_row(self._places[selected])
            self.post_message(self.Selected(selected))

    def watch_hovered(self, before: int, hovered: int) -> None:
        self._refresh_rows(*(place for place in (before, hovered) if 0 <= place < len(self._rows)))

    def watch_marked(self) -> None:
        self._cache.clear()
        self.refresh()

    def reveal(self, kernel: str) -> None:
        """Select the kernel; unfold its ancestors, and clear a filter that hides it."""
        state = self.state
        if state is None or kernel not in state.kernels:
            return
        above: set[str] = set()
        at = state.kernels[kernel].parent
        while at is not None and at in state.kernels and at not in above:
            above.add(at)
            at = state.kernels[at].parent
        self.folded = self.folded - above
        if kernel not in self._places:
            self.pattern = ""
        self.selected = kernel

    # Painting

    def notify_style_update(self) -> None:
        self._cache.clear()
        super().notify_style_update()

    def on_resize(self) -> None:
        self._cache.clear()
        if self.selected in self._places:
            self._show_row(self._places[self.selected])

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        shown = self.shown_columns
        if y == 0:
            baseline = self._tree_context.baseline if self._tree_context else ""
            head = tree_columns.head(shown, baseline, self.sort) if self._rows else line()
            return self.painter.strip(head, width, self.get_component_rich_style("kernel-tree--head"))
        place = self.scroll_offset.y + y - 1
        if place >= len(self._rows):
            return self._blank(y, width)
        row = self._rows[place]
        base = self._row_style(place)
        key = (row.kernel, width, base)
        view = self._tree_context
        assert view is not None
        known = self._cache.get(key)
        if known is None or not self._is_right(known, view, row):
            strip = self.painter.strip(tree_cells.row_line(view, row, shown, marked=self.marked), width, base)
            while len(self._cache) >= _STRIPS_KEPT:
                del self._cache[next(iter(self._cache))]
            known = self._cache[key] = _DrawnRow(view, (self.marked, *tree_cells.signature(view, row)), strip)
        return known.strip

    def _row_style(self, place: int) -> Style:
        if self._rows[place].kernel == self.selected:
            return self.get_component_rich_style("kernel-tree--cursor")
        return self.get_component_rich_style("kernel-tree--hover") if place == self.hovered else self.base_style

    def _blank(self, y: int, width: int) -> Strip:
        if self._rows or not 2 <= y < 2 + len(lines := self._empty_lines()):
            return Strip.blank(width, self.base_style)
        return self.painter.strip(lines[y - 2], width, self.base_style)

    def _empty_lines(self) -> tuple[Line, ...]:
        """What the tree shows without rows."""
        if self.pattern.strip():
            return (line(Cell(_NO_MATCH, Ink.FAINT)),)
        return self.start or (line(Cell(_NO_KERNEL, Ink.FAINT)),)

    def _show_row(self, place: int) -> None:
        self.scroll_to_region(Region(0, place, 1, 2), animate=False, force=True, immediate=True)

    # Moving

    def _move(self, by: int) -> None:
        if self._rows:
            place = self._places.get(self.selected, 0) + by
            self.selected = self._rows[min(max(place, 0), len(self._rows) - 1)].kernel

    def action_cursor_up(self) -> None:
        self._move(-1)

    def action_cursor_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._move(-max(1, self.size.height - 2))

    def action_page_down(self) -> None:
        self._move(max(1, self.size.height - 2))

    def action_first(self) -> None:
        self._move(-len(self._rows))

    def action_last(self) -> None:
        self._move(len(self._rows))

    def action_fold(self) -> None:
        place = self._places.get(self.selected)
        if place is None:
            return
        row = self._rows[place]
        if row.children and not row.folded:
            self.folded = self.folded | {row.kernel}
        elif (above := tree_rows.parent_row(self._rows, place)) is not None:
            self.selected = self._rows[above].kernel

    def action_unfold(self) -> None:
        place = self._places.get(self.selected)
        if place is None or not self._rows[place].children:
            return
        if self._rows[place].folded:
            self.folded = self.folded - {self.selected}
        else:
            self._move(1)

    def _toggle(self, kernel: str) -> None:
        if kernel in self._places and self._rows[self._places[kernel]].children:
            self.folded = self.folded ^ {kernel}

    def action_open(self) -> None:
        if self.selected in self._places:
            self.post_message(self.Opened(self.selected))

    # Mouse

    def _row_at(self, y: int) -> int | None:
        place = self.scroll_offset.y + y - 1
        return place if y >= 1 and place < len(self._rows) else None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        shown = self.shown_columns
        column = tree_columns.column_edge(shown, event.x) if event.y == 0 and self._rows else None
        if column is not None:
            event.stop()
            self._dragged = (column, shown.widths[column], event.x)
            self.capture_mouse()

    def on_mouse_up(self) -> None:
        if self._dragged is not None:
            self._dragged = None
            self.release_mouse()
            if self._was_dragged:
                self.post_message(self.ColumnsResized())

    def on_click(self, event: events.Click) -> None:
        if self._was_dragged:
            self._was_dragged = False
            event.stop()
            return
        if event.y == 0 and self._rows:
            event.stop()
            if (column := tree_columns.column_at(self.shown_columns, event.x)) is not None:
                self.sort_by(column)
            return
        place = self._row_at(event.y)
        if place is None:
            return
        event.stop()
        row = self._rows[place]
        self.selected = row.kernel
        glyph = tree_cells.fold_place(row, self.shown_columns)
        if row.children and glyph <= event.x <= glyph + 1:
            self._toggle(row.kernel)
        elif event.chain == 2:
            self.post_message(self.Opened(row.kernel))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragged is not None:
            column, width, start = self._dragged
            self._was_dragged = True
            self.columns = self.columns.resize(column, width + event.x - start)
            return
        place = self._row_at(event.y)
        self.hovered = -1 if place is None else place

    def on_leave(self) -> None:
        self.hovered = -1
