"""The line between two panes, which the mouse drags."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.geometry import Offset
from textual.message import Message
from textual.widget import Widget


class Splitter(Widget):
    """A line between two panes; the screen sets their sizes. A double click asks for the usual ones."""

    DEFAULT_CSS = """
    Splitter { width: 1; height: 1fr; color: $panel-lighten-2; background: $surface; }
    Splitter:hover, Splitter.-dragged { color: $primary; }
    """

    @dataclass
    class Dragged(Message):
        """The mouse holds the line at this place of the screen; ``released``: the mouse was released."""

        place: Offset
        released: bool

    @dataclass
    class Reset(Message):
        """Use the usual sizes."""

    def render(self) -> str:
        width, height = self.size
        return "▔" * width if width > height else "\n".join("▏" * height)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        event.stop()
        self.capture_mouse()
        self.add_class("-dragged")

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.has_class("-dragged"):
            event.stop()
            self.post_message(self.Dragged(event.screen_offset, released=False))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self.has_class("-dragged"):
            event.stop()
            self.release_mouse()
            self.remove_class("-dragged")
            self.post_message(self.Dragged(event.screen_offset, released=True))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.chain == 2:
            self.post_message(self.Reset())
