"""Replays a recorded session: play, pause, speed, seek, and jumps to landmarks.

The time between two entries is the recorded time divided by the speed, with gaps limited to ``LONGEST_GAP`` seconds at speed 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum

from engine.domain import events as e
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.state import Kernel, SessionState
from engine.session.source import Batch, Capability, Notifier, ReadOnly

LONGEST_GAP = 2.0
_CHECKPOINT_EVERY = 256
_CHECKPOINTS = 16
"""At most so many in a long session: each holds its own tables of kernels, and copies of the kernels that change after it."""
_SPEEDS = (0.01, 1000.0)
_MAY_CHANGE_INCUMBENT = (
    e.SessionPrepared, e.KernelVerified, e.KernelMeasured, e.KernelReopened, e.KernelFailed, e.KernelCancelled,
    e.KernelQuarantined, e.KernelAccepted, e.KernelMatched, e.IncumbentChanged,
)  # fmt: skip


class Landmark(StrEnum):
    """The target of a jump."""

    ROUND = "round"
    """The opening of a round."""
    IMPROVEMENT = "improvement"
    """A new incumbent."""
    DECISION = "decision"
    """An action of the engineer."""


class Recording:
    """Recorded entries, with the state at any position. States on the way are kept: a later seek starts from the nearest."""

    def __init__(self, entries: Sequence[e.Entry]) -> None:
        self.entries = tuple(entries)
        self._every = max(_CHECKPOINT_EVERY, len(self.entries) // _CHECKPOINTS)
        self._checkpoints: dict[int, SessionState] = {0: SessionState()}

    def state_at(self, position: int) -> SessionState:
        """The state after that many entries."""
        place = max(p for p in self._checkpoints if p <= position)
        state = self._checkpoints[place]
        while place < position:
            end = min(position, place - place % self._every + self._every)
            state = advance(state, self.entries[place:end])
            place = end
            if place % self._every == 0 or place == len(self.entries):
                self._checkpoints[place] = state
        return state


class ReplaySource(ReadOnly):
    """A ``SessionSource`` over recorded entries. It starts paused, before the first entry.

    ``position`` is the number of entries shown, 0 … ``length``.
    """

    capabilities = frozenset({Capability.SEEK})
    is_run = True

    def __init__(
        self, entries: Sequence[e.Entry] | Recording, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        super().__init__("this is a replay: open the session to steer it")
        self._recording = entries if isinstance(entries, Recording) else Recording(entries)
        self._entries = self._recording.entries
        self._sleep = sleep
        self._position = 0
        self._state = self._recording.state_at(0)
        self._jumps = 0
        self._speed = 1.0
        self._player: asyncio.Task[None] | None = None
        self._changed = Notifier()
        self._closed = False
        self._landmarks: dict[Landmark, tuple[int, ...]] = {}

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def entries(self) -> tuple[e.Entry, ...]:
        return self._entries

    @property
    def position(self) -> int:
        return self._position

    @property
    def length(self) -> int:
        return len(self._entries)

    @property
    def playing(self) -> bool:
        return self._player is not None and not self._player.done()

    @property
    def speed(self) -> float:
        """Recorded seconds per second of replay."""
        return self._speed

    @speed.setter
    def speed(self, value: float) -> None:
        slowest, fastest = _SPEEDS
        self._speed = min(max(value, slowest), fastest)
        if self.playing:
            self.pause()
            self.play()

    def play(self) -> None:
        """Play from the present position, or from the start if at the end. Needs a running event loop."""
        if self.playing or self._closed:
            return
        if self._position == self.length:
            self.seek(0)
        self._player = asyncio.create_task(self._play())

    def pause(self) -> None:
        if self._player is not None:
            self._player.cancel()
            self._player = None

    def seek(self, position: int) -> None:
        """Show the state after ``position`` entries, clamped to the length of the recording."""
        self._position = min(max(position, 0), self.length)
        self._state = self._recording.state_at(self._position)
        self._jumps += 1
        self._changed.notify()

    def jump(self, landmark: Landmark, *, back: bool = False) -> bool:
        """Seek to just after the next (or previous) landmark; ``False`` if there is none."""
        places = self.landmarks(landmark)
        if back:
            target = max((p for p in places if p < self._position), default=None)
        else:
            target = min((p for p in places if p > self._position), default=None)
        if target is None:
            return False
        self.seek(target)
        return True

    def landmarks(self, landmark: Landmark) -> tuple[int, ...]:
        """The positions just after each landmark of this kind."""
        if landmark not in self._landmarks:
            self._landmarks[landmark] = tuple(self._positions(landmark))
        return self._landmarks[landmark]

    async def batches(self) -> AsyncIterator[Batch]:
        """See ``SessionSource``. A seek yields one batch without entries."""
        shown, jumps = 0, 0
        while not self._closed:
            if jumps != self._jumps:
                shown, jumps = self._position, self._jumps
                yield Batch((), self._state)
            elif shown < self._position:
                news = self._entries[shown : self._position]
                shown = self._position
                yield Batch(news, self._state)
            else:
                await self._changed.wait()

    async def close(self) -> None:
        self.pause()
        self._closed = True
        self._changed.notify()

    async def _play(self) -> None:
        while self._position < self.length:
            gap = self._entries[self._position].at - self._state.at if self._position else 0.0
            jumps = self._jumps
            await self._sleep(min(max(gap, 0.0), LONGEST_GAP) / self._speed)
            if jumps == self._jumps:
                self._step()

    def _step(self) -> None:
        """Show the next entry and all further ones with the same time."""
        start = self._position
        at = self._entries[start].at
        end = start + 1
        while end < self.length and self._entries[end].at == at:
            end += 1
        self._state = advance(self._state, self._entries[start:end])
        self._position = end
        self._changed.notify()

    def _positions(self, landmark: Landmark) -> list[int]:
        match landmark:
            case Landmark.ROUND:
                return [n for n, entry in enumerate(self._entries, 1) if isinstance(entry.event, e.RoundOpened)]
            case Landmark.DECISION:
                return [n for n, entry in enumerate(self._entries, 1) if (entry.by.decides or entry.by.is_agent) and n > 1]
            case Landmark.IMPROVEMENT:
                return self._improvements()

    def _improvements(self) -> list[int]:
        """Entries are folded up to the next one that may change the incumbent."""
        positions: list[int] = []
        state, folded = SessionState(), 0
        last: str | None = None
        for number, entry in enumerate(self._entries, 1):
            if not _may_change_incumbent(entry.event, state):
                continue
            state, folded = advance(state, self._entries[folded:number]), number
            best = queries.incumbent(state)
            if best is not None and best.id != last:
                last = best.id
                positions.append(number)
        return positions


def _may_change_incumbent(event: e.Event, state: SessionState) -> bool:
    """``state``: after the last event that may have changed it."""
    if not isinstance(event, _MAY_CHANGE_INCUMBENT):
        return False
    best = queries.incumbent(state)
    if best is None or isinstance(event, e.SessionPrepared | e.IncumbentChanged):
        return True
    if event.kernel == best.id or event.kernel in state.reigns:
        return True
    return best.id not in state.reigns and _may_outrank(event, best, state)


def _may_outrank(event: e.Event, best: Kernel, state: SessionState) -> bool:
    """Whether another kernel may rank above the best one now. Only this counts in a journal that names no incumbents."""
    match event:
        case e.KernelAccepted() | e.KernelMatched():
            return True
        case e.KernelVerified(screen=found) | e.KernelMeasured(measurement=found):
            own, other = queries.speedup(state, best), found.speedup.get(queries.ranking_baseline(state))
            return not queries.is_precise(best) or own is None or (other is not None and other.low >= own.low)
    return False
