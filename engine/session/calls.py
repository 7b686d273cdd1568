"""The recorded calls of models that a work of a live session makes: ``engine.ideas.source.Calls`` over its journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.domain import events as e
from engine.domain.model import Blob, CallRole, Usage
from engine.domain.state import Call, CallStatus, SessionState
from engine.journal.blobs import Blobs


class Recorder(Protocol):
    """The part of a live session that calls are kept with."""

    @property
    def state(self) -> SessionState: ...

    def record(self, events: Sequence[e.Event]) -> None:
        """Append what the engine did. Raises JournalError."""
        ...

    async def until(self, holds: Callable[[SessionState], bool], work: str) -> None:
        """Wait for something that the engineer must do; meanwhile ``work`` is not counted as under way."""
        ...

    async def once(self, holds: Callable[[SessionState], bool]) -> None:
        """Wait for something that the engineer may do while the work goes on."""
        ...


@dataclass(frozen=True, slots=True)
class WorkCalls:
    """The calls of the work with this key."""

    work: str
    recorder: Recorder
    blobs: Blobs
    heard: Callable[[str], None]

    @property
    def state(self) -> SessionState:
        return self.recorder.state

    def earlier(self) -> tuple[Call, ...]:
        return tuple(c for c in self.state.calls.values() if c.work == self.work)

    def start(self, role: CallRole, model: str, prompt: str, ceiling: int) -> Call:
        call = f"c{self.state.next_call}"
        self.recorder.record([e.CallStarted(call, self.work, role, model, self._kept(prompt), ceiling)])
        return self.state.calls[call]

    def answer(
        self, call: str, reply: str, usage: Usage, usd: float | None, finish: str, seconds: float, *, recalled: bool = False
    ) -> None:
        self.recorder.record([e.CallAnswered(call, self._kept(reply), usage, usd, finish, seconds, recalled)])

    def fail(self, call: str, reason: str, usage: Usage = Usage(), usd: float | None = None) -> None:  # noqa: B008
        self.recorder.record([e.CallFailed(call, reason, usage, usd)])

    async def by_hand(self, call: str) -> Call:
        await self.recorder.until(lambda state: state.calls[call].status is not CallStatus.OPEN, self.work)
        return self.state.calls[call]

    async def cancelled(self, call: str) -> None:
        await self.recorder.once(lambda state: state.calls[call].status is not CallStatus.OPEN)

    async def confirm(self, reason: str) -> None:
        if self.state.paused is None:
            self.recorder.record([e.SessionPaused(reason)])
        await self.recorder.until(lambda state: state.paused is None, self.work)

    def text(self, blob: Blob) -> str:
        return self.blobs.text(blob)

    def say(self, text: str) -> None:
        self.heard(text)

    def _kept(self, text: str) -> Blob:
        return self.blobs.put(text.encode("utf-8", "replace"))
