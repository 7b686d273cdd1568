"""The bars around a session: the header above; running work and the transport bar below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.reactive import reactive

from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from tui.viewmodel import heading, stages, transport
from tui.viewmodel.cells import BLANK, Line
from tui.widgets.lines import Panel


class SessionHeader(Panel):
    """Two lines: session, round, proposer and who waits for whom; incumbent with its interval, limits used.

    The screen sets what is not part of the state: the kind of source, the time, the device's load.
    """

    DEFAULT_CSS = """
    SessionHeader { height: 2; background: $panel; }
    """

    state: reactive[SessionState | None] = reactive(None)
    note: reactive[str] = reactive("")
    stopped: reactive[bool] = reactive(False)
    deadline: reactive[float | None] = reactive(None)
    now: reactive[float] = reactive(0.0, repaint=False)
    telemetry: reactive[str] = reactive("")
    session: reactive[str] = reactive("")
    round_left: reactive[str] = reactive("")

    def watch_now(self) -> None:
        if self.deadline is not None:
            self.refresh()

    def make_lines(self, width: int) -> Sequence[Line]:
        if self.state is None:
            return (BLANK, BLANK)
        status = heading.SessionStatus(
            self.note, self.stopped, self.deadline, self.now, self.telemetry, self.session, self.round_left
        )
        return heading.lines(self.state, status, width)


class StageStrip(Panel):
    """Two lines: counts of kernels and ideas by stage, and running work with its elapsed time. One of them where one has room:
    running work, while there is some."""

    DEFAULT_CSS = """
    StageStrip { height: 2; background: $panel; }
    """

    state: reactive[SessionState | None] = reactive(None)
    progress: reactive[Mapping[WorkKey, str]] = reactive(dict)
    seconds: reactive[Mapping[WorkKey, int]] = reactive(dict)
    is_run: reactive[bool] = reactive(True)

    def make_lines(self, width: int) -> Sequence[Line]:
        if self.state is None:
            return (BLANK, BLANK)
        lines = stages.strip(self.state, self.progress, width, self.seconds, is_run=self.is_run)
        return lines if self.size.height > 1 else lines[1:] if self.state.running else lines[:1]


class TransportBar(Panel):
    """One line. A click on the track seeks, on the sign plays or pauses, on the speed changes it."""

    DEFAULT_CSS = """
    TransportBar { height: 1; background: $boost; }
    """

    position: reactive[int] = reactive(0)
    length: reactive[int] = reactive(0)
    playing: reactive[bool] = reactive(False)
    speed: reactive[float] = reactive(1.0)
    ticks: reactive[tuple[int, ...]] = reactive(())

    @dataclass
    class SeekRequested(Message):
        """Show the state after this many entries."""

        position: int

    @dataclass
    class PlayToggled(Message):
        """Play, or pause."""

    @dataclass
    class SpeedChanged(Message):
        """Play at this speed."""

        speed: float

    def _bar(self, width: int) -> transport.Bar:
        shown = transport.Transport(self.position, self.length, self.playing, self.speed, self.ticks)
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
