"""Widgets that show prepared lines: a page that scrolls, and a panel as high as its lines. Painted line by line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.viewmodel.cells import Line
from tui.widgets.painting import Painter

Lines = Sequence[Line]


class LinesView(ScrollView, can_focus=True):
    """A page of lines. What is on it can be selected with the mouse and copied."""

    DEFAULT_CSS = """
    LinesView {
        background: $surface;
        color: $foreground;
        scrollbar-size: 1 1;
    }
    """

    lines: reactive[Lines] = reactive((), layout=False)

    _painter: Painter | None = None

    def watch_lines(self, lines: Lines) -> None:
        widest = max((line.width for line in lines), default=0)
        self._take_room(Size(widest, len(lines)))
        self.refresh()

    def _take_room(self, size: Size) -> None:
        """Another page may be scrolled another way; the screen is laid out anew only where a scrollbar comes or goes."""
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

    def notify_style_update(self) -> None:
        self._painter = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        if self._painter is None:
            self._painter = Painter(self)
        scroll_x, scroll_y = self.scroll_offset
        base, width, place = self.rich_style, self.scrollable_content_region.width, scroll_y + y
        if place >= len(self.lines):
            return Strip.blank(width, base)
        line = self.lines[place]
        strip = self._painter.strip(line, max(scroll_x + width, line.width), base)
        strip = _selected(self, strip, place).crop(scroll_x, scroll_x + width)
        return strip.apply_offsets(scroll_x, place)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(line.text.rstrip() for line in self.lines)), "\n"


def is_shown(widget: Widget) -> bool:
    """Whether the widget and all it stands in are displayed: what is hidden need not be made."""
    return widget.is_mounted and all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))


def _selected(widget: Widget, strip: Strip, place: int) -> Strip:
    """The strip with the part that the mouse selected in the screen's style for it."""
    selection = widget.text_selection
    span = selection.get_span(place) if selection is not None else None
    if span is None:
        return strip
    start, end = span
    end = strip.cell_length if end == -1 else end
    style: Style = widget.screen.get_component_rich_style("screen--selection")
    before, chosen, after = strip.divide([start, end, strip.cell_length])
    return Strip.join([before, chosen.apply_style(style), after])


class Panel(Widget):
    """Lines made for the width there is; as high as they are unless its styles say otherwise."""

    DEFAULT_CSS = """
    Panel { height: auto; width: 1fr; color: $foreground; }
    """

    _painter: Painter | None = None
    _made: tuple[int, Lines] | None = None

    def make_lines(self, width: int) -> Lines:
        """What to show in this many terminal cells."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Make the lines anew; lay out anew only where their number changed."""
        before = len(self._made[1]) if self._made is not None else None
        self._made = None
        if not self.is_mounted or not self.size.width:
            return
        self.refresh(layout=self.styles.is_auto_height and len(self.shown(self.size.width)) != before)

    def shown(self, width: int) -> Lines:
        """The lines at a width, made once."""
        if self._made is None or self._made[0] != width:
            self._made = (width, self.make_lines(width))
        return self._made[1]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.shown(width))

    def notify_style_update(self) -> None:
        self._painter = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        if self._painter is None:
            self._painter = Painter(self)
        width = self.size.width
        lines = self.shown(width)
        if y >= len(lines):
            return Strip.blank(width, self.rich_style)
        return self._painter.strip(lines[y], width, self.rich_style)
