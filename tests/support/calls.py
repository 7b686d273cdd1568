"""The recorded calls of one work, in memory, for a proposer without a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import ENGINE
from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from engine.journal.blobs import Blobs
from engine.session.calls import WorkCalls


class Memory:
    """A ``CallRecorder`` without a session; ``answers`` are typed in turn."""

    def __init__(self, state: SessionState | None = None) -> None:
        self.state = state or SessionState()
        self.events: list[e.Event] = []
        self._at = count(1)

    def record(self, events: Sequence[e.Event]) -> None:
        for event in events:
            self.events.append(event)
            self.state = advance(self.state, [e.Entry(self.state.seq + 1, float(next(self._at)), ENGINE, event)])

    async def wait_for_engineer(self, condition: Callable[[SessionState], bool], work: WorkKey) -> None:
        if not condition(self.state):
            raise AssertionError(f"nobody will answer {work}")

    async def wait_until(self, condition: Callable[[SessionState], bool]) -> None:
        while not condition(self.state):
            await asyncio.sleep(0)


def calls(blobs: Blobs | None = None, work: str = "propose:1", state: SessionState | None = None) -> WorkCalls:
    """Calls of one work; without ``blobs`` no prompt is kept, as for proposers without a model."""
    return WorkCalls(WorkKey.parse(work), Memory(state), blobs, lambda _: None)  # type: ignore[arg-type]
