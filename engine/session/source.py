"""The interface of a session's event stream: live, replayed or followed.

Readers query the capabilities of a ``SessionSource``, never its kind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.domain.commands import Command
from engine.domain.errors import CommandRejected
from engine.domain.events import Entry
from engine.domain.state import SessionState
from engine.domain.work import WorkKey

_PROGRESS_KEPT = 256


class Capability(StrEnum):
    """What a source supports besides reading."""

    SUBMIT = "submit"
    """Accepts commands."""
    SEEK = "seek"
    """Supports play, pause and seek."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The entries since the last batch, and the state after them.

    ``entries`` is empty after a seek: readers redraw everything from the state.
    """

    entries: tuple[Entry, ...]
    state: SessionState


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of running work. It is never journalled, and may be dropped."""

    work: WorkKey
    text: str
    lasting: bool = False
    """Worth a line of its own where progress is printed, such as the beginning of a wait."""


class SessionSource(Protocol):
    """A stream of a session's entries with the states they fold to."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def state(self) -> SessionState: ...

    @property
    def is_run(self) -> bool:
        """Whether work that was begun goes on: some process runs the session, or it is replayed."""
        ...

    def batches(self) -> AsyncIterator[Batch]:
        """All entries recorded so far as one batch, then new ones, until the source is closed.

        Each call returns an independent stream. A slow reader gets fewer and larger batches.
        """
        ...

    def progress(self) -> AsyncIterator[Progress]:
        """Progress from now on, until the source is closed."""
        ...

    async def submit(self, command: Command) -> object:
        """Submit a command. Its events arrive as a batch. Raises CommandRejected with the reason."""
        ...

    async def close(self) -> None: ...


class ReadOnly:
    """``submit`` and ``progress`` of a source without commands and running work."""

    def __init__(self, reason: str) -> None:
        """``reason``: why commands are rejected."""
        self._reason = reason

    async def submit(self, command: Command) -> None:
        raise CommandRejected(self._reason)

    async def progress(self) -> AsyncIterator[Progress]:
        nothing: tuple[Progress, ...] = ()
        for progress in nothing:
            yield progress


class Notifier:
    """Wakes all tasks that wait for the next notification."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class ProgressFeed:
    """The latest progress, for any number of readers; a slow reader misses the oldest."""

    def __init__(self) -> None:
        self._latest: deque[Progress] = deque(maxlen=_PROGRESS_KEPT)
        self._count = 0
        self._changed = Notifier()
        self._closed = False

    def add(self, work: WorkKey, text: str, lasting: bool = False) -> None:
        self._latest.append(Progress(work, text, lasting))
        self._count += 1
        self._changed.notify()

    async def stream(self) -> AsyncIterator[Progress]:
        """Progress from now on, until the feed is closed."""
        seen = self._count
        while True:
            missed = min(self._count - seen, len(self._latest))
            news = tuple(self._latest)[len(self._latest) - missed :]
            seen = self._count
            for progress in news:
                yield progress
            if seen == self._count:
                if self._closed:
                    return
                await self._changed.wait()

    def close(self) -> None:
        self._closed = True
        self._changed.notify()
