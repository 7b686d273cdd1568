"""Widgets that show prepared lines: a scrolling page, and a panel of one or two lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.viewmodel.cells import BLANK, Line
from tui.widgets.painter import PaintedWidget

Lines = Sequence[Line]


class LinesView(ScrollView, PaintedWidget, can_focus=True):
    """A page of lines; the mouse selects text for copying. After ``search``, n and N go to the next and previous line found."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next_found(1)", "Next", show=False, id="page.next-found"),
        Binding("N", "next_found(-1)", "Previous", show=False, id="page.previous-found"),
    ]

    @dataclass
    class FoundMoved(Message):
        """Another line found is shown."""

        found: str

    DEFAULT_CSS = """
    LinesView {
        background: $surface;
        color: $foreground;
        scrollbar-size: 1 1;
        & > .lines--found { background: $warning 25%; }
        & > .lines--here { background: $warning 60%; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--found", "lines--here"}

    lines: reactive[Lines] = reactive((), repaint=False)

    _sought = ""
    _found: tuple[int, ...] = ()
    _here = 0

    def search(self, text: str) -> str:
        """Mark the lines that contain the text, in any case, and show the first at or below the top; return what was found."""
        self._sought = text.strip().casefold()
        self._find()
        top = self.scroll_offset.y
        self._here = next((n for n, place in enumerate(self._found) if place >= top), 0)
        self._show_found()
        return self.search_result

    @property
    def search_result(self) -> str:
        """What the search found: ``2 of 14``."""
        if not self._sought:
            return ""
        return f"{self._here + 1} of {len(self._found)}" if self._found else "not found"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """n and N mean something else on the screen unless something was found."""
        return bool(self._found) if action == "next_found" else super().check_action(action, parameters)

    def action_next_found(self, step: int) -> None:
        """Go to the next line found, or to the previous one; around the ends."""
        self._here = (self._here + step) % len(self._found)
        self._show_found()
        self.post_message(self.FoundMoved(self.search_result))

    def _find(self) -> None:
        sought = self._sought
        self._found = tuple(n for n, line in enumerate(self.lines) if sought in line.text.casefold()) if sought else ()
        self._here = min(self._here, max(0, len(self._found) - 1))

    def _show_found(self) -> None:
        if self._found:
            middle = self._found[self._here] - self.scrollable_content_region.height // 2
            self.scroll_to(y=max(0, middle), animate=False)
        self.refresh()

    def watch_lines(self, before: Lines, lines: Lines) -> None:
        found = self._found
        self._find()
        widest = max((line.width for line in lines), default=0)
        self._resize_page(Size(widest, len(lines)))
        if found or self._found:
            self.refresh()
        else:
            self._refresh_changed(before, lines)

    def _refresh_changed(self, before: Lines, lines: Lines) -> None:
        """Repaint the visible lines that differ."""
        top, width = self.scroll_offset.y, self.size.width
        places = range(top, top + self.size.height)
        changed = [n for n in places if before[n : n + 1] != lines[n : n + 1]]
        if changed:
            self.refresh(*(Region(0, n - top, width, 1) for n in changed))

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
        base, width, place = self.base_style, self.scrollable_content_region.width, scroll_y + y
        if place >= len(self.lines):
            return Strip.blank(width, base)
        line = self.lines[place]
        strip = self.painter.strip(line, max(scroll_x + width, line.width), base)
        if place in self._found:
            kind = "lines--here" if self._found[self._here] == place else "lines--found"
            strip = strip.apply_style(Style(bgcolor=self.get_component_rich_style(kind).bgcolor, bold=True))
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
    """One or two lines, made again when a reactive changes; the lines that differ are repainted."""

    DEFAULT_CSS = """
    Panel { width: 1fr; color: $foreground; }
    """

    _lines: Lines | None = None
    _outdated = False

    def make_lines(self, width: int) -> Lines:
        """The lines for a width in terminal cells."""
        raise NotImplementedError

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        if self._lines is None or regions or layout or recompose or not repaint:
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        if not self._outdated:
            self._outdated = True
            self.call_next(self._make_again)  # once for all reactives that change together
        return self

    def _make_again(self) -> None:
        self._outdated = False
        before, self._lines = self._lines, self.make_lines(self.size.width)
        if before is None or len(before) != len(self._lines):
            super().refresh()
        elif changed := [y for y, pair in enumerate(zip(before, self._lines, strict=True)) if pair[0] != pair[1]]:
            super().refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def notify_style_update(self) -> None:
        self._lines = None
        super().notify_style_update()

    def on_resize(self) -> None:
        self._lines = None
        self.refresh()  # a frame before this event had the lines for the old width

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if self._lines is None:
            self._lines = self.make_lines(width)
        return self.painter.strip(self._lines[y] if y < len(self._lines) else BLANK, width, self.base_style)
