"""Transport actions of a source that can seek (play, pause, speed, steps, jumps), and forking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.message import Message

from engine.domain import events as e
from engine.domain.errors import EspalierError
from engine.report.facts.forks import left_behind
from tui.bridge import Capability, Landmark
from tui.removals import while_shown
from tui.screens.dialogs import Choice, Choose, Confirm
from tui.screens.steering import SteeringScreen
from tui.viewmodel import forking
from tui.widgets.bars import TransportBar

_MOST_POINTS = 40
_LANDMARKS = {Landmark.ROUND: "round", Landmark.IMPROVEMENT: "incumbent", Landmark.DECISION: "decision of yours"}


class TransportScreen(SteeringScreen):
    """A screen with a ``TransportBar``."""

    @dataclass
    class ForkRequested(Message):
        """Fork the session here."""

        folder: Path
        position: int

    def update_transport(self) -> None:
        """Update the transport bar."""
        transport = self.bridge.transport
        if transport is None:
            return
        bar = self.query_one(TransportBar)
        bar.length = transport.length
        bar.ticks = transport.landmarks(Landmark.ROUND)
        bar.position = transport.position
        bar.playing = transport.playing
        bar.speed = transport.speed

    @on(TransportBar.SeekRequested)
    def _seek(self, event: TransportBar.SeekRequested) -> None:
        if self.bridge.transport is not None:
            self.bridge.transport.seek(event.position)

    @on(TransportBar.SpeedChanged)
    def _speed(self, event: TransportBar.SpeedChanged) -> None:
        self.bridge.set_speed(event.speed)

    @on(TransportBar.PlayToggled)
    def action_play(self) -> None:
        """Play or pause."""
        self.bridge.play_or_pause()

    @work
    async def action_fork(self) -> None:
        """Fork the session at the transport's position, or at a chosen point."""
        bridge, transport = self.bridge, self.bridge.transport
        if transport is not None:
            transport.pause()
        try:
            entries = await while_shown(self, asyncio.to_thread(bridge.all_entries))
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        position = transport.position if transport is not None else await self._choose_point(entries)
        if position is None:
            return
        words = f"The new session starts with the first {position} events of {bridge.name}, which does not change.\n\n"
        words += forking.left_words(left_behind(entries, position))
        if await self.app.push_screen_wait(Confirm("Fork from here?", words, "Fork", destroys=False)):
            self.post_message(self.ForkRequested(bridge.folder, position))

    async def _choose_point(self, entries: Sequence[e.Entry]) -> int | None:
        choices = []
        for point in forking.points(entries)[:_MOST_POINTS]:
            left = forking.left_counts(left_behind(entries, point.position))
            choices.append(Choice(str(point.position), point.words, f"without {left}" if left else ""))
        chosen = await self.app.push_screen_wait(Choose("Fork from", choices))
        return int(chosen) if chosen is not None else None

    def action_forward(self) -> None:
        """Go forward one event."""
        self._step(+1)

    def action_back(self) -> None:
        """Go back one event."""
        self._step(-1)

    def action_next_round(self) -> None:
        """Jump to the next round."""
        self._jump(Landmark.ROUND)

    def action_previous_round(self) -> None:
        """Jump to the previous round."""
        self._jump(Landmark.ROUND, back=True)

    def action_next_incumbent(self) -> None:
        """Jump to the next incumbent."""
        self._jump(Landmark.IMPROVEMENT)

    def action_previous_incumbent(self) -> None:
        """Jump to the previous incumbent."""
        self._jump(Landmark.IMPROVEMENT, back=True)

    def action_next_decision(self) -> None:
        """Jump to the engineer's next decision."""
        self._jump(Landmark.DECISION)

    def action_previous_decision(self) -> None:
        """Jump to the engineer's previous decision."""
        self._jump(Landmark.DECISION, back=True)

    def action_faster(self) -> None:
        """Double the speed."""
        self._scale(2.0)

    def action_slower(self) -> None:
        """Halve the speed."""
        self._scale(0.5)

    def _step(self, by: int) -> None:
        transport = self.bridge.transport
        if transport is not None:
            transport.pause()
            transport.seek(transport.position + by)

    def _jump(self, landmark: Landmark, *, back: bool = False) -> None:
        transport = self.bridge.transport
        if transport is not None and self.bridge.can(Capability.SEEK) and not transport.jump(landmark, back=back):
            self.notify(f"No {'earlier' if back else 'later'} {_LANDMARKS[landmark]}.", markup=False, timeout=2)

    def _scale(self, by: float) -> None:
        if self.bridge.transport is not None:
            self.bridge.set_speed(self.bridge.transport.speed * by)
