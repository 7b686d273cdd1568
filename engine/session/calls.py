"""Records the model calls of one work item in the session's journal; implements ``engine.ideas.proposer.Calls``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.domain import events as e
from engine.domain.model import Blob, CallRole
from engine.domain.state import CallStatus, ModelCall, SessionState
from engine.domain.work import WorkKey
from engine.ideas.proposer import Cost
from engine.journal.blobs import Blobs


class CallRecorder(Protocol):
    """The part of a live session that records calls."""

    @property
    def state(self) -> SessionState: ...

    def record(self, events: Sequence[e.Event]) -> None:
        """Append events of the engine. Raises JournalError."""
        ...

    async def wait_for_engineer(self, condition: Callable[[SessionState], bool], work: WorkKey) -> None:
        """Wait for a required action of the engineer; meanwhile ``work`` does not count as running."""
        ...

    async def wait_for_provider(self, seconds: float, words: Callable[[float], str], work: WorkKey) -> None:
        """Wait, with a countdown in the work's progress; meanwhile ``work`` takes no place among the concurrent calls."""
        ...

    async def wait_until(self, condition: Callable[[SessionState], bool]) -> None:
        """Wait for an optional action of the engineer while the work continues."""
        ...


@dataclass(frozen=True, slots=True)
class WorkCalls:
    """The calls of one work item."""

    work: WorkKey
    recorder: CallRecorder
    blobs: Blobs
    on_text: Callable[[str], None]

    @property
    def state(self) -> SessionState:
        return self.recorder.state

    def earlier(self) -> tuple[ModelCall, ...]:
        return tuple(c for c in self.state.calls.values() if c.work == self.work)

    def start(self, role: CallRole, model: str, prompt: str, ceiling: int, max_output: int = 0) -> ModelCall:
        call = f"c{self.state.next_call}"
        started = e.CallStarted(call, str(self.work), role, model, self._stored(prompt), ceiling, max_output)
        self.recorder.record([started])
        return self.state.calls[call]

    def answer(self, call: str, reply: str, cost: Cost, finish: str, seconds: float, *, recalled: bool = False) -> None:
        stored = self._stored(reply)
        answered = e.CallAnswered(call, stored, cost.usage, cost.usd, finish, seconds, recalled, cost.estimated)
        self.recorder.record([answered])

    def fail(self, call: str, reason: str, cost: Cost = Cost()) -> None:  # noqa: B008
        self.recorder.record([e.CallFailed(call, reason, cost.usage, cost.usd, estimated=cost.estimated)])

    async def wait(self, seconds: float, words: Callable[[float], str]) -> None:
        await self.recorder.wait_for_provider(seconds, words, self.work)

    async def wait_by_hand(self, call: str) -> ModelCall:
        await self.recorder.wait_for_engineer(lambda state: state.calls[call].status is not CallStatus.OPEN, self.work)
        return self.state.calls[call]

    async def wait_cancelled(self, call: str) -> None:
        await self.recorder.wait_until(lambda state: state.calls[call].status is not CallStatus.OPEN)

    async def confirm(self, reason: str) -> None:
        if self.state.paused is None:
            self.recorder.record([e.SessionPaused(reason)])
        await self.recorder.wait_for_engineer(lambda state: state.paused is None, self.work)

    def text(self, blob: Blob) -> str:
        return self.blobs.text(blob)

    def say(self, text: str) -> None:
        self.on_text(text)

    def _stored(self, text: str) -> Blob:
        return self.blobs.put(text.encode("utf-8", "replace"))
