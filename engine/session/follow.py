"""Follows a session that another process writes: a source over its growing journal, read-only or steering through its inbox."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from engine.domain.commands import Command
from engine.domain.events import Entry
from engine.domain.folds import advance
from engine.domain.model import Blob
from engine.domain.state import SessionState
from engine.journal.journal import Tail, read, tail
from engine.journal.lock import is_written
from engine.session.source import Batch, Capability, ReadOnly
from engine.session.steer import Steering, steer

_POLL_SECONDS = 0.25


class FollowSource(ReadOnly):
    """A ``SessionSource`` that supports neither submit nor seek."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, folder: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reads the entries recorded so far.

        Raises JournalError if the folder is not a session, JournalCorrupt or JournalTooNew if its journal is unreadable, or if
        it is empty and no process will fill it.
        """
        super().__init__("another process is writing this session: steer it there, or open it here once it is closed there")
        self._folder = folder
        self._sleep = sleep
        self._tail: Tail = tail(folder)
        self._entries: list[Entry] = []
        self._state = SessionState()
        self._closed = False
        self._poll()
        if not self._entries and not self.is_run:
            read(folder)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def is_run(self) -> bool:
        """See ``SessionSource``: asks for the writer's lock."""
        return is_written(self._folder)

    async def batches(self) -> AsyncIterator[Batch]:
        """See ``SessionSource``. Raises JournalError if the journal is removed or damaged meanwhile."""
        seen = 0
        while not self._closed:
            self._poll()
            if seen < len(self._entries):
                news = tuple(self._entries[seen:])
                seen += len(news)
                yield Batch(news, self._state)
            else:
                await self._sleep(_POLL_SECONDS)

    async def close(self) -> None:
        self._closed = True

    def _poll(self) -> None:
        news = self._tail.poll()
        if news:
            self._entries.extend(news)
            self._state = advance(self._state, news)


class JoinedSource(FollowSource):
    """A ``SessionSource`` that follows, and leaves its commands in the session's inbox."""

    capabilities: frozenset[Capability] = frozenset({Capability.SUBMIT})

    def __init__(self, folder: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Raises like ``FollowSource``."""
        super().__init__(folder, sleep)
        self._payloads: list[bytes] = []

    def store_blob(self, data: bytes) -> Blob:
        """Keep a payload for the next command; its name."""
        self._payloads.append(data)
        return hashlib.sha256(data).hexdigest()

    async def submit(self, command: Command) -> None:
        """Wait until the session's holder has answered. Raises CommandRejected with its reason, JournalError."""
        payloads, self._payloads = self._payloads, []

        def commands(view: Steering) -> list[Command]:
            for payload in payloads:
                view.store_blob(payload)
            return [command]

        await asyncio.to_thread(steer, self._folder, commands)
        self._poll()
