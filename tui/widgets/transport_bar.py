"""The transport of a recording: where it stands, on a track that can be clicked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.reactive import reactive

from tui.viewmodel import transport
from tui.viewmodel.cells import Line
from tui.widgets.lines import Panel


class TransportBar(Panel):
    """One line. A click on the track asks for that place, one on the sign to play or pause, one on the speed for more."""

    DEFAULT_CSS = """
    TransportBar { height: 1; background: $boost; }
    """

    position: reactive[int] = reactive(0)
    length: reactive[int] = reactive(0)
    playing: reactive[bool] = reactive(False)
    speed: reactive[float] = reactive(1.0)
    ticks: reactive[tuple[int, ...]] = reactive(())
    caption: reactive[str] = reactive("")

    @dataclass
    class SeekRequested(Message):
        """Show the state after so many entries."""

        position: int

    @dataclass
    class PlayToggled(Message):
        """Play, or pause."""

    @dataclass
    class SpeedChanged(Message):
        """Play at this speed."""

        speed: float

    def watch_position(self) -> None:
        self.redraw()

    def watch_length(self) -> None:
        self.redraw()

    def watch_playing(self) -> None:
        self.redraw()

    def watch_speed(self) -> None:
        self.redraw()

    def watch_ticks(self) -> None:
        self.redraw()

    def watch_caption(self) -> None:
        self.redraw()

    def _bar(self, width: int) -> transport.Bar:
        shown = transport.Transport(self.position, self.length, self.playing, self.speed, self.ticks, self.caption)
        return transport.bar(shown, width)

    def make_lines(self, width: int) -> Sequence[Line]:
        return (self._bar(width).line,)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        bar = self._bar(self.size.width)
        place = transport.position_at(event.x, bar, self.length)
        if place is not None:
            self.post_message(self.SeekRequested(place))
        elif event.x < 3:
            self.post_message(self.PlayToggled())
        elif event.x < bar.start:
            self.post_message(self.SpeedChanged(transport.next_speed(self.speed, faster=not event.shift)))
