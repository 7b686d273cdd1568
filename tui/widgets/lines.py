"""Widgets that show prepared lines: a scrolling page, and a panel of one or two lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.viewmodel.cells import BLANK, Line
from tui.widgets.painter import PaintedWidget

Lines = Sequence[Line]


class LinesView(ScrollView, PaintedWidget, can_focus=True):
    """A page of lines; the mouse selects text for copying."""

    DEFAULT_CSS = """
    LinesView {
        background: $surface;
        color: $foreground;
        scrollbar-size: 1 1;
    }
    """

    lines: reactive[Lines] = reactive((), layout=False)

    def watch_lines(self, lines: Lines) -> None:
        widest = max((line.width for line in lines), default=0)
        self._resize_page(Size(widest, len(lines)))
        self.refresh()

    def _resize_page(self, size: Size) -> None:
        """Set the size of the page; the layout changes only if a scrollbar appears or disappears."""
        here, before = self.scrollable_content_region.size, self.virtual_size
        if here and (size.width > here.width, size.height > here.height) == (
            before.width > here.width, before.height > here.height,
        ):  # fmt: skip
            self.set_reactive(ScrollView.virtual_size, size)
            self._scroll_update(size)
            self.scroll_to(
                min(self.scroll_offset.x, self.max_scroll_x), min(self.scroll_offset.y, self.max_scroll_y), animate=False
            )
        else:
            self.virtual_size = size

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        base, width, place = self.rich_style, self.scrollable_content_region.width, scroll_y + y
        if place >= len(self.lines):
            return Strip.blank(width, base)
        line = self.lines[place]
        strip = self.painter.strip(line, max(scroll_x + width, line.width), base)
        strip = _highlight_selection(self, strip, place).crop(scroll_x, scroll_x + width)
        return strip.apply_offsets(scroll_x, place)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(line.text.rstrip() for line in self.lines)), "\n"


def is_displayed(widget: Widget) -> bool:
    """Whether the widget and all its ancestors are displayed."""
    return widget.is_mounted and all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))


def _highlight_selection(widget: Widget, strip: Strip, place: int) -> Strip:
    """The strip with the selected part highlighted."""
    selection = widget.text_selection
    span = selection.get_span(place) if selection is not None else None
    if span is None:
        return strip
    start, end = span
    end = strip.cell_length if end == -1 else end
    style: Style = widget.screen.get_component_rich_style("screen--selection")
    before, chosen, after = strip.divide([start, end, strip.cell_length])
    return Strip.join([before, chosen.apply_style(style), after])


class Panel(PaintedWidget):
    """One or two lines, made for the widget's width when a reactive changes."""

    DEFAULT_CSS = """
    Panel { width: 1fr; color: $foreground; }
    """

    _lines: Lines | None = None

    def make_lines(self, width: int) -> Lines:
        """The lines for a width in terminal cells."""
        raise NotImplementedError

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        self._lines = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def on_resize(self) -> None:
        self._lines = None

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self._lines is None:
            self._lines = self.make_lines(width)
        return self.painter.strip(self._lines[y] if y < len(self._lines) else BLANK, width, self.rich_style)
